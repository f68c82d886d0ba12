"""Members that come, go and are killed, and partitions that come later: nothing is lost."""

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from moldau.toolkit import App, Message
from moldau.toolkit.consuming import ConsumerThread
from tests.toolkit.killing import Killing, Line, judge, make_topic, run_killing
from tests.toolkit.waiting import until

Fresh = Callable[[str], str]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("failing", [False, True])
def test_killed_members_lose_nothing(bootstrap: str, fresh: Fresh, tmp_path: Path, failing: bool) -> None:
    """A few kills, at random and between steps; `tests/interop` has hundreds of them."""
    steps = ["retry acknowledged"] if failing else ["commit acknowledged"]
    kills = 0 if failing else 2  # retries take their time
    topic = fresh("numbers")
    killing = run_killing(bootstrap, topic, topic, tmp_path, kills=kills, steps=steps, failing=failing, seed=5)
    counts = judge(killing, is_ordered=not failing)
    assert killing.killed == kills + 1
    assert counts["dying"] == kills + 1
    assert counts["commit"] > 0


def journal(*lines: str) -> Killing:
    found = Killing("", "", "", Path(), failing=False)
    for at_ns, text in enumerate(lines):
        member, kind, *words = text.split()
        found.lines.append(Line(at_ns, member, kind, words))
    found.sent = len({line.words[1] for line in found.lines if line.kind == "ended"})
    return found


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["a began k1 1 t 0 5", "a ended k1 1 t 0 5", "a commit t 0 6 -", "b began k1 1 t 0 5"], "again"),
        (["a began k1 1 t 0 5", "a ended k1 1 t 0 5", "a commit t 0 3 5-6", "b began k1 1 t 0 5"], "again"),
        (["a began k1 41 t 0 6"], "before the one before"),
        (["a began k1 1 t 0 5", "b began k1 1 t 0 5"], "same key"),
    ],
)
def test_the_judge_sees_what_must_not_be(lines: list[str], says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        judge(journal(*lines), is_ordered=True)


def test_the_judge_allows_what_may_be() -> None:
    repeated = ["a began k1 1 t 0 5", "a dying", "b began k1 1 t 0 5", "b ended k1 1 t 0 5", "b commit t 0 6 -"]
    late = ["c began k1 1 t 0 5", "c broke k1 1 t 0 5", "c lost t:0"]  # its partition was gone, and it knew later
    judge(journal(*repeated, *late), is_ordered=True)


def test_a_stop_while_the_group_rebalances_commits_all_the_same(
    bootstrap: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the members' joining and their assignment a group refuses commits: that was what a storm of rebalances
    showed now and then, as records that were handled twice."""
    topic, group = fresh("numbers"), fresh("group")
    make_topic(bootstrap, topic, 1)
    seen: list[int] = []
    refusals = iter((KafkaError.REBALANCE_IN_PROGRESS, KafkaError.ILLEGAL_GENERATION))
    plain_commit = ConsumerThread._commit

    def commit(thread: ConsumerThread, offsets: Mapping[tuple[str, int], tuple[int, str]]) -> None:
        if (code := next(refusals, None)) is not None:
            raise KafkaException(KafkaError(code))
        plain_commit(thread, offsets)

    async def main() -> None:
        app = App(group, bootstrap_servers=bootstrap, auto_offset_reset="earliest", commit_every="1h")

        @app.handler(topic)
        async def handle(number: int) -> None:
            seen.append(number)

        await app.start()
        for number in range(10):
            await app.send(topic, number)
        await until(lambda: len(seen) == 10)
        monkeypatch.setattr(ConsumerThread, "_commit", commit)
        await app.stop()

    asyncio.run(main())
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    (found,) = reader.committed([TopicPartition(topic, 0)], timeout=30)
    reader.close()
    assert found.offset == 10
    assert next(refusals, None) is None


@pytest.mark.timeout(90)
@pytest.mark.parametrize("strategy", ["cooperative-sticky", "range"])
def test_a_second_member_takes_over_in_the_middle(bootstrap: str, fresh: Fresh, strategy: str) -> None:
    """What ran when its partition left is given a moment, then dropped; what is finished is committed first."""
    topic, group = fresh("numbers"), fresh("group")
    make_topic(bootstrap, topic, 4)
    done: list[tuple[str, int]] = []
    lost: list[object] = []

    def member(name: str) -> App:
        app = App(
            group,
            bootstrap_servers=bootstrap,
            auto_offset_reset="earliest",
            commit_every="20ms",
            revoke_within="20s",
            consumer={"partition.assignment.strategy": strategy, "heartbeat.interval.ms": 200},
        )
        app.on_lost(lost.append)

        @app.handler(topic, workers=8)
        async def handle(number: int, message: Message) -> None:
            await asyncio.sleep(0.005)
            done.append((name, number))

        return app

    async def main() -> None:
        first, second = member("first"), member("second")
        await first.start()
        numbers = itertools.count()

        def send(count: int) -> None:
            for number in itertools.islice(numbers, count):
                first.send(topic, number, key=f"k{number % 50}")

        send(200)
        await until(lambda: len(done) > 100)
        await second.start()
        while not any(name == "second" for name, _ in done):
            send(20)  # there is always something in work when the partitions move
            await asyncio.sleep(0.01)
        send(200)
        total = next(numbers)
        await until(lambda: len({number for _, number in done}) == total)
        await first.stop()
        await second.stop()
        assert not lost
        assert sorted(number for _, number in done) == list(range(total)), "handed over, nothing is done twice"

    asyncio.run(main())


@pytest.mark.timeout(90)
def test_a_handler_may_take_longer_than_the_poll_interval(bootstrap: str, fresh: Fresh) -> None:
    """aiokafka#848: a long handler left the group, and went on in a loop of UnknownMemberId."""
    topic, group = fresh("numbers"), fresh("group")
    make_topic(bootstrap, topic, 1)
    events: list[object] = []
    app = App(
        group,
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        consumer={"max.poll.interval.ms": 6_000, "session.timeout.ms": 6_000, "heartbeat.interval.ms": 300},
    )
    app.on_lost(lambda wheres: events.append(("lost", wheres)))
    app.on_assigned(lambda wheres: events.append("assigned"))

    @app.handler(topic)
    async def handle(number: int) -> None:
        if number == 0:
            await asyncio.sleep(7)
        else:
            time.sleep(7)  # even one that blocks the loop
        events.append(number)

    async def main() -> None:
        await app.start()
        for number in range(2):
            await app.send(topic, number)
        await until(lambda: 1 in events)
        await app.stop()
        assert events == ["assigned", 0, 1]

    asyncio.run(main())


def plain_loses_what_ours_reads(bootstrap: str, topic: str, group: str) -> tuple[list[int], list[int]]:
    """A plain consumer and an app, both with `latest`, and a partition made and filled before they hear of it."""
    make_topic(bootstrap, topic, 1)
    settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "log_level": 0}
    # By itself it would hear of the partition within five minutes: any time after the records came.
    plain = Consumer(
        {**settings, "group.id": f"{group}-plain", "auto.offset.reset": "latest", "enable.auto.commit": False}
    )
    plain.subscribe([topic])
    ours: list[int] = []
    theirs: list[int] = []
    slow = {"topic.metadata.refresh.interval.ms": 2_000}
    app = App(group, bootstrap_servers=bootstrap, consumer=slow, commit_every="50ms")

    @app.handler(topic)
    async def handle(number: int) -> None:
        ours.append(number)

    def poll_plain() -> None:
        message = plain.poll(0.05)
        if message is not None and message.error() is None:
            theirs.append(int.from_bytes(message.value() or b"", "big"))

    async def main() -> None:
        producer = Producer(settings)
        producer.produce(topic, (0).to_bytes(8, "big"))  # older than the group
        producer.flush(10)
        await app.start()
        await until(lambda: app.groups[0].assignment)
        while not plain.assignment():
            await asyncio.to_thread(poll_plain)
        number = 1
        while 1 not in theirs or 1 not in ours:
            producer.produce(topic, number.to_bytes(8, "big"))
            producer.flush(10)
            await asyncio.to_thread(poll_plain)
            number = 1
        admin = AdminClient(settings)
        for future in admin.create_partitions([NewPartitions(topic, 2)]).values():
            future.result(10)
        fresh_producer = Producer(settings)
        for number in range(100, 110):
            fresh_producer.produce(topic, number.to_bytes(8, "big"), partition=1)
        assert fresh_producer.flush(20) == 0
        await until(lambda: set(range(100, 110)) <= set(ours))
        plain.subscribe([topic])  # it looks again, now and not in some minutes
        while len(plain.assignment()) < 2:
            await asyncio.to_thread(poll_plain)
        while 999 not in theirs:  # what came before this was lost, or would have been read by now
            fresh_producer.produce(topic, (999).to_bytes(8, "big"), partition=1)
            fresh_producer.flush(10)
            await asyncio.to_thread(poll_plain)
        await app.stop()

    asyncio.run(main())
    plain.close()
    return theirs, ours


@pytest.mark.timeout(90)
def test_new_partitions_lose_nothing(bootstrap: str, fresh: Fresh) -> None:
    """The notes' opening question (C5)."""
    theirs, ours = plain_loses_what_ours_reads(bootstrap, fresh("numbers"), fresh("group"))
    assert 0 not in ours, "what is older than the group is not read"
    assert not set(theirs) & set(range(100, 110)), "a plain client loses them; if not, this test shows nothing"
    assert [number for number in ours if 100 <= number < 110] == list(range(100, 110))


def test_positions_after_restarts(bootstrap: str, fresh: Fresh) -> None:
    """An idle partition that is as old as the group is not taken for a new one."""
    topic, group = fresh("numbers"), fresh("group")
    make_topic(bootstrap, topic, 2)
    seen: list[int] = []

    def member() -> App:
        app = App(group, bootstrap_servers=bootstrap, commit_every="20ms")

        @app.handler(topic)
        async def handle(number: int) -> None:
            seen.append(number)

        return app

    async def main() -> None:
        producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
        producer.produce(topic, (1).to_bytes(8, "big"), partition=1)
        producer.flush(10)
        first = member()
        await first.start()
        await until(lambda: len(first.groups[0].assignment) == 2)
        await first.send(topic, 2, partition=0)
        await until(lambda: seen == [2])
        await first.stop()
        await asyncio.to_thread(producer.produce, topic, (3).to_bytes(8, "big"), partition=1)
        producer.flush(10)
        second = member()
        await second.start()
        await until(lambda: len(seen) == 2)
        await second.stop()
        assert seen == [2, 3]

    asyncio.run(main())
