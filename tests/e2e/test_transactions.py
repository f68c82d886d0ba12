"""Transactions with stock clients: atomic, isolated, fenced, timed out; and exactly once through crashes."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from kafka import KafkaAdminClient, KafkaProducer

from moldau.testing import Broker
from tests.e2e import transform
from tests.support.broker_process import BrokerProcess
from tests.support.clients import (
    CONFLUENT,
    Sent,
    create_topic,
    fresh,
    quiet,
    read_all,
    run,
    wait_for,
)

SECONDS = 40
COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}) as running:
        yield running


def transactional(bootstrap: str, identity: str | None = None, **settings: Any) -> Producer:
    """Ready to begin."""
    producer = Producer(quiet(bootstrap, transactional_id=identity or fresh("tx"), linger_ms=0, **settings))
    producer.init_transactions(SECONDS)
    return producer


def send(producer: Producer, topic: str, *values: bytes, partition: int = 0) -> None:
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(SECONDS) == 0


def values(bootstrap: str, topic: str, isolation: str = COMMITTED, partitions: int = 1) -> list[bytes | None]:
    return [message.value() for message in read_all(bootstrap, topic, partitions, isolation)]


def test_a_commit_shows_everything_and_an_abort_nothing(bootstrap: str) -> None:
    one, two = create_topic(bootstrap, "one", 2), create_topic(bootstrap, "two")
    producer = transactional(bootstrap)
    producer.begin_transaction()
    send(producer, one, b"a", b"b")
    send(producer, one, b"c", partition=1)
    send(producer, two, b"d")
    assert values(bootstrap, one, COMMITTED, 2) == []
    assert values(bootstrap, one, UNCOMMITTED, 2) == [b"a", b"b", b"c"]
    producer.commit_transaction(SECONDS)
    assert values(bootstrap, one, COMMITTED, 2) == [b"a", b"b", b"c"]
    assert values(bootstrap, two) == [b"d"]
    producer.begin_transaction()
    send(producer, one, b"lost")
    send(producer, two, b"lost too")
    producer.abort_transaction(SECONDS)
    producer.begin_transaction()
    send(producer, one, b"kept")
    producer.commit_transaction(SECONDS)
    assert values(bootstrap, one, COMMITTED, 2) == [b"a", b"b", b"kept", b"c"]
    assert values(bootstrap, one, UNCOMMITTED, 2) == [b"a", b"b", b"lost", b"kept", b"c"]
    assert values(bootstrap, two) == [b"d"]


def test_an_open_transaction_holds_back_what_follows_it(bootstrap: str) -> None:
    topic = create_topic(bootstrap, "held")
    CONFLUENT.send(bootstrap, topic, [Sent(b"before")], "none")
    producer = transactional(bootstrap)
    producer.begin_transaction()
    send(producer, topic, b"inside")
    CONFLUENT.send(bootstrap, topic, [Sent(b"after")], "none")
    assert values(bootstrap, topic) == [b"before"]
    assert values(bootstrap, topic, UNCOMMITTED) == [b"before", b"inside", b"after"]
    admin = AdminClient(quiet(bootstrap))
    where, latest = TopicPartition(topic, 0), OffsetSpec.latest()  # type: ignore[no-untyped-call]  # has no types
    stable = admin.list_offsets({where: latest}, isolation_level=IsolationLevel.READ_COMMITTED)[where].result(20)
    assert stable.offset == 1
    producer.commit_transaction(SECONDS)
    assert values(bootstrap, topic) == [b"before", b"inside", b"after"]


def test_interleaved_transactions_end_on_their_own(bootstrap: str) -> None:
    topic = create_topic(bootstrap, "interleaved")
    first, second = transactional(bootstrap), transactional(bootstrap)
    for producer in (first, second):
        producer.begin_transaction()
    for number in range(5):
        send(first, topic, b"first %d" % number)
        send(second, topic, b"second %d" % number)
    second.commit_transaction(SECONDS)
    assert values(bootstrap, topic) == []
    first.abort_transaction(SECONDS)
    assert values(bootstrap, topic) == [b"second %d" % number for number in range(5)]


def test_a_zombie_is_fenced(bootstrap: str) -> None:
    topic, identity = create_topic(bootstrap, "fenced"), fresh("tx")
    zombie = transactional(bootstrap, identity)
    zombie.begin_transaction()
    send(zombie, topic, b"of the zombie")
    successor = transactional(bootstrap, identity)  # aborts what was open
    zombie.produce(topic, b"too late")
    with pytest.raises(KafkaException) as caught:
        zombie.commit_transaction(SECONDS)
    assert caught.value.args[0].fatal()
    assert caught.value.args[0].code() == KafkaError._FENCED
    successor.begin_transaction()
    send(successor, topic, b"of the successor")
    successor.commit_transaction(SECONDS)
    assert values(bootstrap, topic) == [b"of the successor"]


def test_a_forgotten_transaction_is_aborted(bootstrap: str) -> None:
    topic = create_topic(bootstrap, "forgotten")
    producer = transactional(bootstrap, transaction_timeout_ms=1_000, socket_timeout_ms=1_000)
    producer.begin_transaction()
    send(producer, topic, b"never committed")
    CONFLUENT.send(bootstrap, topic, [Sent(b"behind it")], "none")
    wait_for(lambda: values(bootstrap, topic) == [b"behind it"], "the coordinator aborts it")
    with pytest.raises(KafkaException):
        producer.commit_transaction(SECONDS)
    assert values(bootstrap, topic) == [b"behind it"]


def test_a_transaction_may_not_be_longer_than_the_broker_allows(bootstrap: str) -> None:
    producer = Producer(quiet(bootstrap, transactional_id=fresh("tx"), transaction_timeout_ms=1_000_000))
    with pytest.raises(KafkaException) as caught:
        producer.init_transactions(SECONDS)
    assert caught.value.args[0].code() == KafkaError.INVALID_TRANSACTION_TIMEOUT


@pytest.mark.parametrize("ending", ["commit", "abort"])
def test_offsets_go_with_the_transaction(bootstrap: str, ending: str) -> None:
    source, target, group = create_topic(bootstrap, "in"), create_topic(bootstrap, "out"), fresh("group")
    CONFLUENT.send(bootstrap, source, [Sent(b"%d" % n) for n in range(5)], "none")
    consumer = Consumer(quiet(bootstrap, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False))
    try:
        consumer.subscribe([source])
        wait_for(lambda: consumer.poll(0.1), "a record")
        producer = transactional(bootstrap)
        producer.begin_transaction()
        send(producer, target, b"result")
        offsets = [TopicPartition(source, 0, 3, metadata="in a transaction")]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), SECONDS)
        if ending == "commit":
            producer.commit_transaction(SECONDS)
        else:
            producer.abort_transaction(SECONDS)
        (found,) = consumer.committed([TopicPartition(source, 0)], timeout=SECONDS)
        assert found.offset == (3 if ending == "commit" else -1001)
        assert values(bootstrap, target) == ([b"result"] if ending == "commit" else [])
    finally:
        consumer.close()


def test_offsets_of_one_who_is_no_member_are_refused(bootstrap: str) -> None:
    source, group = create_topic(bootstrap, "in"), fresh("group")
    consumer = Consumer(quiet(bootstrap, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False))
    consumer.subscribe([source])
    wait_for(lambda: (consumer.poll(0.05), consumer.assignment())[1], "it is a member")
    membership = consumer.consumer_group_metadata()
    consumer.close()
    producer = transactional(bootstrap)
    producer.begin_transaction()
    with pytest.raises(KafkaException) as caught:
        producer.send_offsets_to_transaction([TopicPartition(source, 0, 3)], membership, SECONDS)
    assert caught.value.args[0].code() in (KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID)
    producer.abort_transaction(SECONDS)


def test_transactions_of_kafka_python(bootstrap: str) -> None:
    topic, identity = create_topic(bootstrap, "python"), fresh("tx")
    producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=identity)
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"kept").get(SECONDS)
        described = admin.describe_transactions([identity])
        assert "ongoing" in str(described).lower()
        assert identity in str(admin.list_transactions())
        producer.commit_transaction()
        producer.begin_transaction()
        producer.send(topic, b"lost").get(SECONDS)
        producer.abort_transaction()
    finally:
        producer.close()
        admin.close()
    assert values(bootstrap, topic) == [b"kept"]
    assert values(bootstrap, topic, UNCOMMITTED) == [b"kept", b"lost"]


def test_transactions_of_aiokafka(bootstrap: str) -> None:
    topic = create_topic(bootstrap, "aio")

    async def work() -> None:
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=fresh("tx")) as producer:
            async with producer.transaction():
                await producer.send_and_wait(topic, b"kept")
            with contextlib.suppress(ZeroDivisionError):
                async with producer.transaction():
                    await producer.send_and_wait(topic, b"lost")
                    raise ZeroDivisionError  # aborts

    run(work)
    assert values(bootstrap, topic) == [b"kept"]
    assert values(bootstrap, topic, UNCOMMITTED) == [b"kept", b"lost"]


def test_a_transaction_survives_a_broker_that_dies(tmp_path: Path) -> None:
    """`kill -9` with one transaction open and one committed: the open one goes on, the ended one stays ended."""
    with BrokerProcess(tmp_path / "data") as broker:
        address = broker.bootstrap_servers
        topic = create_topic(address, "durable")
        done, going = transactional(address), transactional(address)
        done.begin_transaction()
        send(done, topic, b"committed")
        done.commit_transaction(SECONDS)
        done.begin_transaction()
        send(done, topic, b"aborted")
        done.abort_transaction(SECONDS)
        going.begin_transaction()
        send(going, topic, b"first half")
        broker.kill()
        broker.start()
        assert values(address, topic) == [b"committed"]
        send(going, topic, b"second half")
        going.commit_transaction(SECONDS)
        assert values(address, topic) == [b"committed", b"first half", b"second half"]


@pytest.mark.parametrize("point", transform.CRASH_POINTS)
def test_consume_transform_produce_is_exactly_once_through_a_crash(bootstrap: str, point: str) -> None:
    """The process dies at this point in its second batch; its successor has the same identity and finishes the work."""
    source, target, group = create_topic(bootstrap, "in", 2), create_topic(bootstrap, "out", 2), fresh("group")
    producer = Producer(quiet(bootstrap))
    for number in range(30):
        producer.produce(source, b"%d" % number, partition=number % 2)
    assert producer.flush(SECONDS) == 0
    identity = fresh("mover")
    arguments = [sys.executable, transform.__file__, bootstrap, group, source, target, identity]
    batches = "0" if point == "after-init" else "1"
    crashed = subprocess.run([*arguments, point, batches], capture_output=True, timeout=SECONDS, check=False)
    assert crashed.returncode == -signal.SIGKILL, crashed.stderr.decode()
    assert len(values(bootstrap, target, COMMITTED, 2)) < 30
    finished = subprocess.run([*arguments, "never", "0"], capture_output=True, timeout=SECONDS, check=False)
    assert finished.returncode == 0, finished.stderr.decode()
    expected = [b"%d!" % number for number in (*range(0, 30, 2), *range(1, 30, 2))]
    assert values(bootstrap, target, COMMITTED, 2) == expected
