"""Consumer groups with stock clients: assignors, both protocols, static members, takeover, fencing, new partitions."""

import asyncio
import contextlib
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor as AioRoundRobin
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor as AioSticky
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer

from moldau.testing import Broker
from tests.e2e import group_member
from tests.support.clients import (
    PATIENCE_SECONDS,
    Deliveries,
    add_partitions,
    create_topic,
    fresh,
    quiet,
    run,
    take,
    wait_for,
)

PROTOCOLS = {
    "range": {"partition.assignment.strategy": "range"},
    "roundrobin": {"partition.assignment.strategy": "roundrobin"},
    "cooperative-sticky": {"partition.assignment.strategy": "cooperative-sticky"},
    "consumer-uniform": {"group.protocol": "consumer", "group.remote.assignor": "uniform"},
    "consumer-range": {"group.protocol": "consumer", "group.remote.assignor": "range"},
}
# Short timeouts: what a test waits for is a member that is silent, or one that is told at its next heartbeat.
QUICK = {
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "100",
}
every_protocol = pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=PROTOCOLS)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(QUICK) as running:
        yield running


@contextmanager
def consumer(bootstrap: str, group: str, *topics: str, **settings: Any) -> Iterator[Consumer]:
    """A member; leaves the group at the end."""
    defaults = {"auto.offset.reset": "earliest", "topic.metadata.refresh.interval.ms": 200}
    if settings.get("group.protocol") != "consumer":
        defaults |= {"heartbeat.interval.ms": 100, "session.timeout.ms": 6_000}
    made = Consumer({**quiet(bootstrap, group_id=group), **defaults, **settings})
    try:
        if topics:
            made.subscribe(list(topics))
        yield made
    finally:
        made.close()


def fill(bootstrap: str, topic: str, partitions: int, each: int) -> None:
    producer = Producer(quiet(bootstrap))
    report = Deliveries()
    for partition in range(partitions):
        for number in range(each):
            producer.produce(topic, b"%d-%d" % (partition, number), partition=partition, on_delivery=report)
    assert producer.flush(30) == 0
    assert not report.errors


def owned(member: Consumer) -> set[tuple[str, int]]:
    return {(each.topic, each.partition) for each in member.assignment()}


def wait_until_shared(members: Sequence[Consumer], partitions: int, *topics: str) -> list[set[tuple[str, int]]]:
    """Poll until every partition has one owner and all members own equally many; what each owns."""
    everything = {(topic, partition) for topic in topics for partition in range(partitions)}
    share = len(everything) // len(members)

    def shared() -> list[set[tuple[str, int]]] | None:
        for member in members:
            member.poll(0.02)
        shares = [owned(member) for member in members]
        if set().union(*shares) == everything and all(len(each) == share for each in shares):
            return shares
        return None

    found = wait_for(shared, "all partitions are owned once")
    assert found is not None
    return found


@every_protocol
def test_members_share_the_partitions(bootstrap: str, protocol: dict[str, str]) -> None:
    topic, group = create_topic(bootstrap, "shared", 6), fresh("group")
    fill(bootstrap, topic, 6, 5)
    with ExitStack() as stack:
        members = [stack.enter_context(consumer(bootstrap, group, topic, **protocol))]
        wait_until_shared(members, 6, topic)
        for _ in range(2):
            members.append(stack.enter_context(consumer(bootstrap, group, topic, **protocol)))
            wait_until_shared(members, 6, topic)
        with contextlib.suppress(KafkaException):
            members[0].commit(asynchronous=False)
        members.pop(0).close()
        wait_until_shared(members, 6, topic)


@every_protocol
def test_every_record_is_read_and_offsets_are_kept(bootstrap: str, protocol: dict[str, str]) -> None:
    topic, group = create_topic(bootstrap, "read", 3), fresh("group")
    fill(bootstrap, topic, 3, 20)
    with consumer(bootstrap, group, topic, **protocol) as first:
        seen = Counter(message.value() for message in take(first, 60))
        assert set(seen.values()) == {1}
        first.commit(asynchronous=False)
    fill(bootstrap, topic, 3, 1)
    with consumer(bootstrap, group, topic, **protocol) as second:
        assert sorted(message.offset() or 0 for message in take(second, 3)) == [20, 20, 20]
        where = [TopicPartition(topic, index) for index in range(3)]
        assert [each.offset for each in second.committed(where, timeout=10)] == [20, 20, 20]


def test_two_groups_read_everything_each(bootstrap: str) -> None:
    topic = create_topic(bootstrap, "published", 2)
    fill(bootstrap, topic, 2, 10)
    for _ in range(2):
        with consumer(bootstrap, fresh("group"), topic) as member:
            assert len(take(member, 20)) == 20


@every_protocol
def test_new_partitions_are_picked_up(bootstrap: str, protocol: dict[str, str]) -> None:
    topic, group = create_topic(bootstrap, "growing", 2), fresh("group")
    with consumer(bootstrap, group, topic, **protocol) as member:
        wait_until_shared([member], 2, topic)
        add_partitions(bootstrap, topic, 4)
        wait_until_shared([member], 4, topic)


@every_protocol
def test_new_topics_that_match_are_picked_up(bootstrap: str, protocol: dict[str, str]) -> None:
    prefix, group = fresh("pattern"), fresh("group")
    first = create_topic(bootstrap, prefix)
    create_topic(bootstrap, "other")
    with consumer(bootstrap, group, f"^{prefix}.*", **protocol) as member:
        wait_until_shared([member], 1, first)
        second = create_topic(bootstrap, prefix)
        wait_until_shared([member], 1, first, second)


def test_commit_metadata_and_explicit_offsets(bootstrap: str) -> None:
    topic, group = create_topic(bootstrap, "noted"), fresh("group")
    fill(bootstrap, topic, 1, 10)
    with consumer(bootstrap, group) as simple:
        simple.assign([TopicPartition(topic, 0)])
        simple.commit(offsets=[TopicPartition(topic, 0, 4, metadata="half way")], asynchronous=False)
        (found,) = simple.committed([TopicPartition(topic, 0)], timeout=10)
        assert (found.offset, found.metadata) == (4, "half way")
    with consumer(bootstrap, group, topic) as member:
        assert take(member, 1)[0].offset() == 4


def test_a_static_member_comes_back_to_its_partitions(bootstrap: str) -> None:
    topic, group = create_topic(bootstrap, "static", 4), fresh("group")
    rebalances: list[str] = []
    with consumer(bootstrap, group, **{"group.instance.id": "stays", "session.timeout.ms": 20_000}) as stays:
        stays.subscribe(
            [topic],
            on_assign=lambda _, __: rebalances.append("assigned"),
            on_revoke=lambda _, __: rebalances.append("revoked"),
        )
        with consumer(
            bootstrap, group, topic, **{"group.instance.id": "leaves", "session.timeout.ms": 20_000}
        ) as other:
            before = wait_until_shared([stays, other], 4, topic)
        rebalances.clear()
        with consumer(
            bootstrap, group, topic, **{"group.instance.id": "leaves", "session.timeout.ms": 20_000}
        ) as other:
            assert wait_until_shared([stays, other], 4, topic) == before
        assert rebalances == [], "nobody else noticed"


def test_a_second_owner_of_an_instance_id_fences_the_first(bootstrap: str) -> None:
    topic, group = create_topic(bootstrap, "fenced", 2), fresh("group")
    instance = {"group.instance.id": "only-one"}
    with consumer(bootstrap, group, topic, **instance) as first:
        wait_until_shared([first], 2, topic)
        with consumer(bootstrap, group, topic, **instance) as second:
            wait_until_shared([second], 2, topic)

            def is_fenced() -> bool:
                message = first.poll(0.05)
                error = None if message is None else message.error()
                return error is not None and error.code() in (KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID)

            wait_for(is_fenced, "the first is told")
            with pytest.raises(KafkaException):
                first.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)


class Member:
    """`group_member.py` as a process; its lines arrive in a queue."""

    def __init__(self, bootstrap: str, group: str, topic: str, **settings: str) -> None:
        command = [sys.executable, group_member.__file__, bootstrap, group, topic]
        command += [f"{key}={value}" for key, value in settings.items()]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.lines: queue.Queue[str] = queue.Queue()
        self.seen: list[str] = []
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line.strip())

    def until(self, condition: Callable[[str], bool]) -> str:
        """The first line that satisfies it."""
        while True:
            line = self.lines.get(timeout=PATIENCE_SECONDS)
            self.seen.append(line)
            if condition(line):
                return line

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._thread.join()
        if self.process.stdout is not None:
            self.process.stdout.close()


SHORT_SESSION = {
    "classic": {"session.timeout.ms": "2000", "heartbeat.interval.ms": "200"},
    "consumer": {"group.protocol": "consumer"},
}


@pytest.mark.parametrize("settings", SHORT_SESSION.values(), ids=SHORT_SESSION)
def test_killed_and_frozen_consumers_are_replaced(settings: dict[str, str]) -> None:
    """`kill -9` of one of two, then SIGSTOP of one of two: each time the other reads on, from what was committed. The
    frozen one is thrown out, and joins again when it wakes up."""
    with Broker(QUICK | {"group.consumer.session.timeout.ms": "2000"}) as broker:
        address = broker.bootstrap_servers
        topic, group = create_topic(address, "orphaned", 2), fresh("group")
        fill(address, topic, 2, 3)
        one = Member(address, group, topic, **settings)
        try:
            one.until(lambda line: line.startswith("read"))
            two = Member(address, group, topic, **settings)
            try:
                two.until(lambda line: line.startswith("assigned") and len(line.split()) == 2)
                one.process.kill()
                fill(address, topic, 2, 3)
                waited = {"read 0 5", "read 1 5"}
                while waited:
                    waited.discard(two.until(lambda line: line.startswith("read")))
                three = Member(address, group, topic, **settings)
                try:
                    three.until(lambda line: line.startswith("assigned") and len(line.split()) == 2)
                    two.process.send_signal(signal.SIGSTOP)
                    fill(address, topic, 2, 3)
                    waited = {"read 0 8", "read 1 8"}
                    while waited:
                        waited.discard(three.until(lambda line: line.startswith("read")))
                    two.process.send_signal(signal.SIGCONT)
                    two.until(lambda line: line.startswith("assigned") and len(line.split()) == 2)
                finally:
                    three.end()
            finally:
                two.end()
        finally:
            one.end()


def test_a_commit_of_a_former_member_is_refused(bootstrap: str) -> None:
    """It stopped polling, so it was thrown out; what it still wants to commit belongs to somebody else now."""
    topic, group = create_topic(bootstrap, "late", 1), fresh("group")
    fill(bootstrap, topic, 1, 10)
    lazy = {"max.poll.interval.ms": 1_500, "session.timeout.ms": 1_500, "enable.auto.commit": False}
    with consumer(bootstrap, group, topic, **lazy) as slow:
        assert take(slow, 5)[-1].offset() == 4
        with consumer(bootstrap, group, topic, **{"enable.auto.commit": False}) as successor:
            messages = take(successor, 10)
            successor.commit(message=messages[-1], asynchronous=False)
            with pytest.raises(KafkaException) as caught:
                slow.commit(offsets=[TopicPartition(topic, 0, 5)], asynchronous=False)
            assert caught.value.args[0].code() in (
                KafkaError.ILLEGAL_GENERATION,
                KafkaError.UNKNOWN_MEMBER_ID,
                KafkaError._NO_OFFSET,
                KafkaError._STATE,
                KafkaError.REBALANCE_IN_PROGRESS,
            )
            assert successor.committed([TopicPartition(topic, 0)], timeout=10)[0].offset == 10


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_restart_loses_no_offset_and_no_member(tmp_path: Path, protocol: str) -> None:
    data = str(tmp_path / "data")
    with ExitStack() as stack:
        with Broker(data_dir=data) as broker:
            address = broker.bootstrap_servers
            topic, group = create_topic(address, "restarted", 2), fresh("group")
            fill(address, topic, 2, 10)
            member = stack.enter_context(consumer(address, group, topic, **{"group.protocol": protocol}))
            take(member, 20)
            member.commit(asynchronous=False)
            member_id = member.memberid()
        with Broker(data_dir=data, port=int(address.rpartition(":")[2])):
            fill(address, topic, 2, 5)
            assert sorted(message.offset() or 0 for message in take(member, 10)) == sorted([10, 11, 12, 13, 14] * 2)
            assert member.memberid() == member_id
            member.commit(asynchronous=False)
            where = [TopicPartition(topic, index) for index in range(2)]
            assert [each.offset for each in member.committed(where, timeout=10)] == [15, 15]
            stack.close()


def test_kafka_python_members_share_and_take_over(bootstrap: str) -> None:
    topic, group = create_topic(bootstrap, "pythons", 4), fresh("group")
    fill(bootstrap, topic, 4, 10)

    def member() -> Any:
        return KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=100,
            session_timeout_ms=6_000,
        )

    first, second = member(), member()
    seen: set[bytes] = set()

    def shares(*members: Any) -> list[int]:
        for each in members:
            for batch in each.poll(timeout_ms=50).values():
                seen.update(record.value for record in batch)
        return [len(each.assignment()) for each in members]

    try:
        wait_for(lambda: shares(first, second) == [2, 2], "two partitions each")
        second.close()
        wait_for(lambda: shares(first) == [4] and len(seen) == 40, "the first has all, and all is read")
    finally:
        first.close()


@pytest.mark.parametrize("assignor", [AioRoundRobin, AioSticky])
def test_aiokafka_members_share_and_take_over(bootstrap: str, assignor: Any) -> None:
    topic, group = create_topic(bootstrap, "aios", 4), fresh("group")
    fill(bootstrap, topic, 4, 10)

    async def work() -> None:
        def member() -> Any:
            return AIOKafkaConsumer(
                topic,
                bootstrap_servers=bootstrap,
                group_id=group,
                auto_offset_reset="earliest",
                heartbeat_interval_ms=100,
                session_timeout_ms=6_000,
                partition_assignment_strategy=(assignor,),
            )

        seen: set[bytes] = set()

        async def until(condition: Callable[[], bool], *members: Any) -> None:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not condition():
                    for each in members:
                        for batch in (await each.getmany(timeout_ms=20)).values():
                            seen.update(record.value for record in batch)

        async with member() as first:
            async with member() as second:
                await until(lambda: len(first.assignment()) == len(second.assignment()) == 2, first, second)
            await until(lambda: len(first.assignment()) == 4 and len(seen) == 40, first)

    run(work)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_fifty_members_come_and_go_over_two_hundred_partitions(bootstrap: str, protocol: str) -> None:
    """Members join and leave at random while records flow: every record is processed at least once."""
    partitions, records, seconds = 200, 4_000, 8.0
    topic, group = create_topic(bootstrap, "crowded", partitions), fresh("group")
    source = random.Random(50)
    seen: set[bytes] = set()
    everything = {b"%d" % number for number in range(records)}
    done = threading.Event()
    failures: list[BaseException] = []
    joined = Counter[str]()

    def live(lifetime_seconds: float) -> None:
        end = time.monotonic() + lifetime_seconds
        settings: dict[str, Any] = {"enable.auto.commit": False, "group.protocol": protocol}
        if protocol == "classic":
            settings["partition.assignment.strategy"] = "cooperative-sticky"
        try:
            with consumer(bootstrap, group, topic, **settings) as member:
                joined["members"] += 1
                while not done.is_set() and time.monotonic() < end:
                    messages = [each for each in member.consume(100, 0.1) if each.error() is None]
                    if messages:
                        seen.update(value for each in messages if (value := each.value()) is not None)
                        with contextlib.suppress(KafkaException):  # refused in a rebalance: somebody reads them again
                            member.commit(asynchronous=True)
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=live, args=(source.uniform(1, seconds) if number % 5 else 60,)) for number in range(50)
    ]
    producer = Producer(quiet(bootstrap, linger_ms=5))
    report = Deliveries()
    for number in range(records):
        producer.produce(topic, b"%d" % number, partition=number % partitions, on_delivery=report)
        if number % (records // len(threads)) == 0:
            threads[number // (records // len(threads))].start()
        producer.poll(0.001)
    assert producer.flush(30) == 0
    assert not report.errors
    try:
        wait_for(lambda: seen >= everything, "every record is seen", 90)
    except TimeoutError as error:
        left = sorted(int(value) % partitions for value in everything - seen)
        (future,) = AdminClient(quiet(bootstrap)).describe_consumer_groups([group]).values()
        raise AssertionError(
            f"{len(left)} records of partitions {left} are missing; {vars(future.result())}"
        ) from error
    finally:
        done.set()
        for thread in threads:
            if thread.ident is not None:
                thread.join(20)
    assert not failures, failures[:3]
    assert joined["members"] == 50
    print(f"{joined['members']} members, {len(seen)} records")
