"""Data to try the ready pipelines with. The same seed gives the same data, so results can be told in advance.

Each generator is given the cluster, the pipeline's parameters and a number of records; it makes the topics that are
missing, sends the records, and returns what it sent, in words and in numbers.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlalchemy import Engine

START = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
_TIMEOUT_S = 30
_PARTITIONS = 2


def metrics(bootstrap_servers: str, parameters: Mapping[str, str], count: int, seed: int = 1) -> dict[str, Any]:
    """Response times of ten hosts over ten minutes; one of them is slow for two. A few records are broken."""
    rng = random.Random(seed)  # noqa: S311 - test data
    _create_topics(bootstrap_servers, "metrics", "metrics-windows", "metrics-alerts", "metrics-dlt")
    broken = max(1, count // 200)

    def records() -> Iterable[tuple[str, str, bytes]]:
        for index in range(count):
            moment = START + timedelta(seconds=600 * index / count)
            host = f"web-{rng.randrange(10)}"
            slow = host == "web-3" and 240 <= (moment - START).total_seconds() < 360
            value = round(rng.lognormvariate(6.6 if slow else 4.4, 0.4), 3)
            yield "metrics", host, _json(host=host, metric="response_ms", value=value, at=_iso(moment))
        for index in range(broken):
            bad = [b"{broken", _json(host="web-1", metric="response_ms", value="slow", at=_iso(START))]
            yield "metrics", "web-1", bad[index % 2]

    sent = _send(bootstrap_servers, records())
    return {"records": sent, "good": count, "broken": broken, "slow_host": "web-3"}


_MESSAGES = (
    ("INFO", "http", "GET /items/{n} 200 in {m} ms"),
    ("INFO", "auth", "user u{n} logged in from 10.0.{a}.{b}"),
    ("WARN", "cache", "miss for key item:{n}, loading took {m} ms"),
    ("ERROR", "db", "connection to 10.1.0.{b} lost after {m} ms"),
    ("ERROR", "http", "GET /items/{n} 500 in {m} ms"),
)


def logs(bootstrap_servers: str, parameters: Mapping[str, str], count: int, seed: int = 1) -> dict[str, Any]:
    """Lines of five hosts over ten minutes, of five kinds; one host loses its database for ten seconds."""
    rng = random.Random(seed)  # noqa: S311 - test data
    _create_topics(bootstrap_servers, "logs", "log-alerts", "logs-dlt")
    kinds: Counter[str] = Counter()
    burst = 2 * int(parameters.get("burst", "20"))

    def line(moment: datetime, host: str, kind: tuple[str, str, str]) -> bytes:
        level, component, message = kind
        kinds[message] += 1
        text = message.format(
            n=rng.randrange(1, 10_000), m=rng.randrange(1, 900), a=rng.randrange(256), b=rng.randrange(256)
        )
        return f"{_iso(moment)} {host} {level} {component}: {text}".encode()

    def records() -> Iterable[tuple[str, str, bytes]]:
        for index in range(count):
            moment = START + timedelta(seconds=600 * index / count)
            host = f"app-{rng.randrange(5)}"
            yield "logs", host, line(moment, host, rng.choices(_MESSAGES, (60, 20, 15, 2, 3))[0])
        for index in range(burst):
            moment = START + timedelta(seconds=300 + index * 10 / burst)
            yield "logs", "app-2", line(moment, "app-2", _MESSAGES[3])
        yield "logs", "app-0", b"this is not a line of our logs"

    sent = _send(bootstrap_servers, records())
    return {"records": sent, "kinds": dict(kinds), "burst_host": "app-2", "broken": 1}


def enrich(bootstrap_servers: str, parameters: Mapping[str, str], count: int, seed: int = 1) -> dict[str, Any]:
    """A hundred customers, some of them changed once, and their orders; one order in fifty has no known customer."""
    rng = random.Random(seed)  # noqa: S311 - test data
    _create_topics(bootstrap_servers, "orders", "orders-enriched", "enrich-dlt")
    _create_topics(bootstrap_servers, "customers", config={"cleanup.policy": "compact"})
    tiers: dict[int, str] = {}
    totals: Counter[str] = Counter()

    def customers() -> Iterable[tuple[str, str, bytes]]:
        for customer in [*range(100), *range(0, 100, 10)]:
            tiers[customer] = rng.choice(("gold", "silver", "plain"))
            record = _json(
                customer_id=customer,
                name=f"Customer {customer}",
                country=rng.choice(("CZ", "DE", "FR")),
                tier=tiers[customer],
            )
            yield "customers", str(customer), record

    def orders() -> Iterable[tuple[str, str, bytes]]:
        for order in range(count):
            customer = 1000 + order if order % 50 == 49 else rng.randrange(100)
            totals[tiers.get(customer, "unknown")] += 1
            moment = START + timedelta(seconds=600 * order / count)
            record = _json(
                order_id=order, customer_id=customer, amount=rng.randrange(100, 99_999) / 100, at=_iso(moment)
            )
            yield "orders", str(customer), record

    sent = _send(bootstrap_servers, customers()) + _send(bootstrap_servers, orders())
    return {"records": sent, "orders": count, "by_tier": dict(totals)}


def events(bootstrap_servers: str, parameters: Mapping[str, str], count: int, seed: int = 1) -> dict[str, Any]:
    """Clicks over two days; one in twenty is sent twice; halfway the app begins to send a new field."""
    rng = random.Random(seed)  # noqa: S311 - test data
    _create_topics(bootstrap_servers, "events", "events-dlt")
    twice = 0

    def records() -> Iterable[tuple[str, str, bytes]]:
        nonlocal twice
        for number in range(count):
            moment = START + timedelta(seconds=86_400 * number / count)
            user = rng.randrange(1_000)
            more = {} if number < count // 2 else {"device": rng.choice(("phone", "desktop"))}
            kind = rng.choice(("view", "click", "buy"))
            record = _json(
                event_id=f"e-{number}", user_id=user, kind=kind, page=f"/p/{user % 7}", at=_iso(moment), **more
            )
            yield "events", str(user), record
            if number % 20 == 0:
                twice += 1
                yield "events", str(user), record

    sent = _send(bootstrap_servers, records())
    return {"records": sent, "events": count, "duplicates": twice}


def integrate(bootstrap_servers: str, parameters: Mapping[str, str], count: int, seed: int = 1) -> dict[str, Any]:
    """An application's database: customers written, changed and deleted, each change with a row in the outbox."""
    from sqlalchemy import create_engine

    rng = random.Random(seed)  # noqa: S311 - test data
    _create_topics(bootstrap_servers, "outbox.event.customer", "integrate-dlt")
    engine = create_engine(parameters["source_database"])
    truth: dict[int, str] = {}
    changes = []
    for number in range(count):
        customer = rng.randrange(max(1, count // 3))
        deleted = customer in truth and rng.random() < 0.1
        name = f"Name {number}"
        payload = {"customer_id": customer, "name": name, "email": f"c{customer}@example.org", "deleted": deleted}
        if deleted:
            truth.pop(customer)
        else:
            truth[customer] = name
        changes.append((customer, "CustomerDeleted" if deleted else "CustomerChanged", payload))
    _write_outbox(engine, changes)
    engine.dispose()
    return {"changes": count, "customers": len(truth), "names": truth}


def _write_outbox(engine: Engine, changes: list[tuple[int, str, dict[str, Any]]]) -> None:
    import os
    import uuid

    from sqlalchemy import BigInteger, Column, Integer, MetaData, String, Table, Text

    if engine.dialect.name == "sqlite" and engine.url.database:
        os.makedirs(os.path.dirname(os.path.abspath(engine.url.database)), exist_ok=True)
    outbox = Table(
        "outbox",
        MetaData(),
        Column("seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
        Column("id", String(36), nullable=False, unique=True),
        Column("aggregatetype", String(255), nullable=False),
        Column("aggregateid", String(255), nullable=False),
        Column("type", String(255), nullable=False),
        Column("payload", Text, nullable=False),
    )
    outbox.create(engine, checkfirst=True)
    rows = [
        {
            "id": str(uuid.uuid4()),
            "aggregatetype": "customer",
            "aggregateid": str(customer),
            "type": kind,
            "payload": json.dumps(payload),
        }
        for customer, kind, payload in changes
    ]
    with engine.begin() as connection:
        connection.execute(outbox.insert(), rows)


# ---- sending --------------------------------------------------------------------------------------------------------


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _json(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def _create_topics(bootstrap_servers: str, *topics: str, config: dict[str, str] | None = None) -> None:
    from moldau.client.cluster import Cluster
    from moldau.client.settings import parse_client_settings

    with Cluster(parse_client_settings({"bootstrap.servers": bootstrap_servers}), patience_s=_TIMEOUT_S) as cluster:
        cluster.make_topics(topics, _PARTITIONS, config)


def _send(bootstrap_servers: str, records: Iterable[tuple[str, str, bytes]]) -> int:
    from confluent_kafka import Producer

    settings = {"bootstrap.servers": bootstrap_servers, "linger.ms": 5, "partitioner": "murmur2_random", "log_level": 2}
    producer = Producer(settings)
    failures: list[Any] = []

    def delivered(error: Any, _: Any) -> None:
        if error is not None:
            failures.append(error)

    sent = 0
    for topic, key, value in records:
        while True:
            try:
                producer.produce(topic, value, key, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
        sent += 1
        producer.poll(0)
    if producer.flush(_TIMEOUT_S) or failures:
        raise RuntimeError(f"records were not delivered: {failures[0] if failures else 'the cluster does not answer'}")
    return sent
