"""Requests and answers of a great many elements: carried out between others' requests, and answered in full."""

import asyncio
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from moldau.broker.replicas.fetch_sessions import FetchContext
from moldau.broker.request_times import RequestTimes
from moldau.broker.requests import dispatch
from moldau.broker.requests.handlers import list_offsets, produce
from moldau.records import build_batch
from moldau.testing import Broker
from moldau.timers.turns import Turns, let_go
from moldau.wire import ErrorCode, decode_request
from moldau.wire import messages as m
from tests.broker.requests.handlers.conftest import on_loop
from tests.broker.requests.handlers.wire_client import WireClient
from tests.e2e.raw import Raw, request_frame
from tests.support.clients import fresh, wait_for

MANY = 30_000


@pytest.fixture
def slices(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of each long answer, in how many slices it was made."""
    found: list[int] = []
    original: Callable[[Turns, Any], Any] = Turns.run

    def counted(turns: Turns, work: Any) -> Any:
        place = len(found)
        found.append(1)

        def counting() -> Any:
            while True:
                try:
                    next(work)
                except StopIteration as done:
                    return done.value
                found[place] += 1
                yield

        return original(turns, counting())

    monkeypatch.setattr(Turns, "run", counted)
    return found


def test_errors_of_a_long_answer_are_counted_once(client: WireClient, monkeypatch: pytest.MonkeyPatch) -> None:
    answered_topics: list[int] = []  # other clients of this broker may ask at the same time, and for less

    def count(_: RequestTimes, response: Any) -> None:
        if isinstance(response, m.MetadataResponse):
            answered_topics.append(len(response.topics))

    monkeypatch.setattr(RequestTimes, "count_errors", count)
    kind = m.MetadataRequest
    client.ask(kind([kind.MetadataRequestTopic(name=f"none-{number}") for number in range(MANY)], False), 12)
    assert answered_topics.count(MANY) == 1


def test_metadata_of_very_many_names(client: WireClient, slices: list[int]) -> None:
    kind = m.MetadataRequest
    topic = client.new_topic()
    names = [topic, *(f"none-{number}" for number in range(MANY))]
    answer = client.ask(kind([kind.MetadataRequestTopic(name=name) for name in names], False), 12)
    assert [each.name for each in answer.topics] == names
    assert answer.topics[0].error_code == 0
    assert {each.error_code for each in answer.topics[1:]} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert sum(slices) > MANY / 250


def test_what_a_long_request_and_its_answer_held_is_freed_piece_by_piece(
    client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[int] = []
    freed: list[type] = []

    def noted(*lists: list[Any]) -> Any:
        lengths.extend(len(each) for each in lists)
        freed.extend(type(each[0]) for each in lists)
        return let_go(*lists)

    monkeypatch.setattr(dispatch, "let_go", noted)
    kind = m.MetadataRequest
    names = [kind.MetadataRequestTopic(name=f"none-{number}") for number in range(MANY)]
    assert len(client.ask(kind(names, False), 12).topics) == MANY
    deadline = time.monotonic() + 30
    while len(freed) < 2 and time.monotonic() < deadline:  # after the answer has left
        time.sleep(0.01)
    assert (lengths, freed) == ([MANY] * 2, [m.MetadataResponse.MetadataResponseTopic, kind.MetadataRequestTopic])


def test_what_a_refused_fetch_held_is_freed_piece_by_piece(own_client: WireClient, slices: list[int]) -> None:
    """Nobody has heard of its session, so nothing of it is carried out."""
    kind = m.FetchRequest
    wanted = [kind.FetchPartition(partition=number) for number in range(MANY)]
    forgotten = [kind.ForgottenTopic(topic="none", partitions=list(range(MANY)))]
    topics = [kind.FetchTopic(topic="none", partitions=wanted)]
    answer = own_client.ask(
        kind(max_wait_ms=0, session_id=7, session_epoch=5, topics=topics, forgotten_topics_data=forgotten), 12
    )
    assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    wait_for(lambda: sum(slices) > 3 * MANY / 1_000, "what it asked for, named and wanted anew is freed")


def test_metadata_of_very_many_ids_and_of_half_an_id(client: WireClient) -> None:
    kind = m.MetadataRequest
    ids = [struct.pack(">qq", 1, number) for number in range(MANY)]
    answer = client.ask(kind([kind.MetadataRequestTopic(each, None) for each in ids], False), 12)
    assert [each.topic_id for each in answer.topics] == ids
    answer = client.ask(kind([kind.MetadataRequestTopic(each, None) for each in ids], False), 11)
    assert {each.error_code for each in answer.topics} <= {ErrorCode.INVALID_REQUEST}


def test_all_topics_are_told_in_slices(own_client: WireClient, slices: list[int]) -> None:
    own_client.new_topic(300)
    own_client.new_topic(3)
    slices.clear()
    answer = own_client.ask(m.MetadataRequest(None), 12)
    assert sorted(len(each.partitions) for each in answer.topics) == [3, 300]
    assert slices == [2]


def test_list_offsets_of_very_many_partitions(client: WireClient, slices: list[int]) -> None:
    topic = client.new_topic()
    kind = m.ListOffsetsRequest
    wanted = [kind.ListOffsetsPartition(number % MANY, -1, -1) for number in range(MANY + 1)]
    answer = client.ask(kind(replica_id=-1, topics=[kind.ListOffsetsTopic(topic, wanted)]))
    told = answer.topics[0].partitions
    assert [each.partition_index for each in told] == list(range(MANY))
    assert told[0].error_code == ErrorCode.INVALID_REQUEST  # named twice
    assert {each.error_code for each in told[1:]} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert sum(slices) > MANY / 400


def test_questions_about_very_many_partitions_and_transactions(client: WireClient, slices: list[int]) -> None:
    few, topics = 2_000, [f"none-{number}" for number in range(20)]
    indexes = list(range(few // len(topics)))
    epochs, producers = m.OffsetForLeaderEpochRequest, m.DescribeProducersRequest
    wanted = [epochs.OffsetForLeaderPartition(index, -1, 0) for index in indexes]
    requests = [
        epochs(-1, [epochs.OffsetForLeaderTopic(topic, wanted) for topic in topics]),
        producers([producers.TopicRequest(topic, indexes) for topic in topics]),
    ]
    for request in requests:
        slices.clear()
        answer = client.ask(request)
        assert [len(topic.partitions) for topic in answer.topics] == [len(indexes)] * len(topics)
        assert sum(slices) > few / 150
    slices.clear()
    ids = [f"id-{number}" for number in range(few)]
    states = client.ask(m.DescribeTransactionsRequest(ids)).transaction_states
    assert [each.transactional_id for each in states] == ids
    assert sum(slices) > few / 150


def test_very_many_groups_are_asked_about_in_turns(client: WireClient, monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[int] = []
    original = Turns.next_turn

    def counted(each: Turns) -> asyncio.Future[None]:
        turns.append(1)
        return original(each)

    monkeypatch.setattr(Turns, "next_turn", counted)
    names = [f"none-{number}" for number in range(1_000)]
    topic, real = client.new_topic(), fresh("group")
    offsets = m.OffsetCommitRequest
    places = [offsets.OffsetCommitRequestPartition(0, 5)]
    commit = offsets(real, topics=[offsets.OffsetCommitRequestTopic(topic, partitions=places)])
    wait_for(lambda: client.ask(m.FindCoordinatorRequest(real, 0), 3).error_code == 0, "a coordinator")
    wait_for(lambda: client.ask(commit, 8).topics[0].partitions[0].error_code == 0, "the coordinator")
    described = client.ask(m.DescribeGroupsRequest([*names, real])).groups
    assert [each.group_id for each in described] == [*names, real]
    assert [each.error_code for each in described[-2:]] == [ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.NONE]
    assert [each.group_id for each in client.ask(m.ConsumerGroupDescribeRequest(names)).groups] == names
    fetch = m.OffsetFetchRequest
    asked = [fetch.OffsetFetchRequestGroup(name, topics=None) for name in (*names, real)]
    fetched = client.ask(fetch(groups=asked), 9).groups
    assert [each.group_id for each in fetched] == [*names, real]
    assert [len(each.topics) for each in fetched[-2:]] == [0, 1]
    deleted = client.ask(m.DeleteGroupsRequest([*names, real])).results
    assert [each.error_code for each in deleted[-2:]] == [ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.NONE]
    assert len(turns) >= 4 * (1_000 // 50 - 1)  # between each fifty and the next


def test_list_offsets_of_very_many_topics(
    client: WireClient, slices: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Doubles are looked for in slices, too, however the partitions are spread."""
    monkeypatch.setattr(list_offsets, "_LOOKED_AT", 50)
    kind = m.ListOffsetsRequest
    topics = [kind.ListOffsetsTopic(f"none-{n % 9_000}", [kind.ListOffsetsPartition(0, -1, -1)]) for n in range(10_000)]
    answer = client.ask(kind(-1, topics=topics), 7)
    told = {topic.name: [each.error_code for each in topic.partitions] for topic in answer.topics if topic.partitions}
    assert len(told) == 9_000
    assert (told["none-5"], told["none-8999"]) == ([ErrorCode.INVALID_REQUEST], [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION])
    assert sum(slices) > 10_000 // 50


def test_a_fetch_of_very_many_partitions(broker: Broker, client: WireClient, slices: list[int]) -> None:
    topic = client.new_topic()
    client.produce(topic, [b"found"])
    kind = m.FetchRequest
    topic_id = on_loop(broker, lambda: broker.node.broker.image.topics[topic].topic_id)
    partitions = [kind.FetchPartition(number, -1, 0, -1, -1, 1_000) for number in range(MANY)]
    request = kind(max_wait_ms=500, min_bytes=1, topics=[kind.FetchTopic(topic_id=topic_id, partitions=partitions)])
    answer = client.ask(request, 17)
    told = answer.responses[0].partitions
    assert [each.partition_index for each in told] == list(range(MANY))
    assert told[0].records
    assert {each.error_code for each in told[1:]} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert sum(slices) > MANY / 250


def test_a_session_of_many_partitions_is_read_in_slices_each_time(own_client: WireClient, slices: list[int]) -> None:
    topic = own_client.new_topic(8)
    for partition in range(8):
        own_client.produce(topic, [b"%d" % partition], partition=partition)
    kind = m.FetchRequest
    topics = own_client.ask(m.MetadataRequest(None), 12).topics
    partitions = [kind.FetchPartition(number, -1, 0, -1, -1, 1_000) for number in range(2_100)]
    full = kind.FetchTopic(topic_id=topics[0].topic_id, partitions=partitions)
    answer = own_client.ask(kind(max_wait_ms=100, min_bytes=1, session_epoch=0, topics=[full]), 17)
    assert len(answer.responses[0].partitions) == 2_100
    before = len(slices)  # the first fetch may still let go of what it read
    following = kind(max_wait_ms=100, min_bytes=1, session_id=answer.session_id, session_epoch=1, topics=[])
    again = own_client.ask(following, 17)
    assert [each.partition_index for each in again.responses[0].partitions if each.records] == list(range(8))
    assert max(slices[before:]) > 5


def test_a_produce_to_very_many_partitions_that_are_not_there(
    client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = []
    next_turn: Callable[[Turns], Any] = Turns.next_turn

    def counted(turns: Turns) -> Any:
        waits.append(turns)
        return next_turn(turns)

    monkeypatch.setattr(Turns, "next_turn", counted)
    kind = m.ProduceRequest
    entries = [kind.PartitionProduceData(number, None) for number in range(MANY)]
    answer = client.ask(kind(None, 1, 1_000, [kind.TopicProduceData(name="none", partition_data=entries)]), 9)
    told = answer.responses[0].partition_responses
    assert [each.index for each in told] == list(range(MANY))
    assert {each.error_code for each in told} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert len(waits) > MANY / 250


@pytest.mark.parametrize("version", [8, 9, 12])
def test_a_produce_to_very_many_partitions_is_read_and_answered_by_a_thread(
    own_client: WireClient, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """Also its batches arrive, in order, before those of the next request."""
    at_work: list[tuple[str, str]] = []

    def noted(name: str) -> None:
        work = getattr(produce, name)

        def counted(*arguments: Any, **options: Any) -> Any:
            done = work(*arguments, **options)  # not noted if it is too long for the loop
            at_work.append((name, threading.current_thread().name))
            return done

        monkeypatch.setattr(produce, name, counted)

    noted("decode_produce_request")
    noted("encode_produce_response")
    topic = own_client.new_topic()
    kind = m.ProduceRequest
    batch = bytes(build_batch([(0, time.time_ns() // 1_000_000, b"k", b"v", ())]))
    entries = [kind.PartitionProduceData(number % 3_000, batch) for number in range(6_000)]
    request = kind(None, -1, 5_000, [kind.TopicProduceData(name=topic, partition_data=entries)])
    told = own_client.ask(request, version).responses[0].partition_responses
    assert [each.index for each in told] == [number % 3_000 for number in range(6_000)]
    assert [each.base_offset for each in told if each.error_code == 0] == [0, 1]
    assert [name for name, _ in at_work] == ["decode_produce_request", "encode_produce_response"]
    assert all(thread.startswith("moldau_") for _, thread in at_work)
    assert own_client.produce(topic, [b"next"], first_timestamp_ms=time.time_ns() // 1_000_000).base_offset == 2


def test_a_malformed_produce_to_very_many_partitions_closes_the_connection(own_broker: Broker) -> None:
    kind = m.ProduceRequest
    entries = [kind.PartitionProduceData(number, None) for number in range(6_000)]
    request = kind(None, 1, 1_000, [kind.TopicProduceData(name="none", partition_data=entries)])
    with Raw(own_broker.bootstrap_servers) as raw:
        frame = request_frame(request, 9)[:-5]
        raw.send(struct.pack(">i", len(frame) - 4) + frame[4:])
        with pytest.raises(ConnectionError):
            raw.read_frame()


def test_large_requests_are_read_by_a_thread(client: WireClient, monkeypatch: pytest.MonkeyPatch) -> None:
    from moldau.broker.requests import dispatch

    readers: list[str] = []
    original = decode_request

    def noted(kind: Any, version: int, frame: memoryview) -> Any:
        if kind is m.MetadataRequest and version == 12:  # others may be asking for something, too
            readers.append(threading.current_thread().name)
        return original(kind, version, frame)

    monkeypatch.setattr(dispatch, "decode_request", noted)
    kind = m.MetadataRequest
    client.ask(kind([kind.MetadataRequestTopic(name=f"none-{number}") for number in range(MANY)], False), 12)
    client.ask(kind([], False), 12)
    assert readers[0].startswith("moldau_")
    assert not readers[1].startswith("moldau_")


def test_more_than_a_million_elements_close_the_connection(client: WireClient) -> None:
    body = struct.pack(">hhih", 3, 1, 1, -1) + struct.pack(">i", 1_000_001) + b"\0\1x" * 1_000_001
    client._socket.sendall(struct.pack(">i", len(body)) + body)
    with pytest.raises(ConnectionError):
        client._receive(4)


def test_a_long_fetch_of_a_follower_does_not_wait_for_clients(broker: Broker, client: WireClient) -> None:
    """Somebody's bomb is being looked through, and another one after that."""
    inner = broker.node.broker
    asyncio.run_coroutine_threadsafe(inner.long_look.acquire(), inner.loop).result(20)
    try:
        kind = m.FetchRequest
        partitions = [kind.FetchPartition(number, -1, 0, -1, -1, 1_000) for number in range(4_000)]
        topics = [kind.FetchTopic(topic="none", partitions=partitions)]
        answer = client.ask(kind(replica_id=7, max_wait_ms=0, min_bytes=1, max_bytes=1_000, topics=topics), 12)
        assert len(answer.responses[0].partitions) == 4_000
    finally:
        inner.loop.call_soon_threadsafe(inner.long_look.release)


def test_no_thread_changes_a_fetch_session(own_client: WireClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the client was told is noted on the loop, which reads it; a thread only writes the answer."""
    threads: set[str] = set()
    tell = FetchContext.tell

    def noted(context: FetchContext, results: Any, **kwargs: Any) -> Any:
        told = tell(context, results, **kwargs)
        while (each := next(told, None)) is not None:
            threads.add(threading.current_thread().name)
            yield each

    monkeypatch.setattr(FetchContext, "tell", noted)
    kind = m.FetchRequest
    partitions = [kind.FetchPartition(number, -1, 0, -1, -1, 1_000) for number in range(4_100)]
    topics = [kind.FetchTopic(topic="none", partitions=partitions)]
    answer = own_client.ask(kind(max_wait_ms=0, min_bytes=1, max_bytes=1_000, session_epoch=0, topics=topics), 12)
    assert [each.partition_index for each in answer.responses[0].partitions] == list(range(4_100))
    assert threads == {"moldau-broker"}
