"""Exactly-once of a task, without Spark: every step a task can die at, attempts that overlap, and batches that change.

A task that dies does nothing more, so death is an exception that no step of ours may act upon: `abort` is taken away.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, IsolationLevel, TopicPartition
from confluent_kafka.admin import OffsetSpec

from moldau.client.connection import Connection
from moldau.spark import column_transactions, sink
from moldau.spark.options import OptionError
from moldau.spark.producing import DeliveryFailed
from moldau.spark.sink import Written, write_at_least_once, write_exactly_once
from moldau.spark.sink_options import SinkOptions, sink_options
from moldau.spark.transactions import Fenced, Marker, ReplayDiffers, TaskTransaction, read_marker
from moldau.testing import Broker
from moldau.wire import ErrorCode, Message
from moldau.wire.messages import OffsetFetchRequest, OffsetFetchResponse
from tests.support.clients import admin, create_topic, fresh, read_all, wait_for
from tests.support.spark_crash import TASK_STEPS, deadly

PARTITIONS = 3


@pytest.fixture(params=["columns", "librdkafka"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who writes, and nobody else can."""
    if request.param == "columns":
        monkeypatch.delattr(sink, "RowWriting")
    else:
        monkeypatch.setattr(column_transactions, "chosen", lambda *_: None)


class Death(BaseException):
    """The worker was killed."""


def options_for(bootstrap: str, topic: str | None, **more: str) -> SinkOptions:
    given = {"kafka.bootstrap.servers": bootstrap, "delivery": "exactly-once"}
    given |= {name.replace("_", "."): value for name, value in more.items()}
    return sink_options(given if topic is None else given | {"topic": topic})


def batches(*values: str) -> Iterator[Any]:
    """Each value in an Arrow batch of its own, so that death can come between them."""
    return iter([pa.record_batch({"key": pa.array([value]), "value": pa.array([value])}) for value in values])


def committed(bootstrap: str, topic: str) -> Counter[bytes | None]:
    return Counter(message.value() for message in read_all(bootstrap, topic, PARTITIONS))


def counted(*values: str) -> Counter[bytes | None]:
    return Counter(value.encode() for value in values)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("step", TASK_STEPS)
def test_a_task_that_dies_anywhere_is_written_once_by_the_next(
    bootstrap: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, query = create_topic(bootstrap, partitions=PARTITIONS), fresh("query")
    options = options_for(bootstrap, topic)
    with monkeypatch.context() as patch, deadly(step, die):
        patch.setattr(TaskTransaction, "abort", lambda self: None)
        with pytest.raises(Death):
            write_exactly_once(options, query, 0, 0, batches("a", "b", "c"))
    again = write_exactly_once(options, query, 0, 0, batches("a", "b", "c"))
    assert again.repeated == (step == "after commit")
    assert write_exactly_once(options, query, 1, 0, batches("d")) == Written(1, f"{query}-0")
    assert committed(bootstrap, topic) == counted("a", "b", "c", "d")


def die() -> None:
    raise Death


@pytest.mark.usefixtures("way")
def test_an_attempt_that_was_overtaken_cannot_commit(bootstrap: str) -> None:
    """A zombie, or a speculative copy: whoever fenced last wins, the other fails, and its records are not seen."""
    topic, query = create_topic(bootstrap, partitions=PARTITIONS), fresh("query")
    options = options_for(bootstrap, topic)

    def overtaken() -> Iterator[Any]:
        yield from batches("a", "b")
        write_exactly_once(options, query, 0, 0, batches("a", "b", "c"))
        yield from batches("c")

    with pytest.raises(Fenced, match="another attempt"):
        write_exactly_once(options, query, 0, 0, overtaken())
    assert write_exactly_once(options, query, 0, 0, batches("a", "b", "c")).repeated
    assert committed(bootstrap, topic) == counted("a", "b", "c")


@pytest.mark.usefixtures("way")
def test_a_failed_task_aborts_at_once(bootstrap: str) -> None:
    """Readers of committed records do not have to wait for the transaction's timeout."""
    topic, query = create_topic(bootstrap, partitions=PARTITIONS), fresh("query")
    options = options_for(bootstrap, topic)

    def broken() -> Iterator[Any]:
        yield from batches("a")
        raise ArithmeticError("upstream")

    with pytest.raises(ArithmeticError):
        write_exactly_once(options, query, 0, 0, broken())
    assert committed(bootstrap, topic) == counted()
    write_exactly_once(options, query, 0, 1, batches("x"))
    assert committed(bootstrap, topic) == counted("x")


def test_tasks_of_a_batch_and_batches_of_a_task_do_not_disturb_each_other(bootstrap: str) -> None:
    topic, query = create_topic(bootstrap, partitions=PARTITIONS), fresh("query")
    options = options_for(bootstrap, topic)
    names = [f"{batch}.{task}" for batch in range(3) for task in range(3) if (batch, task) != (1, 2)]  # one is idle
    for name in names + names[-3:]:
        batch, task = map(int, name.split("."))
        write_exactly_once(options, query, batch, task, batches(name))
    assert committed(bootstrap, topic) == counted(*names)


def test_a_coordinator_that_is_not_ready_is_asked_again(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It moves, loads its offsets, or a transaction is about to end; asking by librdkafka crashed the worker then."""
    topic, query = create_topic(bootstrap, partitions=PARTITIONS), fresh("query")
    options = options_for(bootstrap, topic)
    write_exactly_once(options, query, 3, 0, batches("a"))
    unstable = OffsetFetchResponse.OffsetFetchResponsePartition(error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT)
    not_yet = [
        OffsetFetchResponse(error_code=ErrorCode.NOT_COORDINATOR),
        OffsetFetchResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        OffsetFetchResponse(topics=[OffsetFetchResponse.OffsetFetchResponseTopic(name=topic, partitions=[unstable])]),
    ]
    call = Connection.call

    def answer(connection: Connection, request: Message, *more: Any) -> Any:
        return (
            not_yet.pop(0) if isinstance(request, OffsetFetchRequest) and not_yet else call(connection, request, *more)
        )

    monkeypatch.setattr(Connection, "call", answer)
    assert read_marker(options, [f"{query}-0"], query) == Marker(query, 3, 1, 2)
    assert not not_yet
    forbidden = OffsetFetchResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    not_yet.append(forbidden)
    with pytest.raises(DeliveryFailed, match=f"asking what '{query}-0' has written failed: .*GROUP_AUTHORIZATION"):
        read_marker(options, [f"{query}-0"], query)


def test_a_new_query_is_not_taken_for_an_old_one_under_the_same_prefix(bootstrap: str) -> None:
    """A deleted checkpoint counts batches from 0 again; the markers of the old query say nothing about them."""
    topic = create_topic(bootstrap, partitions=PARTITIONS)
    options = options_for(bootstrap, topic, transactionalIdPrefix=fresh("prefix"))
    write_exactly_once(options, "old", 7, 0, batches("a"))
    write_exactly_once(options, "new", 0, 0, batches("b"))
    assert committed(bootstrap, topic) == counted("a", "b")


def test_a_checkpoint_from_the_past_is_an_error(bootstrap: str) -> None:
    topic, query = create_topic(bootstrap, partitions=PARTITIONS), fresh("query")
    options = options_for(bootstrap, topic)
    write_exactly_once(options, query, 7, 0, batches("a"))
    with pytest.raises(ReplayDiffers, match="older than the output"):
        write_exactly_once(options, query, 6, 0, batches("b"))
    assert committed(bootstrap, topic) == counted("a")


@pytest.mark.usefixtures("way")
def test_a_batch_that_comes_again_with_other_rows_is_an_error(bootstrap: str) -> None:
    topic, query = create_topic(bootstrap, partitions=PARTITIONS), fresh("query")
    options = options_for(bootstrap, topic)
    write_exactly_once(options, query, 0, 0, batches("a", "b"))
    for changed in (batches("a"), batches("a", "bb"), batches("a", "b", "c")):
        with pytest.raises(ReplayDiffers, match="keep the number of partitions"):
            write_exactly_once(options, query, 0, 0, changed)
    assert committed(bootstrap, topic) == counted("a", "b")


def test_a_batch_may_come_again_with_other_rows_where_a_table_beside_the_stream_changes(bootstrap: str) -> None:
    topic, query = create_topic(bootstrap, partitions=PARTITIONS), fresh("query")
    options = options_for(bootstrap, topic, checkReplay="false")
    write_exactly_once(options, query, 0, 0, batches("a", "b"))
    assert write_exactly_once(options, query, 0, 0, batches("a", "changed")) == Written(0, f"{query}-0", repeated=True)
    assert committed(bootstrap, topic) == counted("a", "b")
    with pytest.raises(OptionError, match="write true or false"):
        options_for(bootstrap, topic, checkReplay="maybe")


def test_a_task_without_rows_asks_nobody() -> None:
    options = options_for("127.0.0.1:1", "t")
    empty = pa.record_batch({"value": pa.array([], pa.string())})
    assert write_exactly_once(options, "query", 0, 0, iter([empty])) == Written(0)
    assert write_at_least_once(options, iter([empty])) == Written(0)


def test_rows_name_their_topics(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task finds its marker whichever topic comes first when it is repeated."""
    one, two = (create_topic(bootstrap, partitions=PARTITIONS) for _ in range(2))
    query, options = fresh("query"), options_for(bootstrap, None)
    write_exactly_once(options, query, 0, 0, rows_for(one, two))
    write_exactly_once(options, query, 1, 0, rows_for(two, one))
    assert write_exactly_once(options, query, 1, 0, rows_for(one, two)).repeated
    for topic in (one, two):
        assert committed(bootstrap, topic) == Counter({topic.encode(): 2})


def rows_for(*topics: str) -> Iterator[Any]:
    return iter([pa.record_batch({"value": pa.array([*topics]), "topic": pa.array([*topics])})])


def delete_topic(bootstrap: str, topic: str) -> None:
    client = admin(bootstrap)
    client.delete_topics([topic])[topic].result(20)
    wait_for(lambda: topic not in client.list_topics(timeout=20).topics, "the deletion")


@pytest.mark.parametrize("deleted", [0, 1, 2])
def test_a_marker_does_not_go_with_one_of_its_topics(bootstrap: str, deleted: int) -> None:
    """Whichever of its topics is deleted: what a batch wrote to the others is not written again."""
    topics = [create_topic(bootstrap, partitions=PARTITIONS) for _ in range(3)]
    query, options = fresh("query"), options_for(bootstrap, None)
    write_exactly_once(options, query, 0, 0, rows_for(topics[1]))
    write_exactly_once(options, query, 1, 0, rows_for(*topics))
    delete_topic(bootstrap, topics[deleted])
    assert write_exactly_once(options, query, 1, 0, rows_for(*topics)).repeated
    for topic in topics:
        if topic != topics[deleted]:
            assert committed(bootstrap, topic) == Counter({topic.encode(): 2 if topic == topics[1] else 1})


def test_a_batch_whose_only_topic_is_gone_is_written_again(bootstrap: str) -> None:
    """Its records went with it."""
    topic, other = (create_topic(bootstrap, partitions=PARTITIONS) for _ in range(2))
    query, options = fresh("query"), options_for(bootstrap, None)
    write_exactly_once(options, query, 0, 0, rows_for(other))
    write_exactly_once(options, query, 1, 0, rows_for(topic))
    delete_topic(bootstrap, topic)
    assert not write_exactly_once(options, query, 1, 0, rows_for(topic)).repeated
    assert [message.value() for message in read_all(bootstrap, topic, 1)] == [topic.encode()]  # it was made anew


def test_queries_under_one_prefix_do_not_hide_each_others_markers(bootstrap: str) -> None:
    """Whether they write to the same topic or to others, and whichever counts further."""
    one, two = (create_topic(bootstrap, partitions=PARTITIONS) for _ in range(2))
    prefix = fresh("prefix")
    to_one, to_two = (options_for(bootstrap, topic, transactionalIdPrefix=prefix) for topic in (one, two))
    steps = [("first", 7, to_one, "a"), ("second", 3, to_two, "b"), ("third", 0, to_one, "c")]
    for writer, batch_id, options, value in steps:
        assert not write_exactly_once(options, writer, batch_id, 0, batches(value)).repeated
    for writer, batch_id, options, value in steps:
        assert write_exactly_once(options, writer, batch_id, 0, batches(value)).repeated
    assert committed(bootstrap, one) == counted("a", "c")
    assert committed(bootstrap, two) == counted("b")


@pytest.mark.parametrize("prefix", [False, True])
def test_a_replayed_batch_is_known_though_the_topic_was_changed(bootstrap: str, prefix: bool) -> None:
    one, two = (create_topic(bootstrap, partitions=PARTITIONS) for _ in range(2))
    more = {"transactionalIdPrefix": fresh("prefix")} if prefix else {}
    query = fresh("query")
    write_exactly_once(options_for(bootstrap, one, **more), query, 5, 0, batches("a"))
    assert write_exactly_once(options_for(bootstrap, two, **more), query, 5, 0, batches("a")).repeated
    write_exactly_once(options_for(bootstrap, two, **more), query, 6, 0, batches("b"))
    assert write_exactly_once(options_for(bootstrap, one, **more), query, 6, 0, batches("b")).repeated
    assert committed(bootstrap, one) == counted("a")
    assert committed(bootstrap, two) == counted("b")


def test_markers_of_the_first_format_are_understood(bootstrap: str) -> None:
    """They were kept in one group for all writers under a prefix, with the first topic only."""
    topic, prefix = create_topic(bootstrap, partitions=PARTITIONS), fresh("prefix")
    other = create_topic(bootstrap)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"{prefix}-0", "log_level": 0})
    kept = [("q", 5, topic), ("somebody else", 9, other)]
    consumer.commit(
        offsets=[
            TopicPartition(place, 0, batch_id, f'{{"writer":"{writer}","batch_id":{batch_id},"rows":1,"size_bytes":2}}')
            for writer, batch_id, place in kept
        ],
        asynchronous=False,
    )
    consumer.close()
    options = options_for(bootstrap, topic, transactionalIdPrefix=prefix)
    assert write_exactly_once(options, "q", 5, 0, batches("a")).repeated
    assert write_exactly_once(options, "q", 6, 0, batches("b")) == Written(1, f"{prefix}-0-q")
    assert write_exactly_once(options, "q", 6, 0, batches("b")).repeated
    assert committed(bootstrap, topic) == counted("b")


@pytest.mark.usefixtures("way")
def test_a_transaction_that_takes_too_long_says_what_to_raise() -> None:
    with Broker({"transaction.abort.timed.out.transaction.cleanup.interval.ms": "50"}) as broker:
        bootstrap = broker.bootstrap_servers
        topic, query = create_topic(bootstrap, partitions=1), fresh("query")
        options = options_for(bootstrap, topic, kafka_transaction_timeout_ms="1000")

        def slow() -> Iterator[Any]:
            yield from batches("a")
            wait_for(lambda: end(bootstrap, topic, committed=False) > 0, "the record")
            wait_for(lambda: end(bootstrap, topic, committed=True) > 0, "the broker ends the transaction")
            yield from batches("b")

        with pytest.raises(Fenced, match=r"raise it, or make batches smaller"):
            write_exactly_once(options, query, 0, 0, slow())
        assert not read_all(bootstrap, topic)


def end(bootstrap: str, topic: str, *, committed: bool) -> int:
    """The offset up to which a reader can come."""
    client = admin(bootstrap)
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    where, latest = TopicPartition(topic, 0), OffsetSpec.latest()  # type: ignore[no-untyped-call]  # has no types
    (future,) = client.list_offsets({where: latest}, isolation_level=level).values()
    offset: int = future.result(30).offset
    return offset


@pytest.mark.usefixtures("way")
def test_a_timeout_the_cluster_does_not_allow_names_the_option(bootstrap: str) -> None:
    topic = create_topic(bootstrap, partitions=PARTITIONS)
    options = options_for(bootstrap, topic, kafka_transaction_timeout_ms="90000000")
    with pytest.raises(DeliveryFailed, match=r"transaction\.max\.timeout\.ms"):
        write_exactly_once(options, fresh("query"), 0, 0, batches("a"))


@pytest.mark.usefixtures("way")
def test_records_that_cannot_be_delivered_fail_the_task(bootstrap: str) -> None:
    topic = create_topic(bootstrap, partitions=PARTITIONS)
    rows = pa.record_batch({"value": pa.array(["a"]), "partition": pa.array([PARTITIONS + 4], pa.int32())})
    options = options_for(bootstrap, topic)
    with pytest.raises(DeliveryFailed, match=topic):
        write_at_least_once(options, iter([rows]))
    with pytest.raises(DeliveryFailed, match=topic):
        write_exactly_once(options, fresh("query"), 0, 0, iter([rows]))
    assert committed(bootstrap, topic) == counted()


def test_a_record_that_is_too_large_says_what_to_raise(bootstrap: str) -> None:
    topic = create_topic(bootstrap, partitions=PARTITIONS)
    with pytest.raises(DeliveryFailed, match=r"kafka\.max\.request\.size"):
        write_at_least_once(options_for(bootstrap, topic), batches("x" * 1_100_000))


def test_offsets_of_somebody_else_are_not_overwritten(bootstrap: str) -> None:
    topic, prefix = create_topic(bootstrap, partitions=PARTITIONS), fresh("prefix")
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"{prefix}-0", "log_level": 0})
    consumer.commit(offsets=[TopicPartition(topic, 0, 5)], asynchronous=False)
    consumer.close()
    with pytest.raises(ValueError, match="choose another transactionalIdPrefix"):
        write_exactly_once(options_for(bootstrap, topic, transactionalIdPrefix=prefix), "q", 0, 0, batches("a"))
