"""The toolkit's patterns with a database: their own tests on Apache Kafka with PostgreSQL, MariaDB and SQLite; servers
that go away or turn read-only; and processes killed again and again, on both brokers and all three databases."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Connection, create_engine, insert, make_url, text
from sqlalchemy.pool import NullPool

from moldau.toolkit import App, Retry
from moldau.toolkit.db import Outbox, OutboxRelay, Store, relay, transactions
from moldau.toolkit.db.outbox import CONFIRMED
from tests.interop.apache_kafka import ApacheKafka
from tests.interop.peers.databases import mariadb, postgresql
from tests.interop.peers.outage import Outage
from tests.support.broker_process import BrokerProcess
from tests.toolkit.db.killed import results_table
from tests.toolkit.db.killing import kill_exactly_once, kill_once, kill_outbox, words_in
from tests.toolkit.killing import make_topic

FOLDER = Path(__file__).parents[1] / "toolkit" / "db"


@contextmanager
def _no_server() -> Iterator[str]:
    yield ""


SERVERS = {"postgresql": postgresql, "mariadb": mariadb, "sqlite": _no_server}


@pytest.fixture(scope="module", params=sorted(SERVERS))
def database(request: pytest.FixtureRequest) -> Iterator[str]:
    with SERVERS[request.param]() as address:
        yield address


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_whole_suite_on_apache_kafka(apache_kafka: ApacheKafka, database: str) -> None:
    environment = os.environ | {"TOOLKIT_BOOTSTRAP": apache_kafka.bootstrap_servers, "TOOLKIT_DATABASE": database}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", str(FOLDER)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=590, check=False)
    assert done.returncode == 0, done.stdout[-6_000:]


async def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.05)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("database", ["mariadb", "postgresql"], indirect=True)
def test_a_server_that_goes_away_or_turns_read_only(
    apache_kafka: ApacheKafka, database: str, fresh_topic: Callable[[str], str]
) -> None:
    """In the midst of an outbox's relay and of handlers: nothing is lost, nothing is done twice, nothing dies."""
    bootstrap, topic = apache_kafka.bootstrap_servers, fresh_topic("orders")
    make_topic(bootstrap, topic, 2)
    engine = create_engine(database, poolclass=NullPool)
    results, table = results_table("outage_results"), "outage_outbox"
    results.metadata.create_all(engine)
    is_postgresql = engine.dialect.name == "postgresql"
    switch = "ALTER SYSTEM SET default_transaction_read_only = {}" if is_postgresql else "SET GLOBAL read_only = {}"

    def read_only(value: str) -> None:
        own = create_engine(database, poolclass=NullPool, isolation_level="AUTOCOMMIT")
        with own.connect() as connection:
            connection.execute(text(switch.format(value)))
            if is_postgresql:
                connection.execute(text("SELECT pg_reload_conf()"))

    async def work(way: Outage) -> None:
        url = make_url(database).set(port=way.port)
        if not is_postgresql:
            with engine.begin() as connection:  # root may write to a read-only server; others may not
                connection.execute(text("CREATE USER plain@'%'"))
                connection.execute(text("GRANT SELECT, INSERT, UPDATE, DELETE, CREATE ON test.* TO plain@'%'"))
            url = url.set(username="plain")
        outbox = Outbox(url, table=table)
        await Outbox(engine, table=table).create()
        app = App(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest")

        @app.handler(topic, once=Store(url, table="outage_once"), workers=4, retry=Retry(now=0))
        def handle(word: str, transaction: Connection) -> None:
            transaction.execute(insert(results).values(word=word))

        sending = OutboxRelay(outbox, bootstrap_servers=bootstrap, poll="20ms")
        await sending.start()
        await app.start()
        sent: list[str] = []

        def send(count: int) -> None:
            rows = [outbox.row(topic, f"k{n % 7}", f"w{n}") for n in range(len(sent), len(sent) + count)]
            with engine.begin() as connection:
                connection.execute(insert(outbox.table), rows)
            sent.extend(f"w{n}" for n in range(len(sent), len(sent) + count))

        def is_done() -> bool:
            assert app.failure is None
            return words_in(engine, "outage_results") == dict.fromkeys(sent, 1)

        send(200)
        await _until(is_done, "all are handled")
        for _ in range(2):
            send(200)
            way.cut()
            await _until(lambda: sending.health()["state"] == "waiting for the database", "the relay notices")
            await asyncio.to_thread(way.heal)
            await _until(is_done, "all are handled after the outage")
        send(50)
        await asyncio.to_thread(read_only, "on")
        try:
            await _until(lambda: not sending.health()["ok"], "the relay notices")
        finally:
            await asyncio.to_thread(read_only, "off")
        send(50)
        await _until(is_done, "all are handled after it was read-only")
        await app.stop()
        await sending.stop()
        with engine.connect() as connection:
            states = set(connection.scalars(text(f"SELECT DISTINCT state FROM {table}")))
        assert states == {CONFIRMED}

    with Outage(make_url(database).port or 0) as way:
        asyncio.run(work(way))
    engine.dispose()


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("kind", ["apache_kafka", "moldau"])
@pytest.mark.parametrize("pattern", ["once", "exactly_once", "outbox"])
def test_killed_at_every_step_again_and_again(
    kind: str,
    pattern: str,
    database: str,
    request: pytest.FixtureRequest,
    fresh_topic: Callable[[str], str],
    tmp_path: Path,
) -> None:
    server: ApacheKafka | BrokerProcess = request.getfixturevalue(kind)
    url = database or f"sqlite:///{tmp_path}/killed.db"
    engine = create_engine(url, poolclass=NullPool)
    topic = fresh_topic(pattern)
    table = topic.replace("-", "_")
    run = {"once": kill_once, "exactly_once": kill_exactly_once, "outbox": kill_outbox}[pattern]
    steps = relay.STEPS if pattern == "outbox" else transactions.STEPS
    run(server.bootstrap_servers, url, engine, topic, table, tmp_path, steps, 6)
    engine.dispose()
