"""One broker with some records, and one open console before it, for all tests that leave them as they were."""

import json
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from moldau.testing import Broker
from tests.console.support import Client, console, eventually

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
    for number in range(12):
        reason = b"LookupError" if number % 3 else b"ValueError"
        producer.produce(
            "orders-dlt", b'{"id": %d}' % number, b"k",
            headers=[
                ("kafka_dlt-original-topic", b"orders"), ("kafka_dlt-original-partition", bytes(4)),
                ("kafka_dlt-original-offset", number.to_bytes(8, "big")), ("kafka_dlt-exception-fqcn", reason),
                ("kafka_dlt-exception-message", b"<i>out of</i> stock"),
            ],
        )  # fmt: skip
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
    reader = Consumer(
        {"bootstrap.servers": address, "group.id": "readers", "log_level": 0, "enable.auto.commit": False}
    )
    reader.commit(offsets=[TopicPartition("orders", index, 40) for index in range(3)], asynchronous=False)
    reader.close()
