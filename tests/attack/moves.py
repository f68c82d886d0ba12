"""What an attacker does: every API the broker serves, legal, mutated and huge; and what was found to hurt once.

Each move is a function of a bootstrap address and a size between 0 and 1; none depends on another.
"""

import contextlib
import random
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

from moldau.broker.requests.registry import served_on
from moldau.records import BatchOptions, Codec, build_batch, compress
from moldau.records.batch import ATTRIBUTES_AT, CRC_AT, HEADER_BYTES, LAST_OFFSET_DELTA_AT
from moldau.records.checksum import crc32c
from moldau.wire import Message, apis, encode
from moldau.wire import messages as m
from moldau.wire.headers import encode_request_header
from tests.broker.requests.handlers.wire_client import WireClient
from tests.support.clients import wait_for
from tests.support.random_messages import random_message

Move = Callable[[str, float], None]
_TIMEOUT_S = 60.0
# What takes the node, or the cluster, away from everybody if it is legal: not an attack but an order.
_ORDERS = {"UnregisterBroker", "UpdateFeatures", "AlterConfigs", "IncrementalAlterConfigs", "ElectLeaders"}


def _connect(bootstrap: str) -> socket.socket:
    host, _, port = bootstrap.rpartition(":")
    return socket.create_connection((host, int(port)), _TIMEOUT_S)


def _frame(request: Message, version: int) -> bytes:
    api = apis()[type(request).number]
    data = encode_request_header(api, version, 1, "attacker") + encode(request, version)
    return struct.pack(">i", len(data)) + data


def _exchange(bootstrap: str, frame: bytes, seconds: float = _TIMEOUT_S) -> int:
    """Send it and wait for an answer, or for the end of the connection; how much came."""
    with _connect(bootstrap) as sock:
        sock.settimeout(seconds)
        with contextlib.suppress(TimeoutError, ConnectionError):
            sock.sendall(frame)
            head = sock.recv(4)
            if len(head) < 4:
                return 0
            left = size = struct.unpack(">i", head)[0]
            while left > 0 and (part := sock.recv(min(left, 1 << 20))):
                left -= len(part)
            return int(size)
    return 0


def every_api(bootstrap: str, size: float) -> None:
    """Each in a few versions: as the table allows it, with some bytes changed, cut short, and with numbers that lie."""
    rng = random.Random(14)
    wait_s = 0.2 * size
    for served in served_on("broker").values():
        versions = list(served.api.versions)
        chosen = {versions[0], versions[-1], rng.choice(versions)} if size >= 0.5 else {rng.choice(versions)}
        for version in () if served.api.name in _ORDERS else sorted(chosen):
            for _ in range(max(1, round(4 * size))):
                frame = bytearray(_frame(random_message(f"{served.api.name}Request", version, rng), version))
                _exchange(bootstrap, bytes(frame), wait_s)
                for _ in range(rng.randrange(1, 6)):
                    frame[rng.randrange(12, len(frame))] = rng.randrange(256)
                _exchange(bootstrap, bytes(frame), wait_s)
                cut = bytes(frame[4 : rng.randrange(13, len(frame) + 1)])
                _exchange(bootstrap, struct.pack(">i", len(cut)) + cut, wait_s)


def every_list(bootstrap: str, size: float) -> None:
    """Every list that a request of any API may have, very long; its elements come several times each."""
    for served in served_on("broker").values():
        if served.api.name not in _ORDERS:
            for frame in long_requests(served.api.name, served.api.versions.last, round(100_000 * size)):
                _exchange(bootstrap, frame)


def long_requests(name: str, version: int, count: int) -> Iterator[bytes]:
    """A request for each of its lists, with so many elements in that one."""
    rng = random.Random(15)
    places = {place for _ in range(20) for place, _ in _lists(random_message(f"{name}Request", version, rng))}
    for place in sorted(places):
        message = random_message(f"{name}Request", version, rng)
        elements: list[object] = []
        for _ in range(min(500, count // 30)):  # enough of them to have many different elements
            found = [each for at, each in _lists(random_message(f"{name}Request", version, rng)) if at == place]
            elements += found[0] if found else []
        lists = [each for at, each in _lists(message) if at == place]
        while not lists:
            message = random_message(f"{name}Request", version, rng)
            lists = [each for at, each in _lists(message) if at == place]
        lists[0][:] = [elements[number % len(elements)] for number in range(count)] if elements else []
        yield _frame(message, version)


def _lists(struct: object, place: str = "") -> Iterator[tuple[str, list[object]]]:
    """Every list below, and where it is; of a list's elements, those of the first."""
    for name in type(struct).__slots__:  # type: ignore[attr-defined]  # all structs have them
        value = getattr(struct, name, None)
        if isinstance(value, list):
            yield f"{place}/{name}", value
            if value and hasattr(type(value[0]), "__slots__") and not isinstance(value[0], str | bytes | int | float):
                yield from _lists(value[0], f"{place}/{name}")


def huge_lists(bootstrap: str, size: float) -> None:
    many = round(1_000_000 * size)
    kind, offsets, fetch = m.MetadataRequest, m.ListOffsetsRequest, m.FetchRequest
    names = [kind.MetadataRequestTopic(name=f"n{number}") for number in range(many)]
    _exchange(bootstrap, _frame(kind(names[: many * 9 // 10], False), 9))
    wanted = [offsets.ListOffsetsPartition(number, -1, -1) for number in range(many * 9 // 10)]
    _exchange(bootstrap, _frame(offsets(-1, topics=[offsets.ListOffsetsTopic("bystander", wanted)]), 7))
    partitions = [fetch.FetchPartition(number, -1, 0, -1, -1, 100) for number in range(many // 2)]
    topics = [fetch.FetchTopic(topic="bystander", partitions=partitions)]
    _exchange(bootstrap, _frame(fetch(max_wait_ms=100, min_bytes=1, max_bytes=1_000_000, topics=topics), 12))
    produce = m.ProduceRequest
    entries = [produce.PartitionProduceData(number, None) for number in range(many // 2)]
    request = produce(None, 1, 1_000, [produce.TopicProduceData(name="nothing", partition_data=entries)])
    _exchange(bootstrap, _frame(request, 9))


def doubled_names(bootstrap: str, size: float) -> None:
    count = round(20_000 * size)
    topics, grow = m.CreateTopicsRequest, m.CreatePartitionsRequest
    doubled = [f"d{number % (count // 2)}" for number in range(count)]
    _exchange(bootstrap, _frame(topics([topics.CreatableTopic(name, 1, 1) for name in doubled], 1_000), 7))
    _exchange(bootstrap, _frame(grow([grow.CreatePartitionsTopic(name, 3, None) for name in doubled], 1_000), 3))
    too_many = [grow.CreatePartitionsTopic("bystander", 20_000, None)]
    _exchange(bootstrap, _frame(grow(too_many, 1_000, True), 3))


def large_topic(bootstrap: str, size: float) -> None:
    """Made, changed and deleted: at once, and when all of it is there."""
    topics, gone, alter = m.CreateTopicsRequest, m.DeleteTopicsRequest, m.IncrementalAlterConfigsRequest
    count = round(1_000 * size)
    name = f"large-{time.monotonic_ns()}"
    create = _frame(topics([topics.CreatableTopic(name, count, 1)], 10_000), 7)
    delete = _frame(gone([gone.DeleteTopicState(name)], [], 10_000), 6)
    _exchange(bootstrap, create)
    _exchange(bootstrap, delete)
    _exchange(bootstrap, create)
    describe = _frame(m.DescribeLogDirsRequest(None), 4)
    deadline = time.monotonic() + _TIMEOUT_S
    while _exchange(bootstrap, describe) < count * 20 and time.monotonic() < deadline:  # so many bytes for each
        time.sleep(0.2)
    change = alter([alter.AlterConfigsResource(2, name, [alter.AlterableConfig("retention.ms", 0, "1000000")])])
    _exchange(bootstrap, _frame(change, 1))
    _exchange(bootstrap, delete)
    _exchange(bootstrap, create)
    _exchange(bootstrap, delete)


def many_topics(bootstrap: str, size: float) -> None:
    """As many as one request may make (10,000 records): topics of one partition each, and partitions of one topic."""
    topics, gone = m.CreateTopicsRequest, m.DeleteTopicsRequest
    count = round(5_000 * size)
    stem = f"many-{time.monotonic_ns()}"
    for wanted in ([(f"{stem}-{number}", 1) for number in range(count)], [(stem, 2 * count - 1)]):
        create = topics([topics.CreatableTopic(name, partitions, 1) for name, partitions in wanted], 30_000)
        _exchange(bootstrap, _frame(create, 7))
        delete = gone([gone.DeleteTopicState(name) for name, _ in wanted], [], 30_000)
        _exchange(bootstrap, _frame(delete, 6))


def wide_transaction(bootstrap: str, size: float) -> None:
    """One Produce that takes very many partitions into its transaction, and the end of it."""
    topics, gone, produce = m.CreateTopicsRequest, m.DeleteTopicsRequest, m.ProduceRequest
    count = round(2_000 * size)
    name = f"wide-{time.monotonic_ns()}"
    _exchange(bootstrap, _frame(topics([topics.CreatableTopic(name, count, 1)], 30_000), 7))
    with WireClient(bootstrap) as client:

        def begin() -> Any:
            answer = client.ask(m.InitProducerIdRequest(name, 60_000), 4)
            return None if answer.error_code else answer  # its coordinator may have to be made first

        given = wait_for(begin, "the producer has an id", _TIMEOUT_S)
    writer = BatchOptions(
        producer_id=given.producer_id, producer_epoch=given.producer_epoch, base_sequence=0, transactional=True
    )
    batch = bytes(build_batch([(0, time.time_ns() // 1_000_000, b"k", b"v", ())], writer))
    data = [produce.PartitionProduceData(number, batch) for number in range(count)]
    request = produce(name, -1, 30_000, [produce.TopicProduceData(name=name, partition_data=data)])
    _exchange(bootstrap, _frame(request, 12))
    with WireClient(bootstrap) as client:
        client.ask(m.EndTxnRequest(name, given.producer_id, given.producer_epoch, True), 3)

        def is_ended() -> bool:
            (state,) = client.ask(m.DescribeTransactionsRequest([name])).transaction_states
            return not state.transaction_state.startswith("Prepare")

        wait_for(is_ended, "each partition has its marker", _TIMEOUT_S)
    _exchange(bootstrap, _frame(gone([gone.DeleteTopicState(name)], [], 30_000), 6))


def _bomb(count: int, timestamp_ms: int) -> bytes:
    record = bytes((12, 0, 0, 0, 1, 1, 0))
    data = bytearray(build_batch([(0, timestamp_ms, b"k", b"v", ())]))[:HEADER_BYTES]
    data += compress(Codec.ZSTD, record * count)
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">h", data, ATTRIBUTES_AT, Codec.ZSTD)
    struct.pack_into(">i", data, LAST_OFFSET_DELTA_AT, count - 1)
    struct.pack_into(">i", data, 57, count)
    struct.pack_into(">I", data, CRC_AT, crc32c(bytes(data[ATTRIBUTES_AT:])))
    return bytes(data)


def bombs(bootstrap: str, size: float) -> None:
    """A KB that stands for millions of records: on a plain topic with times to come, and on one that reads records."""
    topics = m.CreateTopicsRequest
    config = topics.CreatableTopicConfig("cleanup.policy", "compact")
    made = [topics.CreatableTopic("bombed", 1, 1), topics.CreatableTopic("bombed-compact", 1, 1, configs=[config])]
    _exchange(bootstrap, _frame(topics(made, 10_000), 7))
    produce = m.ProduceRequest
    now = time.time_ns() // 1_000_000
    for topic, when in (("bombed", now + 10**9), ("bombed-compact", now), ("bombed-compact", now + 10**9)):
        data = produce.PartitionProduceData(0, _bomb(round(4_000_000 * size), when))
        request = produce(None, 1, 10_000, [produce.TopicProduceData(name=topic, partition_data=[data])])
        _exchange(bootstrap, _frame(request, 9))


def pipelines(bootstrap: str, size: float) -> None:
    """Thousands of requests at once, their answers not read for a while."""
    frame = _frame(m.MetadataRequest(None), 9)
    count = round(10_000 * size)
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(_connect(bootstrap)) for _ in range(max(2, round(50 * size)))]
        for sock in crowd:
            sock.setblocking(False)
            with contextlib.suppress(BlockingIOError, ConnectionError):
                sock.send(frame * (count // 5))
        single = stack.enter_context(_connect(bootstrap))
        single.sendall(_frame(m.ApiVersionsRequest("attacker", "1"), 3) * count)
        single.settimeout(1)
        with contextlib.suppress(TimeoutError, ConnectionError):
            while single.recv(1 << 20):
                time.sleep(0.001)


def half_requests(bootstrap: str, size: float) -> None:
    """Frames announced and begun."""
    with contextlib.ExitStack() as stack:
        for _ in range(round(1_000 * size)):
            stack.enter_context(_connect(bootstrap)).sendall(struct.pack(">i", 100_000_000) + bytes(8))
        for _ in range(4):
            sock = stack.enter_context(_connect(bootstrap))
            sock.settimeout(2)
            with contextlib.suppress(TimeoutError, ConnectionError):
                sock.sendall(struct.pack(">i", 100_000_000) + bytes(round(99_000_000 * size)))
        time.sleep(0.2)


def patterns(bootstrap: str, size: float) -> None:
    """Regular expressions that other engines do not survive, over long names."""
    _exchange(bootstrap, _frame(m.InitProducerIdRequest("ab" * round(10_000 * size), 60_000), 4), 2)
    for pattern in ("(a|b)*a(a|b){600}", "(a+)+$", "((((){1000}){1000}){20})", r"\PL" * 300):
        _exchange(bootstrap, _frame(m.ListTransactionsRequest(transactional_id_pattern=pattern), 2))
    kind = m.IncrementalAlterConfigsRequest
    configs = [kind.AlterableConfig("match", 0, "client_id=(a|b)*a(a|b){600}"), kind.AlterableConfig("metrics", 0, "*")]
    _exchange(bootstrap, _frame(kind([kind.AlterConfigsResource(16, "attack", configs)]), 1))
    api = apis()[m.GetTelemetrySubscriptionsRequest.number]
    body = encode_request_header(api, 0, 1, "ab" * round(10_000 * size))
    body += encode(m.GetTelemetrySubscriptionsRequest(), 0)
    _exchange(bootstrap, struct.pack(">i", len(body)) + body)


def crowd(bootstrap: str, size: float) -> None:
    """Connections, all at once."""
    with contextlib.ExitStack() as stack:
        for _ in range(round(3_000 * size)):
            stack.enter_context(_connect(bootstrap))


MOVES: dict[str, Move] = {
    each.__name__.replace("_", " "): each
    for each in (
        every_api,
        every_list,
        huge_lists,
        doubled_names,
        large_topic,
        many_topics,
        wide_transaction,
        bombs,
        pipelines,
        half_requests,
        patterns,
        crowd,
    )
}


def names() -> Iterator[str]:
    yield from MOVES
