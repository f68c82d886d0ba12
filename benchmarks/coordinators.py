"""Groups and transactions beside Apache Kafka: same machine, same run, same clients, rounds taken in turns."""

import asyncio
import statistics
import time
from contextlib import ExitStack
from typing import Any, TypeVar

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

from benchmarks.broker import PEER, QUIET, Server, apache_kafka, create, moldau
from benchmarks.rows import Row
from moldau.net import RealNetwork, new_event_loop
from moldau.seams.network import ClientConnection
from moldau.wire import ErrorCode, Message, apis, decode, encode
from moldau.wire import messages as m
from moldau.wire.headers import decode_response_header, encode_request_header

ROUNDS = 3
MEMBERS = 100
COMMITS = 4_000
COMMITTERS = 8
TRANSACTIONS = 300
RECORDS = 1_000_000
PER_TRANSACTION = 10_000

# Both sides with a short first wait, so that the rebalance itself is measured and not a setting.
GROUPS = {"group.initial.rebalance.delay.ms": "100"}

R = TypeVar("R", bound=Message)


class Caller:
    """One connection that speaks the protocol directly: nothing of a client's own pace is measured."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    async def call(self, request: Message, version: int, answer: type[R]) -> R:
        api = apis()[request.number]
        header = encode_request_header(api, version, 1, "bench")
        frame = await self._connection.request([header, encode(request, version)], timeout_ms=60_000)
        _, position = decode_response_header(frame, header_version=api.response_header_version(version))
        return decode(answer, version, frame[position:])


async def connect(network: RealNetwork, server: Server) -> Caller:
    host, port = server.bootstrap_servers.split(":")
    return Caller(await network.connect(host, int(port)))


async def find_coordinator(caller: Caller, group: str) -> None:
    """Also creates the offsets topic; until it is there, ask again."""
    while True:
        request = m.FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
        found = await caller.call(request, 4, m.FindCoordinatorResponse)
        if found.coordinators[0].error_code == ErrorCode.NONE:
            return
        await asyncio.sleep(0.1)


async def rebalance_seconds(network: RealNetwork, server: Server, group: str) -> float:
    """A hundred members join at once: from the first request until the last has its assignment."""
    callers = [await connect(network, server) for _ in range(MEMBERS)]
    await find_coordinator(callers[0], group)
    started = time.perf_counter()
    await asyncio.gather(*(_take_part(caller, group) for caller in callers))
    return time.perf_counter() - started


async def _take_part(caller: Caller, group: str) -> None:
    protocol = m.JoinGroupRequest.JoinGroupRequestProtocol("range", b"\0" * 10)
    member_id = ""
    while True:
        join = m.JoinGroupRequest(group, 30_000, 30_000, member_id, None, "consumer", [protocol])
        joined = await caller.call(join, 7, m.JoinGroupResponse)
        member_id = joined.member_id or member_id
        if joined.error_code != ErrorCode.NONE:
            continue
        assignments = [
            m.SyncGroupRequest.SyncGroupRequestAssignment(member.member_id, b"assignment")
            for member in (joined.members if joined.leader == member_id else [])
        ]
        sync = m.SyncGroupRequest(group, joined.generation_id, member_id, None, "consumer", "range", assignments)
        synced = await caller.call(sync, 5, m.SyncGroupResponse)
        if synced.error_code == ErrorCode.NONE and len(joined.members) in (0, MEMBERS):
            return


async def commits_per_second(network: RealNetwork, server: Server, topic: str, group: str) -> float:
    callers = [await connect(network, server) for _ in range(COMMITTERS)]
    await find_coordinator(callers[0], group)

    async def commit(caller: Caller, count: int) -> None:
        for number in range(count):
            partition = m.OffsetCommitRequest.OffsetCommitRequestPartition(0, number, -1, "")
            of_topic = m.OffsetCommitRequest.OffsetCommitRequestTopic(topic, partitions=[partition])
            request = m.OffsetCommitRequest(group, -1, "", topics=[of_topic])
            answer = await caller.call(request, 8, m.OffsetCommitResponse)
            assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE

    await commit(callers[0], 50)
    started = time.perf_counter()
    await asyncio.gather(*(commit(caller, COMMITS // COMMITTERS) for caller in callers))
    return COMMITS / (time.perf_counter() - started)


def transactional_producer(server: Server, name: str) -> Producer:
    settings: dict[str, Any] = {
        "bootstrap.servers": server.bootstrap_servers,
        "transactional.id": name,
        "linger.ms": 0,
        "queue.buffering.max.messages": RECORDS,
        **QUIET,
    }
    producer = Producer(settings)
    producer.init_transactions(60)
    return producer


def transactions_per_second(server: Server, topic: str) -> float:
    producer = transactional_producer(server, f"per-second-{topic}")
    started = 0.0
    for number in range(TRANSACTIONS + 20):
        if number == 20:
            started = time.perf_counter()
        producer.begin_transaction()
        producer.produce(topic, b"x" * 100)
        producer.commit_transaction(60)
    return TRANSACTIONS / (time.perf_counter() - started)


def read_committed_per_second(server: Server, topic: str) -> float:
    """Every tenth transaction is aborted; what is read is what was committed.

    Timed from the first record on: the client needs half a second to find its way, whoever the broker is.
    """
    producer = transactional_producer(server, f"read-committed-{topic}")
    value = b"x" * 100
    committed = 0
    for number in range(RECORDS // PER_TRANSACTION):
        producer.begin_transaction()
        for _ in range(PER_TRANSACTION):
            producer.produce(topic, value)
        if number % 10 == 9:
            producer.flush(60)  # else the client would drop the records instead of having them aborted
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)
            committed += PER_TRANSACTION
    settings: dict[str, Any] = {
        "bootstrap.servers": server.bootstrap_servers,
        "group.id": "bench",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "queued.min.messages": 10_000_000,
        "fetch.message.max.bytes": 8 << 20,
        **QUIET,
    }
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    seen = len(consumer.consume(1, timeout=30))
    assert seen == 1
    started = time.perf_counter()
    while seen < committed:
        for message in consumer.consume(min(50_000, committed - seen), timeout=30):
            error = message.error()
            assert error is None or error.code() == KafkaError._PARTITION_EOF
            seen += error is None
    rate = (committed - 1) / (time.perf_counter() - started)
    consumer.close()
    return rate


async def measure_groups(server: Server, turn: int) -> tuple[float, float]:
    network = RealNetwork()
    try:
        rebalance = await rebalance_seconds(network, server, f"rebalance-{turn}")
        commits = await commits_per_second(network, server, f"commits-{turn}", f"commits-{turn}")
    finally:
        await network.stop(0)
    return rebalance, commits


def rows() -> list[Row]:
    found: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        servers = {"moldau": stack.enter_context(moldau(GROUPS)), PEER: stack.enter_context(apache_kafka(GROUPS))}
        for turn in range(ROUNDS + 1):  # the first warms up the JVM, and is not counted
            for who, server in servers.items():
                for topic in (f"commits-{turn}", f"txn-{turn}", f"committed-{turn}"):
                    create(server, topic)
                with asyncio.Runner(loop_factory=new_event_loop) as runner:
                    rebalance, commits = runner.run(measure_groups(server, turn))
                values = {
                    "rebalance": rebalance,
                    "commits": commits,
                    "transactions": transactions_per_second(server, f"txn-{turn}"),
                    "read committed": read_committed_per_second(server, f"committed-{turn}"),
                }
                for name, value in values.items() if turn else ():
                    found.setdefault(name, {}).setdefault(who, []).append(value)

    def row(name: str, key: str, unit: str, better: str) -> Row:
        middle = {who: statistics.median(values) for who, values in found[key].items()}
        return Row(name, middle["moldau"], unit, {PEER: middle[PEER]}, "", better)  # type: ignore[arg-type]  # one of the two words

    return [
        row(f"Rebalance of {MEMBERS} members joining at once", "rebalance", "s", "lower"),
        row(f"Offset commits, {COMMITTERS} connections", "commits", "commits/s", "higher"),
        row("Transactions of one record, one producer", "transactions", "txn/s", "higher"),
        row("Consume 100 B read_committed, a tenth aborted", "read committed", "records/s", "higher"),
    ]
