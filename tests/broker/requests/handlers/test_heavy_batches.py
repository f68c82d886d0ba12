"""Small Produce requests that stand for a lot of work: bounded, off the loop, in order."""

import asyncio
import struct
import threading
import time
from typing import Any

import pytest

from moldau.broker.coordinators import txn_verification
from moldau.broker.requests.handlers import produce as handler
from moldau.controller.image import UNASSIGNED_DIR
from moldau.log.validation import RECORD_ERRORS_MAX, check_at_leisure
from moldau.net.connection import ServerConnection
from moldau.records import BatchOptions, Codec, build_batch, compress
from moldau.records.batch import ATTRIBUTES_AT, CRC_AT, HEADER_BYTES, LAST_OFFSET_DELTA_AT, MAX_TIMESTAMP_AT
from moldau.records.checksum import crc32c
from moldau.testing import Broker
from moldau.wire import ErrorCode, apis, decode, encode
from moldau.wire import messages as m
from moldau.wire.headers import decode_response_header, encode_request_header
from tests.broker.requests.handlers.wire_client import WireClient

KEYLESS = bytes((12, 0, 0, 0, 1, 1, 0))  # the shortest record there is
COUNT_AT = 57


def bomb(count: int, record: bytes = KEYLESS, *, timestamp_ms: int | None = None) -> bytes:
    """So many records in a batch of a few KB."""
    now = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_ms
    data = bytearray(build_batch([(0, now, b"k", b"v", ())]))[:HEADER_BYTES] + compress(Codec.ZSTD, record * count)
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">h", data, ATTRIBUTES_AT, Codec.ZSTD)
    struct.pack_into(">i", data, LAST_OFFSET_DELTA_AT, count - 1)
    struct.pack_into(">q", data, MAX_TIMESTAMP_AT, now)
    struct.pack_into(">i", data, COUNT_AT, count)
    struct.pack_into(">I", data, CRC_AT, crc32c(bytes(data[ATTRIBUTES_AT:])))
    return bytes(data)


@pytest.fixture
def checked_by(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads that looked through batches at leisure."""
    threads: list[str] = []

    def noted(*args: Any) -> Any:
        threads.append(threading.current_thread().name)
        return check_at_leisure(*args)

    monkeypatch.setattr(handler, "check_at_leisure", noted)
    return threads


def test_a_bomb_on_a_compacted_topic_is_defused_off_the_loop(client: WireClient, checked_by: list[str]) -> None:
    topic = client.new_topic(cleanup_policy="compact")
    answer = client.produce_batch(topic, bomb(100_000))
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert len(answer.record_errors) == RECORD_ERRORS_MAX
    assert len(checked_by) == 1
    assert checked_by[0].startswith("moldau_")


def test_a_batch_expands_to_a_multiple_of_what_the_topic_takes(client: WireClient) -> None:
    topic = client.new_topic(cleanup_policy="compact", max_message_bytes="10000")
    answer = client.produce_batch(topic, bomb(100_000))
    assert (answer.error_code, answer.record_errors) == (ErrorCode.INVALID_RECORD, [])


def test_times_to_come_blame_few(client: WireClient, checked_by: list[str]) -> None:
    """On a topic like any other. The batch is refused by its header; records are named if that is quickly done."""
    topic = client.new_topic()
    answer = client.produce_batch(topic, bomb(400_000, timestamp_ms=9_000_000_000_000))
    assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
    assert len(answer.record_errors) == RECORD_ERRORS_MAX
    answer = client.produce_batch(topic, bomb(2_000_000, timestamp_ms=9_000_000_000_000))
    assert (answer.error_code, answer.record_errors) == (ErrorCode.INVALID_TIMESTAMP, [])
    assert checked_by == []


def test_another_codec_is_made_off_the_loop(client: WireClient, checked_by: list[str]) -> None:
    topic = client.new_topic(compression_type="lz4")
    values = [b"x" * 1_000] * 200
    assert client.produce(topic, values, first_timestamp_ms=time.time_ns() // 1_000_000).error_code == 0
    assert len(checked_by) == 1
    assert client.produce(topic, values[:3], first_timestamp_ms=time.time_ns() // 1_000_000).base_offset == 200
    assert len(checked_by) == 1  # little is soon done


def init_producer(client: WireClient, transactional_id: str | None) -> Any:
    request = m.InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
    while True:
        answer = client.ask(request)
        if answer.error_code not in (
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            ErrorCode.NOT_COORDINATOR,
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ):
            assert answer.error_code == 0, answer
            return answer
        finder = m.FindCoordinatorRequest(key_type=1, coordinator_keys=[transactional_id or ""])
        client.ask(finder)  # makes the topic of the transactions


@pytest.mark.parametrize("transactional_id", [None, "heavy"])
def test_what_takes_long_is_not_overtaken(
    client: WireClient, checked_by: list[str], monkeypatch: pytest.MonkeyPatch, transactional_id: str | None
) -> None:
    """An idempotent producer with heavy and light batches in flight: every sequence number is the expected one. The
    first batch of a transaction waits for the coordinator, and then for the thread."""
    ask = txn_verification._ask
    monkeypatch.setattr(txn_verification, "_ask", lambda broker, *args: broker.loop.call_soon(ask, broker, *args))
    topic = client.new_topic(cleanup_policy="compact")
    producer = init_producer(client, transactional_id)
    kind = m.ProduceRequest
    api = apis()[kind.number]
    sequence = 0
    now = time.time_ns() // 1_000_000
    frames = b""
    for number in range(20):
        count = 800 if number % 3 == 0 else 2
        options = BatchOptions(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=sequence,
            transactional=transactional_id is not None,
        )
        batch = bytes(build_batch([(at, now, b"k%d" % at, b"v", ()) for at in range(count)], options))
        data = kind.TopicProduceData(name=topic, partition_data=[kind.PartitionProduceData(index=0, records=batch)])
        request = kind(transactional_id=transactional_id, acks=-1, timeout_ms=5_000, topic_data=[data])
        frame = encode_request_header(api, 12, number, "pipeline") + encode(request, 12)
        frames += struct.pack(">i", len(frame)) + frame
        sequence += count
    client._socket.sendall(frames)
    end = 0
    for number in range(20):
        (size,) = struct.unpack(">i", client._receive(4))
        body = client._receive(size)
        correlation_id, position = decode_response_header(body, header_version=api.response_header_version(12))
        assert correlation_id == number
        (told,) = decode(api.response, 12, body[position:]).responses[0].partition_responses  # type: ignore[attr-defined]
        assert (told.error_code, told.base_offset) == (0, end)
        end += 800 if number % 3 == 0 else 2
    assert len(checked_by) == 7


@pytest.mark.parametrize("transactional_id", [None, "kept"])
def test_what_waits_counts_against_the_memory_of_requests(
    client: WireClient, monkeypatch: pytest.MonkeyPatch, transactional_id: str | None
) -> None:
    """For a thread, or for a transaction's coordinator and then a thread."""
    ask = txn_verification._ask
    monkeypatch.setattr(txn_verification, "_ask", lambda broker, *args: broker.loop.call_soon(ask, broker, *args))
    held: list[int] = []
    hold = ServerConnection.hold_memory

    def noted(connection: ServerConnection, many: int) -> None:
        held.append(many)
        hold(connection, many)

    monkeypatch.setattr(ServerConnection, "hold_memory", noted)
    topic = client.new_topic(cleanup_policy="compact")
    producer = init_producer(client, transactional_id)
    options = BatchOptions(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=0,
        transactional=transactional_id is not None,
    )
    now = time.time_ns() // 1_000_000
    batch = bytes(build_batch([(at, now, b"k%d" % at, b"v", ()) for at in range(800)], options))
    assert client.produce_batch(topic, batch, transactional_id=transactional_id).error_code == 0
    times = 1 if transactional_id is None else 2
    deadline = time.monotonic() + 10
    while held.count(-len(batch)) < times:  # it is answered first
        assert time.monotonic() < deadline, held
    assert held.count(len(batch)) == held.count(-len(batch)) == times


@pytest.mark.parametrize("is_truncated", [True, False])
def test_a_batch_that_was_truncated_meanwhile_is_not_acknowledged(
    client: WireClient, monkeypatch: pytest.MonkeyPatch, is_truncated: bool
) -> None:
    """Of two batches of a request one is appended, and while a thread looks through the other, this node loses the
    first to another leader and leads again: what is committed at its offset is not it."""
    topic = client.new_topic(2, cleanup_policy="compact")
    brokers: list[Any] = []
    append_rest = handler._append_rest

    def noted(broker: Any, *args: Any) -> Any:
        brokers.append(broker)
        return append_rest(broker, *args)

    async def lead_again() -> None:
        partition = brokers[0].replicas.leader(topic, 0)
        assert partition.log.log_end_offset == 1
        while UNASSIGNED_DIR in partition.image.directories:
            await asyncio.sleep(0.01)  # the controller's answer would bring the epoch of before
        image = partition.image
        if is_truncated:
            partition.log.truncate_to(0)
            image = image._replace(leader_epoch=image.leader_epoch + 1)
            partition.become(image)
            partition.append(memoryview(bytearray(light)))  # of the leader of then
        partition.become(image._replace(leader_epoch=image.leader_epoch + 1))
        assert partition.log.high_watermark == 1

    def checked(*args: Any) -> Any:
        asyncio.run_coroutine_threadsafe(lead_again(), brokers[0].loop).result(20)
        return check_at_leisure(*args)

    monkeypatch.setattr(handler, "_append_rest", noted)
    monkeypatch.setattr(handler, "check_at_leisure", checked)
    now = time.time_ns() // 1_000_000
    light = bytes(build_batch([(0, now, b"k", b"v", ())]))
    heavy = bytes(build_batch([(at, now, b"k%d" % at, b"v", ()) for at in range(800)]))
    kind = m.ProduceRequest
    parts = [kind.PartitionProduceData(index=0, records=light), kind.PartitionProduceData(index=1, records=heavy)]
    request = kind(acks=-1, timeout_ms=5_000, topic_data=[kind.TopicProduceData(name=topic, partition_data=parts)])
    answers = client.ask(request, 12).responses[0].partition_responses
    first = (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1) if is_truncated else (ErrorCode.NONE, 0)
    assert [(each.error_code, each.base_offset) for each in answers] == [first, (ErrorCode.NONE, 0)]


@pytest.mark.parametrize("first", [0, 3])
def test_a_request_for_very_many_partitions_is_carried_out_in_slices(
    client: WireClient, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """Also if there is no such partition where the first slice ends."""
    begun: list[int] = []
    append_rest = handler._append_rest

    def noted(broker: Any, call: Any, request: Any, verified: Any, told: list[Any], appended: Any) -> Any:
        begun.append(len(told))
        return append_rest(broker, call, request, verified, told, appended)

    monkeypatch.setattr(handler, "_append_rest", noted)
    topic = client.new_topic(3)
    kind = m.ProduceRequest
    batch = bytes(build_batch([(0, time.time_ns() // 1_000_000, b"k", b"v", ())]))
    parts = [kind.PartitionProduceData(index=(first + at) % 5, records=batch) for at in range(1_000)]
    request = kind(acks=-1, timeout_ms=5_000, topic_data=[kind.TopicProduceData(name=topic, partition_data=parts)])
    answers = client.ask(request, 12).responses[0].partition_responses
    assert [each.index for each in answers] == [(first + at) % 5 for at in range(1_000)]
    assert [each.base_offset for each in answers if each.index == 2] == list(range(200))
    assert {each.error_code for each in answers if each.index > 2} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert begun == [200]


def test_cleanings_leave_threads_for_requests() -> None:
    """However many are under way, and however long they take."""
    with Broker({"log.cleaner.threads": 6}) as broker, WireClient(broker.bootstrap_servers) as client:
        topic = client.new_topic(cleanup_policy="compact")
        executor = broker._inner.node.broker.executor
        is_over = threading.Event()
        cleanings = [executor.submit(is_over.wait, 60) for _ in range(6)]
        now = time.time_ns() // 1_000_000
        heavy = bytes(build_batch([(at, now, b"k%d" % at, b"v", ()) for at in range(800)]))
        try:
            assert client.produce_batch(topic, heavy).error_code == 0
        finally:
            is_over.set()
        assert all(each.result() for each in cleanings)
