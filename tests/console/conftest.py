"""One broker with some records, and one open console before it, for all tests that leave them as they were."""

import json
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from moldau.testing import Broker
from tests.console.support import Client, commit_orders, console, eventually, send_letters

TOPICS = {"orders": 3, "hostile": 1, "payments": 1, "orders-dlt": 1, "moldau-trace": 2}


@pytest.fixture(scope="session")
def broker() -> Iterator[str]:
    with Broker({"message.max.bytes": "20000000"}) as running:
        _fill(running.bootstrap_servers)
        yield running.bootstrap_servers


@pytest.fixture(scope="session")
def client(broker: str) -> Iterator[Client]:
    with console(broker) as opened:
        eventually(lambda: "readers" in opened.house.snapshot.groups, "the console sees the group")
        yield opened


def _fill(address: str) -> None:
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    for made in admin.create_topics([NewTopic(name, count, 1) for name, count in TOPICS.items()]).values():
        made.result(20)
    producer = Producer({"bootstrap.servers": address, "log_level": 0, "message.max.bytes": 20_000_000})
    for number in range(300):
        order = {
            "id": number,
            "customer": {"name": f"person {number % 7}", "iban": f"DE{number:020d}"},
            "total": number * 1.5,
        }
        producer.produce(
            "orders", json.dumps(order), f"c-{number % 10}", number % 3, timestamp=1_000_000 + number,
            headers=[("trace", b"t%d" % number)],
        )  # fmt: skip
    reasons = [b"LookupError" if number % 3 else b"ValueError" for number in range(12)]
    send_letters(producer, reasons, b"<i>out of</i> stock", b"k")
    hostile: list[tuple[bytes | None, bytes | None]] = [
        (b"<b>key</b>", b"<script>alert(1)</script>"),
        (b"\xc3\x28", b"\xff\xfe\x00\x01"),
        ("k\u202e".encode(), "safe \u202e exe.gnp".encode()),
        (None, None),
        (b"big", b"y" * 10_000_000),
        (b"deep", b"[" * 100_000 + b"]" * 100_000),
    ]
    for key, value in hostile:
        producer.produce("hostile", value, key, headers=[("<i>n</i>", b"<svg onload=alert(3)>")])
    producer.flush(30)
    commit_orders(address, "readers", 40)
