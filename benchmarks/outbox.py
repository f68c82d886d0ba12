"""Rows per second from an outbox's table to a topic: claimed, sent, acknowledged, confirmed."""

import asyncio
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from sqlalchemy import create_engine, func, insert, select

from benchmarks.broker import QUIET, Server, moldau
from benchmarks.rows import Row
from moldau.net import new_event_loop
from moldau.toolkit.db import Outbox, OutboxRelay
from moldau.toolkit.db.outbox import CONFIRMED
from tests.interop.peers.databases import mariadb, postgresql

ROWS = 60_000
KEYS = 1_000
ROUNDS = 3


@contextmanager
def sqlite() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        yield f"sqlite:///{Path(folder)}/outbox.db"


def measure(url: str, server: Server, table: str, relays: int) -> float:
    """From the start of the relays to the last confirmed row."""
    outbox = Outbox(url, table=table)
    engine = create_engine(url)
    outbox.metadata.create_all(engine)
    with engine.begin() as connection:
        for first in range(0, ROWS, 1_000):
            rows = [outbox.row("orders", f"k{number % KEYS}", bytes(100)) for number in range(first, first + 1_000)]
            connection.execute(insert(outbox.table), rows)

    def confirmed() -> int:
        with engine.connect() as connection:
            counted = select(func.count()).select_from(outbox.table).where(outbox.table.c.state == CONFIRMED)
            return connection.execute(counted).scalar_one()

    async def work() -> float:
        own = [OutboxRelay(Outbox(url, table=table), bootstrap_servers=server.bootstrap_servers) for _ in range(relays)]
        began = time.perf_counter()
        for relay in own:
            await relay.start()
        while sum(relay.counts.confirmed for relay in own) < ROWS:
            await asyncio.sleep(0.005)
        took = time.perf_counter() - began
        for relay in own:
            await relay.stop()
        return ROWS / took

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        found = runner.run(work())
    assert confirmed() == ROWS
    engine.dispose()
    return found


def rows() -> list[Row]:
    found = []
    with moldau() as server:
        admin = AdminClient({**QUIET, "bootstrap.servers": server.bootstrap_servers})
        admin.create_topics([NewTopic("orders", 4, 1)])["orders"].result(30)
        databases = {"PostgreSQL": postgresql, "MariaDB": mariadb, "SQLite": sqlite}
        for name, database in databases.items():
            with database() as url:
                best = sorted(measure(url, server, f"outbox_{number}", 1) for number in range(ROUNDS))
                two = measure(url, server, "outbox_two", 2)
            target = "10,000 rows/s" if name == "PostgreSQL" else ""
            found.append(
                Row(f"{name}, one relay", best[ROUNDS // 2], "rows/s", {"two relays, one process": two}, target)
            )
    return found
