"""`txn hanging` and `txn abort`: transactions that no coordinator will end, and those that only look like it."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from moldau.testing import Broker
from tests.cli.running import Command
from tests.support.clients import fresh, wait_for
from tests.support.stray_batches import UNVERIFIED, write_stray_batch


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({**UNVERIFIED, "auto.create.topics.enable": "false"}) as running:
        yield running


@pytest.fixture
def topic(moldau: Command) -> str:
    name = fresh("stuck")
    moldau.ok("topic", "create", name)
    return name


def hanging(moldau: Command, *topics: str) -> list[tuple[str, int]]:
    ended = moldau("txn", "hanging", *topics, "--older-than", "0", "--json")
    assert ended.code == (6 if ended.json else 0)
    return [(row["topic"], row["start_offset"]) for row in ended.json]


def begun(moldau: Command, topic: str, name: str) -> tuple[Producer, int, int]:
    """A transaction that writes to a topic; its producer's id and epoch."""
    producer = Producer({"bootstrap.servers": moldau.bootstrap_servers, "transactional.id": name})
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(topic, b"mine")
    assert producer.flush(10) == 0
    found = moldau.ok("txn", "describe", name, "--json").json
    return producer, found["producer_id"], found["producer_epoch"]


def test_one_of_a_producer_nobody_knows_is_found_and_aborted(moldau: Command, topic: str) -> None:
    moldau.ok("produce", topic, stdin="before")
    start = write_stray_batch(moldau.bootstrap_servers, topic, 4711, minutes_ago=20)
    moldau.ok("produce", topic, stdin="after")
    assert moldau.ok("consume", topic, "-a", "-e").lines == ["before"], "readers stand still"
    ended = moldau("txn", "hanging", topic, "--json")
    assert ended.code == 6, "older than 15 minutes, which nobody had to say"
    (row,) = ended.json
    assert (row["producer_id"], row["producer_epoch"], row["start_offset"]) == (4711, 0, start)
    assert hanging(moldau) == [(topic, start)], "found without a topic named"
    assert moldau("txn", "hanging", "--broker", "1", "--older-than", "0").code == 6
    assert "there is no broker 9" in moldau.refused(4, "txn", "hanging", "--broker", "9")
    ended = moldau.ok("txn", "abort", topic, "-p", "0", "--start-offset", str(start))
    assert ended.out == f"aborted the transaction of {topic}-0 from {start}\n"
    assert moldau.ok("consume", topic, "-a", "-e").lines == ["before", "after"]
    assert hanging(moldau, topic) == []
    assert "begins at 1" in moldau.refused(4, "txn", "abort", topic, "-p", "0", "--start-offset", str(start))


def test_a_young_one_is_given_time(moldau: Command, topic: str) -> None:
    start = write_stray_batch(moldau.bootstrap_servers, topic, 4712)
    assert moldau.ok("txn", "hanging", topic).err == "none hang\n"
    moldau.ok("txn", "abort", topic, "-p", "0", "--start-offset", str(start))


def test_a_producer_that_is_busy_elsewhere_can_hang_here(moldau: Command, topic: str) -> None:
    elsewhere = fresh("elsewhere")
    moldau.ok("topic", "create", elsewhere)
    producer, producer_id, epoch = begun(moldau, elsewhere, fresh("busy"))
    start = write_stray_batch(moldau.bootstrap_servers, topic, producer_id, epoch=epoch)
    assert hanging(moldau, topic, elsewhere) == [(topic, start)], "its coordinator knows one of the two partitions"
    moldau.ok("txn", "abort", topic, "-p", "0", "--start-offset", str(start))
    assert hanging(moldau, topic, elsewhere) == []
    producer.commit_transaction(10)
    assert moldau.ok("consume", elsewhere, "-a", "-e").lines == ["mine"], "the other partition was left alone"


def test_what_arrives_after_the_end_hangs(moldau: Command, topic: str) -> None:
    name = fresh("late")
    producer, producer_id, _ = begun(moldau, topic, name)
    producer.commit_transaction(10)
    wait_for(lambda: moldau.ok("txn", "describe", name, "--json").json["state"] == "CompleteCommit", "the markers")
    (row,) = moldau.ok("txn", "producers", topic, "--json").json
    start = write_stray_batch(
        moldau.bootstrap_servers, topic, producer_id, epoch=row["producer_epoch"], sequence=row["last_sequence"] + 1
    )
    assert hanging(moldau, topic) == [(topic, start)]
    moldau.ok("txn", "abort", topic, "-p", "0", "--start-offset", str(start))
    assert moldau.ok("consume", topic, "-a", "-e").lines == ["mine"]


def test_one_that_its_coordinator_knows_is_not_aborted_by_mistake(moldau: Command, topic: str) -> None:
    name = fresh("open")
    producer, _, _ = begun(moldau, topic, name)
    assert hanging(moldau, topic) == []
    said = moldau.refused(1, "txn", "abort", topic, "-p", "0", "--start-offset", "0")
    assert f"`moldau txn terminate {name}`" in said
    (row,) = moldau.ok("txn", "producers", topic, "--json").json
    assert row["open_since_offset"] == 0, "nothing was done"
    moldau.ok("txn", "abort", topic, "-p", "0", "--start-offset", "0", "--force")
    (row,) = moldau.ok("txn", "producers", topic, "--json").json
    assert row["open_since_offset"] is None
    producer.abort_transaction(10)
