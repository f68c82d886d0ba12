"""Sending in three ways, partitions, interceptors, and the spool."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from moldau.testing import Broker
from moldau.testing.ports import free_ports
from moldau.toolkit import (
    Delivery,
    Producer,
    Receipt,
    Record,
    SendFailed,
    SetupError,
    Spool,
    SpoolFull,
    Topic,
    WrongType,
)
from moldau.toolkit.partitioners import by_key
from moldau.toolkit.reading import read_topic
from tests.toolkit.killing import make_topic
from tests.toolkit.waiting import wait_for

Fresh = Callable[[str], str]


@dataclass
class Order:
    id: str
    amount: int


@pytest.fixture
def producer(bootstrap: str) -> Iterator[Producer]:
    made = Producer(bootstrap)
    yield made
    made.close()


def values(bootstrap: str, topic: str) -> list[bytes | None]:
    found = [
        (m.partition() or 0, m.offset() or 0, m.value()) for m in read_topic({"bootstrap.servers": bootstrap}, topic)
    ]
    return [value for _, _, value in sorted(found, key=lambda each: each[:2])]


def test_three_ways(bootstrap: str, fresh: Fresh, producer: Producer) -> None:
    topic = fresh("orders")
    done = threading.Event()
    called: list[Delivery] = []

    def back(delivery: Delivery) -> None:
        called.append(delivery)
        done.set()

    async def awaiting() -> Receipt:
        return await producer.send(topic, "awaited")

    producer.send(topic, "forgotten")
    receipt = asyncio.run(awaiting())
    producer.send(topic, "called").add_done_callback(back)
    assert producer.send(topic, "waited").result(20).offset == 3
    assert done.wait(20)
    assert (receipt.topic, receipt.partition, receipt.offset) == (topic, 0, 1)
    assert called[0].receipt is not None
    assert called[0].error is None
    assert values(bootstrap, topic) == [b"forgotten", b"awaited", b"called", b"waited"]
    wait_for(lambda: producer.counters.acknowledged == 4)
    assert producer.pending == 0


def test_a_declared_topic_takes_its_type_only(fresh: Fresh, producer: Producer) -> None:
    topic = fresh("orders")
    producer.declare(Topic(topic, value=Order, key=str))
    with pytest.raises(WrongType, match=rf"{topic}.*amount"):
        producer.send(topic, Order("x", "much"))  # type: ignore[arg-type]  # the mistake it is about
    with pytest.raises(WrongType, match="expected `Order`, got `dict`"):
        producer.send(topic, {"id": "x"})
    with pytest.raises(WrongType, match="`str`"):
        producer.send(topic, Order("x", 1), key=5)
    assert producer.send(topic, Order("x", 1), key="x").result(20).offset == 0


def test_a_failure_is_told_in_each_way(bootstrap: str, fresh: Fresh) -> None:
    failing = Producer(bootstrap, config={"message.max.bytes": 2_000_000})
    try:
        topic = fresh("orders")
        failing.send(topic, b"x").result(20)
        delivery = failing.send(topic, bytes(1_900_000))  # more than the topic takes
        with pytest.raises(SendFailed, match="larger") as caught:
            delivery.result(20)
        assert caught.value.is_too_large
        assert not caught.value.is_retriable
        with pytest.raises(SendFailed, match="larger"):
            failing.send(topic, bytes(3_000_000))  # more than the producer takes: at the call
        wait_for(lambda: failing.counters.failed == 1)
    finally:
        failing.close()
    with pytest.raises(SendFailed, match="closed"):
        failing.send("t", b"")


@pytest.mark.parametrize("partitioner", ["murmur2", "round-robin", "random", "sticky", "own"])
def test_partitioners(bootstrap: str, fresh: Fresh, partitioner: str) -> None:
    topic = fresh("orders")
    make_topic(bootstrap, topic, 5)
    made = Producer(bootstrap, partitioner=(lambda _t, _k, count: count - 1) if partitioner == "own" else partitioner)
    try:
        keys = [f"key-{number}" for number in range(40)]
        found = [made.send(topic, b"", key=key) for key in keys]
        placed = [delivery.result(20).partition for delivery in found]
        if partitioner == "own":
            assert set(placed) == {4}
        elif partitioner == "round-robin":
            assert sorted(placed) == sorted(list(range(5)) * 8)
        elif partitioner == "random":
            assert len(set(placed)) > 1
        else:
            assert placed == [by_key(topic, key.encode(), 5) for key in keys]
        assert made.send(topic, b"", key="x", partition=3).result(20).partition == 3
    finally:
        made.close()
    with pytest.raises(SetupError, match="one of murmur2"):
        Producer(bootstrap, partitioner="best")


def test_interceptors(bootstrap: str, fresh: Fresh) -> None:
    topic = fresh("orders")
    told: list[Any] = []

    class First:
        def on_send(self, record: Record) -> Record:
            return Record(record.topic, (record.value or b"") + b"!", record.key, record.headers)

        def on_acknowledgement(self, record: Record, receipt: Receipt | None, error: SendFailed | None) -> None:
            told.append((record.value, receipt is not None, error))
            raise ValueError("its own business")

    class Second:
        def on_acknowledgement(self, record: Record, receipt: Receipt | None, error: SendFailed | None) -> None:
            told.append("second")

    made = Producer(bootstrap, interceptors=[First(), Second()])
    made.send(topic, b"x").result(20)
    made.close()
    assert told == [(b"x!", True, None), "second"]
    assert values(bootstrap, topic) == [b"x!"]


def test_the_spool_keeps_order_over_an_outage_and_a_restart(tmp_path: Path) -> None:
    data, path = tmp_path / "data", tmp_path / "orders.spool"
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    alerts: list[str] = []

    def make(timeout_ms: int) -> Producer:
        spool = Spool(path, alert=lambda what, _: alerts.append(what), pause_s=0.05)
        config = {"message.timeout.ms": timeout_ms, "reconnect.backoff.max.ms": 200, "linger.ms": 0}
        return Producer(address, config=config, spool=spool)

    with Broker(data_dir=str(data), port=port):
        zeroth = make(60_000)
        assert not zeroth.send("orders", b"0").result(20).is_spooled
        zeroth.close()
    first = make(500)
    deliveries = [first.send("orders", str(number).encode(), key=b"k") for number in range(1, 6)]
    assert all(delivery.result(20).is_spooled for delivery in deliveries)
    assert first.send("orders", b"6", key=b"k", headers=[("h", None), ("i", b"\x00")]).result(20).is_spooled
    first.close(1)
    assert alerts == ["on"]
    second = make(60_000)
    assert second.send("orders", b"7", key=b"k").result(20).is_spooled
    with Broker(data_dir=str(data), port=port):
        wait_for(lambda: "off" in alerts)
        assert not second.send("orders", b"8", key=b"k").result(20).is_spooled
        second.close()
        found = list(read_topic({"bootstrap.servers": address}, "orders"))
    assert [message.value() for message in found] == [str(number).encode() for number in range(9)]
    headers: Any = found[6].headers()
    assert headers[:2] == [("h", None), ("i", b"\x00")]


def test_the_spool_is_emptied_in_batches_and_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    address, count = f"127.0.0.1:{port}", 1_800
    alerts: list[str] = []
    batches: list[int] = []
    send = Producer.send_past_spool

    def counted(self: Producer, records: Any, closing: threading.Event) -> Any:
        batches.append(len(records))
        return send(self, records, closing)

    monkeypatch.setattr(Producer, "send_past_spool", counted)
    with Broker(data_dir=str(tmp_path / "data"), port=port):
        make_topic(address, "orders", 3)
    config = {"message.timeout.ms": 300, "reconnect.backoff.max.ms": 200, "linger.ms": 0}
    spool = Spool(tmp_path / "spool", alert=lambda what, _: alerts.append(what), pause_s=0.05)
    made = Producer(address, config=config, spool=spool)
    assert made.send("orders", (0).to_bytes(4, "big"), key=b"k").result(40).is_spooled
    for number in range(1, count):
        made.send("orders", number.to_bytes(4, "big"), key=f"k{number % 7}".encode())
    with Broker(data_dir=str(tmp_path / "data"), port=port):
        wait_for(lambda: "off" in alerts)
        made.close()
        found = list(read_topic({"bootstrap.servers": address}, "orders"))
    assert len(found) == count
    by_partition: dict[int, list[int]] = {}
    for message in sorted(found, key=lambda each: each.offset() or 0):
        by_partition.setdefault(message.partition() or 0, []).append(int.from_bytes(message.value() or b"", "big"))
    assert all(numbers == sorted(numbers) for numbers in by_partition.values())
    assert max(batches) > 100


def test_what_the_cluster_refuses_holds_up_nothing_else(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    alerts: list[tuple[str, Any]] = []
    config = {"message.timeout.ms": 300, "reconnect.backoff.max.ms": 200, "message.max.bytes": 3_000_000}
    spool = Spool(tmp_path / "spool", alert=lambda what, more: alerts.append((what, more)), pause_s=0.05)
    made = Producer(f"127.0.0.1:{port}", config=config, spool=spool)
    for value in (b"before", bytes(2_000_000), b"after"):
        assert made.send("orders", value).result(40).is_spooled
    with Broker(data_dir=str(tmp_path / "data"), port=port):
        wait_for(lambda: any(what == "off" for what, _ in alerts))
        assert values(f"127.0.0.1:{port}", "orders") == [b"before", b"after"]
        assert [topic for topic, _ in spool.refused()] == ["orders"]
        made.close()
    assert [what for what, _ in alerts] == ["on", "refused", "off"]


def test_a_full_spool_says_so_and_drops_nothing(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    alerts: list[str] = []
    spool = Spool(tmp_path / "spool", max_bytes=1_000, alert=lambda what, _: alerts.append(what))
    made = Producer(f"127.0.0.1:{port}", config={"message.timeout.ms": 300, "log_level": 0}, spool=spool)
    assert made.send("orders", bytes(100)).result(20).is_spooled
    with pytest.raises(SpoolFull, match="more room"):  # noqa: PT012  one of these
        for _ in range(20):
            made.send("orders", bytes(100))
    assert alerts == ["on", "full"]
    kept = spool.count
    assert 0 < kept < 10
    made.close(0.2)
    again = Spool(tmp_path / "spool", max_bytes=1_000)
    other = Producer(f"127.0.0.1:{port}", config={"log_level": 0}, spool=again)
    assert again.count == kept
    other.close(0.2)


def test_names_of_headers_that_are_no_text_are_refused(bootstrap: str, fresh: Fresh, producer: Producer) -> None:
    """The client (2.16) would end the process."""
    topic = fresh("orders")
    with pytest.raises(ValueError, match="no name of a header"):
        producer.send(topic, "x", headers={"\ud800": b"1"})
    producer.send(topic, "y", headers={"é": b"1"}).result(10)
    assert values(bootstrap, topic) == [b"y"]
