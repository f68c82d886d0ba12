"""Which offsets make a micro-batch: limits, restarts, new partitions and topics, lost ones; as Spark would ask."""

import json
import pickle
import select
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, ReadMinRows

from moldau.client.cluster import UnknownTopic
from moldau.client.connection import Connection
from moldau.spark import stream_source
from moldau.spark.options import OptionError
from moldau.spark.ranges import DataLost
from moldau.spark.stream_source import StreamReader, share
from moldau.testing import Broker
from moldau.toolkit.lag import LagMonitor
from tests.spark.reading import rows, send, stream_reader, values
from tests.support.clients import Sent, add_partitions, admin, create_topic, fresh, quiet, send_confluent, wait_for

Offsets = dict[str, Any]
EVERYTHING = ReadAllAvailable()


@pytest.fixture(autouse=True)
def _ask_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is remembered between two questions, so tests need not wait."""
    monkeypatch.setattr(stream_source, "_LATEST_AGE_SECONDS_MAX", 0)


ReaderOf = Callable[..., StreamReader]


@pytest.fixture
def reader_of(bootstrap: str) -> Iterator[ReaderOf]:
    """Makes readers that start at the beginning unless told otherwise, and stops them."""
    made: list[StreamReader] = []

    def make(**options: Any) -> StreamReader:
        defaults = {"startingOffsets": "earliest", "partition.metadata.cache.ttl.ms": -1}
        made.append(stream_reader(bootstrap, **(defaults | options)))
        return made[-1]

    yield make
    for reader in made:
        reader.stop()


def batch(reader: StreamReader, start: Offsets, limit: ReadLimit | None = None) -> tuple[Offsets, list[bytes | None]]:
    """The next micro-batch after `start`: its end and its values."""
    end = reader.latestOffset(start, limit or reader.getDefaultReadLimit())
    return end, values(rows(reader, reader.partitions(start, end)))


def delete_topic(bootstrap: str, topic: str) -> None:
    client = admin(bootstrap)
    (future,) = client.delete_topics([topic]).values()
    future.result(30)


def test_batches_follow_each_other(reader_of: ReaderOf, bootstrap: str) -> None:
    topic = create_topic(bootstrap)
    send(bootstrap, topic, 3)
    reader = reader_of(subscribe=topic)
    start = reader.initialOffset()
    assert start == {topic: {"0": 0}}
    first, found = batch(reader, start)
    assert found == [b"v0", b"v1", b"v2"]
    assert reader.latestOffset(first, EVERYTHING) == first, "nothing new: the very same text"
    assert reader.partitions(first, first) == []
    send(bootstrap, topic, 2, first=3)
    second, found = batch(reader, first)
    assert (second, found) == ({topic: {"0": 5}}, [b"v3", b"v4"])
    assert reader.reportLatestOffset() == second


def test_offsets_are_sorted_by_number_whatever_the_order_of_answers(reader_of: ReaderOf, bootstrap: str) -> None:
    topic = create_topic(bootstrap, partitions=12)
    reader = reader_of(subscribe=topic)
    assert list(reader.initialOffset()[topic]) == [str(index) for index in range(12)]


def test_latest_is_decided_once_and_survives_a_restart_before_the_first_commit(
    reader_of: ReaderOf, bootstrap: str
) -> None:
    """Spark asks for the start twice, and again after a restart; the first batch ends where it starts."""
    topic = create_topic(bootstrap)
    send(bootstrap, topic, 3)
    reader = reader_of(subscribe=topic, startingOffsets="latest")
    start = reader.initialOffset()
    send(bootstrap, topic, 2, first=3)
    end = reader.latestOffset(start, EVERYTHING)
    send(bootstrap, topic, 2, first=5)
    assert reader.initialOffset() == start
    restarted = reader_of(subscribe=topic, startingOffsets="latest")
    later = restarted.initialOffset()
    assert later == {topic: {"0": 7}}
    assert end == {topic: {"0": 3}}, "what Spark's own source can read too"
    assert restarted.partitions(later, end) == []
    assert batch(restarted, end) == ({topic: {"0": 7}}, [b"v3", b"v4", b"v5", b"v6"])


def test_an_empty_first_batch_remembers_its_start_too(reader_of: ReaderOf, bootstrap: str) -> None:
    """Spark runs and stores one although nothing is new; after a failure in it, "latest" has moved on."""
    topic = create_topic(bootstrap)
    reader = reader_of(subscribe=topic, startingOffsets="latest")
    start = reader.initialOffset()
    end = reader.latestOffset(start, EVERYTHING)
    send(bootstrap, topic, 2)
    restarted = reader_of(subscribe=topic, startingOffsets="latest")
    assert restarted.partitions(restarted.initialOffset(), end) == []
    assert batch(restarted, end) == ({topic: {"0": 2}}, [b"v0", b"v1"])


def test_a_pattern_that_matched_nothing_at_first_starts_at_the_beginning_of_what_comes(
    reader_of: ReaderOf, bootstrap: str
) -> None:
    reader = reader_of(subscribePattern="^born-later-", startingOffsets="latest")
    start = reader.initialOffset()
    assert start == {}
    topic = create_topic(bootstrap, "born-later")
    send(bootstrap, topic, 2)
    end = reader.latestOffset(start, EVERYTHING)
    restarted = reader_of(subscribePattern="^born-later-", startingOffsets="latest")
    assert restarted.partitions(restarted.initialOffset(), end) == []
    assert batch(restarted, end)[1] == [b"v0", b"v1"]


def test_a_pattern_takes_in_topics_that_come_later(reader_of: ReaderOf, bootstrap: str) -> None:
    """From their beginning, whatever the start of the query was, and within the limit; others are left alone."""
    base = fresh("growing")
    first = create_topic(bootstrap, f"{base}-a")
    send(bootstrap, first, 3)
    reader = reader_of(subscribePattern=f"^{base}-[ab]", startingOffsets="latest", maxOffsetsPerTrigger=4)
    offset, found = batch(reader, reader.initialOffset())
    assert found == []
    second, other = create_topic(bootstrap, f"{base}-b", 2), create_topic(bootstrap, f"{base}-c")
    for topic, partition in ((first, 0), (second, 0), (second, 1), (other, 0)):
        send(bootstrap, topic, 4, first=10 * (partition + 1), partition=partition)
    took = []
    while True:
        end, found = batch(reader, offset)
        if end == offset:
            break
        took.append(len(found))
        offset = end
    assert offset == {first: {"0": 7}, second: {"0": 4, "1": 4}}
    assert sum(took) == 12
    assert max(took) <= 4


def test_a_stream_starts_at_offsets_and_timestamps(reader_of: ReaderOf, bootstrap: str) -> None:
    topic = create_topic(bootstrap, partitions=2)
    send_confluent(bootstrap, topic, [Sent(b"%d" % number, timestamp_ms=1_000 + number) for number in range(5)])

    def start(**options: Any) -> list[int]:
        reader = reader_of(subscribe=topic, **options)
        return list(reader.initialOffset()[topic].values())

    def table(first: int, second: int) -> str:
        return json.dumps({topic: {"0": first, "1": second}})

    latest = {"startingOffsetsByTimestampStrategy": "latest"}
    assert start(startingOffsets=table(3, -2)) == [3, 0]
    assert start(startingOffsets=table(-1, 0)) == [5, 0]
    assert start(startingTimestamp=1_002, **latest) == [2, 0]
    assert start(startingTimestamp=5_000, **latest) == [5, 0]
    assert start(startingOffsetsByTimestamp=table(1_004, 7), **latest) == [4, 0]
    assert start(startingOffsetsByTimestamp=table(0, 0), startingOffsets="latest", **latest) == [0, 0]
    with pytest.raises(OptionError, match=f"{topic}-1 has no record at or after timestamp 1002"):
        start(startingTimestamp=1_002)
    with pytest.raises(OptionError, match="'startingOffsetsByTimestamp' must name every partition"):
        start(startingOffsetsByTimestamp=json.dumps({topic: {"0": 1}}))


def test_batches_of_a_stream_are_cut_into_more_tasks(reader_of: ReaderOf, bootstrap: str) -> None:
    topic = create_topic(bootstrap, partitions=2)
    send(bootstrap, topic, 90, partition=0)
    send(bootstrap, topic, 10, first=90, partition=1)
    for options, sizes in (
        ({"minPartitions": 5}, [22, 22, 23, 23, 10]),
        ({"maxRecordsPerPartition": 40}, [30, 30, 30, 10]),
        ({"minPartitions": 2}, [90, 10]),
    ):
        reader = reader_of(subscribe=topic, **options)
        start = reader.initialOffset()
        tasks = reader.partitions(start, reader.latestOffset(start, EVERYTHING))
        assert [len(rows(reader, [task])) for task in tasks] == sizes
        assert values(rows(reader, tasks)) == [b"v%d" % number for number in range(100)]


def test_new_partitions_are_read_from_their_beginning(reader_of: ReaderOf, bootstrap: str) -> None:
    topic = create_topic(bootstrap)
    send(bootstrap, topic, 1)
    reader = reader_of(subscribe=topic, startingOffsets="latest", maxOffsetsPerTrigger=100)
    start = reader.initialOffset()
    add_partitions(bootstrap, topic, 3)
    send(bootstrap, topic, 2, first=10, partition=2)
    assert batch(reader, start) == (start, []), "the first batch is of what was there at the start"
    end, found = batch(reader, start)
    assert found == [b"v10", b"v11"]
    assert batch(reader, end)[1] == []


def test_a_new_partition_that_does_not_begin_at_zero_has_lost_records(reader_of: ReaderOf, bootstrap: str) -> None:
    topic = create_topic(bootstrap)
    strict = reader_of(subscribe=topic)
    lenient = reader_of(subscribe=topic, failOnDataLoss=False)
    start = strict.initialOffset()
    assert lenient.initialOffset() == start
    add_partitions(bootstrap, topic, 2)
    send(bootstrap, topic, 4, partition=1)
    client = admin(bootstrap)
    (future,) = client.delete_records([TopicPartition(topic, 1, 3)]).values()
    future.result(30)
    assert [batch(each, each.initialOffset())[1] for each in (strict, lenient)] == [[], []]
    with pytest.raises(DataLost, match=f"{topic}-1 starts at offset 3 instead of 0"):
        batch(strict, start)
    assert batch(lenient, start)[1] == [b"v3"]


def test_max_offsets_are_shared_by_what_partitions_hold(reader_of: ReaderOf, bootstrap: str) -> None:
    topic = create_topic(bootstrap, partitions=3)
    send(bootstrap, topic, 90, partition=0)
    send(bootstrap, topic, 9, partition=1)
    reader = reader_of(subscribe=topic, maxOffsetsPerTrigger=11)
    assert reader.getDefaultReadLimit() == ReadMaxRows(11)
    offset = reader.initialOffset()
    found: list[bytes | None] = []
    counts: list[int] = []
    while True:
        end, more = batch(reader, offset)
        if end == offset:
            break
        offset, counts = end, [*counts, len(more)]
        found += more
    assert len(found) == 99
    assert max(counts) <= 12
    assert len(counts) >= 9
    assert batch(reader, reader.initialOffset(), EVERYTHING)[0][topic] == {"0": 90, "1": 9, "2": 0}


@pytest.mark.parametrize(
    ("limit", "latest", "expected"),
    [
        (10, {("a", 0): 100, ("a", 1): 100}, {("a", 0): 5, ("a", 1): 5}),
        (10, {("a", 0): 1000, ("a", 1): 1}, {("a", 0): 9, ("a", 1): 1}),  # nobody starves
        (10, {("a", 0): 3, ("a", 1): 0}, {("a", 0): 3, ("a", 1): 0}),
        (10, {("a", 0): 0, ("a", 1): 0}, {("a", 0): 0, ("a", 1): 0}),
        (2**62, {("a", 0): 2**62, ("a", 1): 7}, {("a", 0): 2**62, ("a", 1): 7}),
    ],
)
def test_sharing(limit: int, latest: dict[Any, int], expected: dict[Any, int]) -> None:
    assert share(limit, {("a", 0): 0, ("a", 1): 0}, latest) == expected


def test_min_offsets_wait_for_more_or_for_the_delay(reader_of: ReaderOf, bootstrap: str) -> None:
    topic = create_topic(bootstrap)
    reader = reader_of(subscribe=topic, minOffsetsPerTrigger=5, maxOffsetsPerTrigger=6, maxTriggerDelay="1h")
    start = reader.initialOffset()
    send(bootstrap, topic, 1)
    first, found = batch(reader, start)
    assert found == [b"v0"], "the first batch does not wait"
    send(bootstrap, topic, 4, first=1)
    assert batch(reader, first) == (first, []), "too few"
    send(bootstrap, topic, 4, first=5)
    assert len(batch(reader, first)[1]) == 6
    hasty = reader_of(subscribe=topic, minOffsetsPerTrigger=5, maxTriggerDelay="0s")
    assert hasty.getDefaultReadLimit() == ReadMinRows(5)
    assert len(batch(hasty, {topic: {"0": 8}})[1]) == 1


def test_available_now_ends_where_it_was_when_it_began(reader_of: ReaderOf, bootstrap: str) -> None:
    topic = create_topic(bootstrap)
    send(bootstrap, topic, 10)
    reader = reader_of(subscribe=topic, maxOffsetsPerTrigger=4, minOffsetsPerTrigger=3)
    reader.prepareForTriggerAvailableNow()
    send(bootstrap, topic, 10, first=10)
    offset, found = reader.initialOffset(), []
    while (end := batch(reader, offset))[0] != offset:
        offset = end[0]
        found += end[1]
    assert found == [b"v%d" % number for number in range(10)], "the last two too, although they are less than three"


def test_a_topic_that_was_deleted_and_one_that_was_made_anew(reader_of: ReaderOf, bootstrap: str) -> None:
    kept, deleted = create_topic(bootstrap, "kept"), create_topic(bootstrap, "deleted")
    for topic in (kept, deleted):
        send(bootstrap, topic, 5)
    options = {"subscribe": f"{kept},{deleted}", "fetchOffset.numRetries": 1}
    strict, lenient = reader_of(**options), reader_of(**options, failOnDataLoss=False)
    start, _ = batch(strict, strict.initialOffset())
    delete_topic(bootstrap, deleted)
    send(bootstrap, kept, 1, first=5)
    with pytest.raises(DataLost, match=f"the partitions {deleted}-0 are gone"):
        wait_for(lambda: batch(strict, start)[1] != [b"v5"], "the topic is gone")
    after, found = batch(lenient, start)
    assert (after, found) == ({kept: {"0": 6}}, [b"v5"])
    anew = {kept: {"0": 9}}
    with pytest.raises(DataLost, match=f"{kept}-0 was read up to offset 9, but ends at 6"):
        batch(strict_of_one := reader_of(subscribe=kept, **{"fetchOffset.numRetries": 1}), anew)
    assert strict_of_one.reportLatestOffset() == {kept: {"0": 6}}
    lenient_of_one = reader_of(subscribe=kept, failOnDataLoss=False, **{"fetchOffset.numRetries": 1})
    after, found = batch(lenient_of_one, anew)
    assert (after, found) == ({kept: {"0": 6}}, [])
    send(bootstrap, kept, 1, first=6)
    assert batch(lenient_of_one, after)[1] == [b"v6"]


def test_a_topic_that_is_deleted_right_after_it_was_seen_is_a_loss_like_any_other(
    reader_of: ReaderOf, bootstrap: str
) -> None:
    """Which topics there are is asked once a second; their ends, ten times."""
    topic = create_topic(bootstrap)
    send(bootstrap, topic, 5)
    options: dict[str, Any] = {"subscribe": topic, "partition.metadata.cache.ttl.ms": 60_000}
    strict, lenient = reader_of(**options), reader_of(**options, failOnDataLoss=False)
    begins = [batch(each, each.initialOffset())[0] for each in (strict, lenient)]
    delete_topic(bootstrap, topic)
    with pytest.raises(DataLost, match=f"the partitions {topic}-0 are gone"):
        wait_for(lambda: batch(strict, begins[0])[0] != begins[0], "the topic is gone")
    assert batch(lenient, begins[1]) == ({}, [])
    assert batch(lenient, {}) == ({}, []), "and goes on, until there is one again"
    send(bootstrap, topic, 2)
    lenient._topics = None  # as if the minute were over
    assert batch(lenient, {}) == ({topic: {"0": 2}}, [b"v0", b"v1"])


def test_a_topic_that_never_was_is_an_error(reader_of: ReaderOf, bootstrap: str) -> None:
    with pytest.raises(UnknownTopic, match="no such topic: never-made"):
        reader_of(subscribe="never-made").initialOffset()


def test_retention_that_overtakes_a_slow_query(reader_of: ReaderOf, bootstrap: str) -> None:
    topic = create_topic(bootstrap)
    send(bootstrap, topic, 10)
    strict = reader_of(subscribe=topic)
    lenient = reader_of(subscribe=topic, failOnDataLoss=False)
    start = strict.initialOffset()
    client = admin(bootstrap)
    (future,) = client.delete_records([TopicPartition(topic, 0, 7)]).values()
    future.result(30)
    with pytest.raises(DataLost, match="offsets 0 to 7"):
        batch(strict, start)
    assert batch(lenient, start)[1] == [b"v7", b"v8", b"v9"]


def committed_offset(bootstrap: str, group: str, topic: str) -> int | None:
    """As a lag tool sees it."""
    consumer = Consumer(quiet(bootstrap, group_id=group))
    try:
        (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=30)
        return found.offset if found.offset >= 0 else None
    finally:
        consumer.close()


def test_progress_is_a_consumer_group(reader_of: ReaderOf, bootstrap: str) -> None:
    topic = create_topic(bootstrap)
    send(bootstrap, topic, 5)

    def committed(group: str) -> int | None:
        return committed_offset(bootstrap, group, topic)

    named = reader_of(subscribe=topic, kafka_group_id=f"group-of-{topic}")
    start = named.initialOffset()
    end, _ = batch(named, start)
    assert committed(f"group-of-{topic}") == 0
    named.latestOffset(end, EVERYTHING)
    assert committed(f"group-of-{topic}") == 5
    unnamed = reader_of(subscribe=topic)
    unnamed.latestOffset({topic: {"0": 2}}, EVERYTHING)
    assert committed(f"spark-{topic}") == 2
    prefixed = reader_of(subscribe=topic, groupIdPrefix="team")
    prefixed.latestOffset({topic: {"0": 3}}, EVERYTHING)
    assert committed(f"team-{topic}") == 3
    silent = reader_of(subscribe=topic, kafka_group_id=f"silent-{topic}", publishProgress=False)
    silent.latestOffset({topic: {"0": 2}}, EVERYTHING)
    assert committed(f"silent-{topic}") is None


def test_the_lag_of_a_query_is_seen_through_the_offsets_it_publishes(reader_of: ReaderOf, bootstrap: str) -> None:
    topic = create_topic(bootstrap)
    send(bootstrap, topic, 5)
    reader_of(subscribe=topic).latestOffset({topic: {"0": 2}}, EVERYTHING)
    monitor = LagMonitor({"bootstrap.servers": bootstrap})  # as `moldau lag`, of all groups
    (seen,) = [state for state in monitor.measure() if state.topic == topic]
    assert (seen.group, seen.committed, seen.lag, seen.members) == (f"spark-{topic}", 2, 3, 0)
    assert seen.judgement == "ok", "a query has no members: whether it stands still is seen over a window"
    (seen,) = [state for state in monitor.measure() if state.topic == topic]
    assert seen.judgement == "stopped"
    reader_of(subscribe=topic).latestOffset({topic: {"0": 4}}, EVERYTHING)
    (seen,) = [state for state in monitor.measure() if state.topic == topic]
    assert (seen.lag, seen.judgement) == (1, "ok")


def test_connections_that_brokers_closed_for_idleness_are_made_again_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """As a query with a trigger of an hour finds them each time. A pause before asking again would fail the test."""
    with Broker({"connections.max.idle.ms": "200", "connection.failed.authentication.delay.ms": "0"}) as broker:
        bootstrap = broker.bootstrap_servers
        topic = create_topic(bootstrap)
        patient = {"fetchOffset.retryIntervalMs": 600_000, "kafka.default.api.timeout.ms": 6_000_000}
        reader = stream_reader(bootstrap, subscribe=topic, startingOffsets="earliest", kafka_group_id=topic, **patient)
        offset, _ = batch(reader, reader.initialOffset())
        for number in range(3):
            send(bootstrap, topic, 1, first=number)
            wait_for(lambda: all(map(is_closed, reader._asked()._connections.values())), "the broker closes them")
            offset, found = batch(reader, offset)
            assert found == [b"v%d" % number]
            assert committed_offset(bootstrap, topic, topic) == number
        reader.stop()
    assert "progress" not in caplog.text


def is_closed(connection: Connection) -> bool:
    """Nothing was asked, so what there is to read is the end."""
    poll = select.poll()  # unlike select(), whatever the number of its descriptor is
    poll.register(connection._socket, select.POLLIN)
    return bool(poll.poll(0))


def test_a_group_that_is_in_use_is_a_warning_and_no_more(
    reader_of: ReaderOf, bootstrap: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = create_topic(bootstrap)
    send(bootstrap, topic, 5)
    group = f"used-{topic}"
    consumer = Consumer(quiet(bootstrap, group_id=group))
    consumer.subscribe([topic])
    try:
        wait_for(lambda: (consumer.poll(0.1), consumer.assignment())[1], "the consumer has the partition")
        reader = reader_of(subscribe=topic, kafka_group_id=group)
        for _ in range(2):
            assert len(batch(reader, reader.initialOffset())[1]) == 5
    finally:
        consumer.close()
    assert caplog.text.count("progress is not shown") == 1


def test_an_idle_query_asks_the_brokers_now_and_then_and_never_goes_by_an_old_answer(
    reader_of: ReaderOf, bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_source, "_LATEST_AGE_SECONDS_MAX", 0.2)
    topic = create_topic(bootstrap)
    reader = reader_of(subscribe=topic, publishProgress=False)
    start = reader.initialOffset()
    first = reader.latestOffset(start, EVERYTHING)
    began = time.monotonic()
    assert [reader.latestOffset(first, EVERYTHING) for _ in range(3)] == [first] * 3
    assert time.monotonic() - began > 0.4
    send(bootstrap, topic, 1)
    assert reader.latestOffset(first, EVERYTHING) == {topic: {"0": 1}}


def test_executors_get_a_copy(reader_of: ReaderOf, bootstrap: str) -> None:
    topic = create_topic(bootstrap)
    send(bootstrap, topic, 3)
    reader = reader_of(subscribe=topic)
    start = reader.initialOffset()
    tasks = reader.partitions(start, reader.latestOffset(start, EVERYTHING))
    on_executor = pickle.loads(pickle.dumps(reader_of(subscribe=topic)))
    assert values(rows(on_executor, pickle.loads(pickle.dumps(tasks)))) == [b"v0", b"v1", b"v2"]
