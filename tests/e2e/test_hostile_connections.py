"""Garbage, floods and silence on real sockets: the guilty connection closes or waits, all others are served."""

import random
import struct
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from confluent_kafka import Consumer, TopicPartition

from moldau.net import Listener, NetCounters
from moldau.testing import Broker
from moldau.wire import ErrorCode
from moldau.wire import messages as m
from tests.e2e.raw import Raw, header, request_frame, with_length
from tests.support.clients import CONFLUENT, Sent, create_topic, fresh, quiet, take, wait_for

API_VERSIONS, PRODUCE, FETCH = 18, 0, 1


def _counters(broker: Broker) -> NetCounters:
    listener = next(iter(broker.node._listeners.values()))
    assert isinstance(listener, Listener)
    return listener.counters


@pytest.fixture(autouse=True)
def others_are_served(bootstrap: str) -> Iterator[None]:
    """After every attack an ordinary client gets its work done, and a connection opened before still works."""
    with Raw(bootstrap) as bystander:
        bystander.ask(m.ApiVersionsRequest("bystander", "1"))
        yield
        assert bystander.ask(m.MetadataRequest(topics=[])).brokers
    topic = create_topic(bootstrap, "innocent")
    CONFLUENT.send(bootstrap, topic, [Sent(b"still here")], "none")
    assert CONFLUENT.read(bootstrap, topic, 1, 0)[0].value == b"still here"


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
        b"\xff" * 64,
        struct.pack(">i", -1) + b"x",
        struct.pack(">i", -(2**31)),
        struct.pack(">i", 2**31 - 1) + b"x" * 100,
        struct.pack(">i", 104_857_601),
        with_length(b""),
        with_length(b"\x00"),
        with_length(header(9_999, 0)),
        with_length(header(-1, 0)),
        with_length(header(PRODUCE, 2)),
        with_length(header(PRODUCE, 99)),
        with_length(header(FETCH, 3)),
        with_length(header(FETCH, -1)),
        with_length(header(19, 0)),
        with_length(struct.pack(">hhih", 3, 1, 1, 2_000) + b"short"),
        with_length(struct.pack(">hhih", 3, 1, 1, 2) + b"\xff\xfe" + bytes(4)),
        with_length(header(3, 1) + struct.pack(">i", 2**31 - 1)),
        with_length(header(FETCH, 4) + b"\x7f" * 40),
        with_length(header(PRODUCE, 3) + b"\x7f" * 40),
    ],
    ids=lambda data: data[:12].hex(),
)
def test_what_is_not_kafka_closes_the_connection(bootstrap: str, data: bytes) -> None:
    with Raw(bootstrap) as raw:
        raw.send(data)
        assert raw.is_closed_by_peer()


def test_random_bytes_close_connections_and_nothing_else(broker: Broker, bootstrap: str) -> None:
    source = random.Random(20)
    counters = _counters(broker)
    for _ in range(300):
        with Raw(bootstrap) as raw:
            api_key, version = source.randrange(0, 95), source.randrange(0, 18)
            body = source.randbytes(source.randrange(0, 200))
            raw.send(with_length(struct.pack(">hhi", api_key, version, 7) + body))
            raw.socket.shutdown(1)
            assert raw.is_closed_by_peer()
    assert counters.handler_errors == 0


def test_truncated_frames_are_forgotten(broker: Broker, bootstrap: str) -> None:
    whole = request_frame(m.MetadataRequest(topics=None), 12)
    for cut in range(1, len(whole)):
        with Raw(bootstrap) as raw:
            raw.send(whole[:cut])
    counters = _counters(broker)
    wait_for(lambda: counters.connections_open <= 2, "all of them are closed")


@pytest.mark.parametrize("version", [5, 99, 32_767])
def test_an_unknown_version_of_api_versions_is_answered_in_version_0(bootstrap: str, version: int) -> None:
    with Raw(bootstrap) as raw:
        raw.send(with_length(header(API_VERSIONS, version, 77) + b"\x00"))
        answer = raw.read_frame()
        correlation_id, error_code, count = struct.unpack_from(">ihi", answer)
        assert (correlation_id, error_code) == (77, ErrorCode.UNSUPPORTED_VERSION)
        offered = {key: (first, last) for key, first, last in struct.iter_unpack(">hhh", answer[10 : 10 + 6 * count])}
        assert offered[API_VERSIONS] == (0, 4)
        # And the connection is good for another try.
        assert raw.ask(m.ApiVersionsRequest("raw", "1"), 4).error_code == 0


def test_a_stalled_sender_stops_nobody(bootstrap: str) -> None:
    """Half requests, some announcing 100 MB, stay open while everybody else is served; finished, they are answered."""
    whole = request_frame(m.MetadataRequest(topics=[]), 12)
    with ExitStack() as stack:
        slow = [stack.enter_context(Raw(bootstrap)) for _ in range(50)]
        for number, raw in enumerate(slow):
            raw.send(struct.pack(">i", 104_857_600) if number % 2 else whole[: number % (len(whole) - 1) + 1])
        topic = create_topic(bootstrap, "beside-the-slow")
        CONFLUENT.send(bootstrap, topic, [Sent(b"%d" % n) for n in range(1_000)], "none")
        for byte_number in range(len(whole)):  # one byte from each at a time
            for number, raw in enumerate(slow):
                sent = number % (len(whole) - 1) + 1
                if not number % 2 and sent + byte_number < len(whole):
                    raw.send(whole[sent + byte_number : sent + byte_number + 1])
        for number, raw in enumerate(slow):
            if not number % 2:
                assert raw.read_frame()


def test_a_reader_that_does_not_read_stops_nobody(bootstrap: str) -> None:
    topic = create_topic(bootstrap, "unread")
    CONFLUENT.send(bootstrap, topic, [Sent(bytes(500_000)) for _ in range(40)], "none")
    kind = m.FetchRequest
    wanted = kind.FetchTopic(topic=topic, partitions=[kind.FetchPartition(0, -1, 0, partition_max_bytes=50_000_000)])
    fetch = request_frame(kind(max_wait_ms=0, min_bytes=1, max_bytes=50_000_000, topics=[wanted]), 12)
    with ExitStack() as stack:
        deaf = [stack.enter_context(Raw(bootstrap)) for _ in range(20)]
        for raw in deaf:
            raw.send(fetch * 20)
        consumer = Consumer(quiet(bootstrap, group_id=fresh("reader")))
        try:
            consumer.assign([TopicPartition(topic, 0, 0)])
            assert len(take(consumer, 40)) == 40
        finally:
            consumer.close()
        # A deaf one that listens again gets its answers, in order and complete.
        sizes = {len(deaf[0].read_frame()) for _ in range(3)}
        assert len(sizes) == 1
        assert sizes.pop() > 15_000_000


def test_one_who_asks_without_reading_is_not_read_either(bootstrap: str) -> None:
    """Requests beyond what may be in flight stay in the sender's own buffers: the broker takes no more."""
    with Raw(bootstrap) as raw:
        flood = request_frame(m.MetadataRequest(topics=None), 12) * 1_000
        raw.socket.setblocking(False)
        sent = 0
        try:
            while sent < 1 << 30:
                sent += raw.socket.send(flood)
        except BlockingIOError:
            pass
        else:
            raise AssertionError("the broker swallowed 1 GiB of requests")


def test_half_closed_connections_are_let_go(broker: Broker, bootstrap: str) -> None:
    counters = _counters(broker)
    with ExitStack() as stack:
        for _ in range(30):
            raw = stack.enter_context(Raw(bootstrap))
            raw.ask(m.ApiVersionsRequest("raw", "1"))
            raw.socket.shutdown(1)
            assert raw.is_closed_by_peer()
        wait_for(lambda: counters.connections_open <= 2, "all of them are closed")


def test_a_long_poll_of_one_who_left_is_dropped(broker: Broker, bootstrap: str) -> None:
    topic = create_topic(bootstrap, "abandoned")
    kind = m.FetchRequest
    wanted = kind.FetchTopic(topic=topic, partitions=[kind.FetchPartition(0, -1, 0, partition_max_bytes=1_000)])
    fetch = request_frame(kind(max_wait_ms=600_000, min_bytes=1, max_bytes=1_000, topics=[wanted]), 12)
    counters = _counters(broker)
    for _ in range(50):
        with Raw(bootstrap) as raw:
            raw.send(fetch)
    wait_for(lambda: counters.connections_open <= 2, "all of them are closed")
    # Their fetches are woken into nothing.
    assert CONFLUENT.send(bootstrap, topic, [Sent(b"v")], "none") == [0]


def test_idle_and_stalled_connections_are_closed_in_time() -> None:
    with (
        Broker({"connections.max.idle.ms": "300"}) as broker,
        Raw(broker.bootstrap_servers) as idle,
        Raw(broker.bootstrap_servers) as stalled,
    ):
        idle.ask(m.ApiVersionsRequest("raw", "1"))
        stalled.send(b"\x00\x00")
        assert idle.is_closed_by_peer()
        assert stalled.is_closed_by_peer()


def test_idle_connections_may_stay_for_ever() -> None:
    with (
        Broker({"connections.max.idle.ms": "-1"}) as broker,
        Raw(broker.bootstrap_servers) as raw,
    ):
        assert raw.ask(m.ApiVersionsRequest("raw", "1")).error_code == 0
        assert raw.ask(m.MetadataRequest(topics=[])).brokers


def test_connections_per_address_are_limited() -> None:
    with Broker({"max.connections.per.ip": "3"}) as broker, ExitStack() as stack:
        address = broker.bootstrap_servers
        first = [stack.enter_context(Raw(address)) for _ in range(3)]
        for raw in first:
            raw.ask(m.ApiVersionsRequest("raw", "1"))
        assert stack.enter_context(Raw(address)).is_closed_by_peer()
        first[0].ask(m.ApiVersionsRequest("raw", "1"))
