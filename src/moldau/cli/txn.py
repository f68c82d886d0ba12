"""`moldau txn …`: transactions that are open, producers of a partition, and those that hang."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from moldau.cli.failure import ExitCode, fail
from moldau.cli.frame import Commands, Output, Target
from moldau.cli.places import show_time

if TYPE_CHECKING:
    from moldau.client.admin import Admin

app = Commands(help="Transactions: list, describe, producers, hanging ones, abort.")

TransactionalId = Annotated[str, typer.Argument(metavar="ID", help="A transactional id.")]
_NO_DURATION = -1
_NEVER_HANGS_MINUTES = 15
_OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")


@app.command("list", watchable=True)
def list_transactions(
    target: Target,
    output: Output,
    states: Annotated[
        list[str] | None, typer.Option("--state", help="Only in this state: Ongoing, PrepareCommit…; repeatable.")
    ] = None,
    longer_than: Annotated[
        float | None, typer.Option("--longer-than", metavar="SECONDS", min=0, help="Only open for so long.")
    ] = None,
) -> None:
    """All transactional ids the coordinators know."""
    rows = []
    with target.admin() as admin:
        for coordinator, each in _transactions(admin, states or [], longer_than):
            if longer_than is not None and each.transaction_state not in _OPEN_STATES:
                continue  # brokers count from the last beginning, whatever became of it
            rows.append(
                {
                    "id": each.transactional_id,
                    "coordinator": coordinator,
                    "producer_id": each.producer_id,
                    "state": each.transaction_state,
                }
            )
    output.show(sorted(rows, key=lambda row: str(row["id"])), empty="no transactions")


def _transactions(
    admin: Admin, states: list[str], longer_than: float | None, producer_ids: list[int] | None = None
) -> list[tuple[int, Any]]:
    from moldau.client.connection import BrokerError
    from moldau.wire.messages import ListTransactionsRequest, ListTransactionsResponse

    request = ListTransactionsRequest(
        state_filters=states,
        producer_id_filters=producer_ids or [],
        duration_filter=_NO_DURATION if longer_than is None else int(longer_than * 1000),
    )
    admin.metadata([])
    found = []
    for broker in sorted(admin.brokers):
        answer = admin.ask_broker(broker, request, ListTransactionsResponse)
        if answer.error_code:
            raise BrokerError(answer.error_code, f"transactions of broker {broker}")
        if answer.unknown_state_filters:
            fail(f"no transaction has the state {', '.join(answer.unknown_state_filters)}", ExitCode.USAGE)
        found += [(broker, each) for each in answer.transaction_states]
    return found


@app.command(watchable=True)
def describe(target: Target, output: Output, transactional_id: TransactionalId) -> None:
    """One transactional id: its producer, state, age, and the partitions that are in."""
    from moldau.client.admin import TRANSACTION
    from moldau.client.connection import BrokerError
    from moldau.wire.messages import DescribeTransactionsRequest, DescribeTransactionsResponse

    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    with target.admin() as admin:
        answer = admin.ask_coordinator(TRANSACTION, transactional_id, request, DescribeTransactionsResponse)
    (state,) = answer.transaction_states
    if state.error_code:
        raise BrokerError(state.error_code, f"transactional id {transactional_id}")
    started = state.transaction_start_time_ms
    found = {
        "id": state.transactional_id,
        "state": state.transaction_state,
        "producer_id": state.producer_id,
        "producer_epoch": state.producer_epoch,
        "timeout_ms": state.transaction_timeout_ms,
        "started": show_time(started),
        "seconds": None if started < 0 else round(time.time() - started / 1000, 1),
        "partitions": [f"{each.topic}-{index}" for each in state.topics for index in each.partitions],
    }
    if output.as_json or output.template is not None:
        output.show([found], document=found)
    else:
        output.show([{"what": name.replace("_", " "), "is": value} for name, value in found.items()])


@app.command(watchable=True)
def producers(
    target: Target,
    output: Output,
    topic: Annotated[str, typer.Argument(help="A topic.")],
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Only this partition.")] = None,
) -> None:
    """Producers that the leaders remember: sequences, epochs, open transactions."""
    with target.admin() as admin:
        rows = [
            {
                "partition": index,
                "producer_id": each.producer_id,
                "producer_epoch": each.producer_epoch,
                "last_sequence": each.last_sequence,
                "last_write": show_time(each.last_timestamp),
                "open_since_offset": each.current_txn_start_offset if each.current_txn_start_offset >= 0 else None,
            }
            for _, index, each in _producers(admin, [topic], partition)
        ]
    output.show(rows, empty="no idempotent producer has written there lately")


def _producers(
    admin: Admin, topics: list[str] | None, partition: int | None, broker: int | None = None
) -> list[tuple[str, int, Any]]:
    from moldau.client.connection import BrokerError
    from moldau.wire.messages import DescribeProducersRequest, DescribeProducersResponse

    by_leader: dict[int, dict[str, list[int]]] = {}
    for topic in admin.metadata(topics).topics:
        if topic.error_code:
            raise BrokerError(topic.error_code, f"topic {topic.name}")
        for row in topic.partitions:
            if row.leader_id < 0 or broker not in (None, row.leader_id):
                continue
            if partition in (None, row.partition_index):
                by_leader.setdefault(row.leader_id, {}).setdefault(str(topic.name), []).append(row.partition_index)
    if broker is not None and broker not in admin.brokers:
        admin.ask_broker(broker, DescribeProducersRequest(topics=[]), DescribeProducersResponse)  # which says so
    if topics and partition is not None and not by_leader:
        fail(f"{', '.join(topics)} has no partition {partition} with a leader", ExitCode.NOT_FOUND)
    found = []
    for leader, places in by_leader.items():
        request = DescribeProducersRequest(
            topics=[
                DescribeProducersRequest.TopicRequest(name=name, partition_indexes=indexes)
                for name, indexes in places.items()
            ]
        )
        answer = admin.ask_broker(leader, request, DescribeProducersResponse)
        for each in answer.topics:
            for result in each.partitions:
                if result.error_code:
                    raise BrokerError(result.error_code, f"producers of {each.name}-{result.partition_index}")
                found += [(each.name, result.partition_index, producer) for producer in result.active_producers]
    return sorted(found, key=lambda each: (each[0], each[1], each[2].producer_id))


@app.command(watchable=True)
def hanging(
    target: Target,
    output: Output,
    topics: Annotated[list[str] | None, typer.Argument(metavar="TOPIC...", help="All, if none are named.")] = None,
    minutes: Annotated[
        float, typer.Option("--older-than", metavar="MINUTES", min=0, help="Open for so long without a write.")
    ] = _NEVER_HANGS_MINUTES,
    broker: Annotated[int | None, typer.Option("--broker", min=0, help="Only partitions this broker leads.")] = None,
) -> None:
    """Transactions a partition waits for and no coordinator will end: readers stand still. Exits with 6 if any."""
    now_ms = time.time() * 1000
    with target.admin() as admin:
        old = [
            each
            for each in _open(admin, topics, None, broker)
            if now_ms - each.producer.last_timestamp >= minutes * 60_000
        ]
        hang = _hanging(admin, old)
    rows = [
        {
            "topic": each.topic,
            "partition": each.partition,
            "producer_id": each.producer.producer_id,
            "producer_epoch": each.producer.producer_epoch,
            "coordinator_epoch": each.producer.coordinator_epoch,
            "start_offset": each.producer.current_txn_start_offset,
            "minutes": round((now_ms - each.producer.last_timestamp) / 60_000, 1),
        }
        for each in hang
    ]
    output.show(rows, empty="none hang")
    if rows:
        fail("end each with: moldau txn abort TOPIC -p PARTITION --start-offset START_OFFSET", ExitCode.UNHEALTHY)


class Open(NamedTuple):
    """A transaction that a partition waits for, whoever knows of it elsewhere."""

    topic: str
    partition: int
    producer: Any


def _open(admin: Admin, topics: list[str] | None, partition: int | None, broker: int | None = None) -> list[Open]:
    return [
        Open(name, index, each)
        for name, index, each in _producers(admin, topics, partition, broker)
        if each.current_txn_start_offset >= 0
    ]


def _hanging(admin: Admin, suspects: list[Open]) -> list[Open]:
    """Those that no coordinator will end: it knows no such producer, or not that this one writes there.

    Who writes elsewhere, or has ended what it began, can still hang here. The coordinators are asked after the
    partitions, and those once more at the end: what began or ended meanwhile is not taken for one that hangs.
    """
    expected = _expected(admin, {each.producer.producer_id for each in suspects})
    hang = [
        each for each in suspects if (each.topic, each.partition) not in expected.get(each.producer.producer_id, {})
    ]
    if not hang:
        return []
    still = {
        (each.topic, each.partition, each.producer.producer_id, each.producer.current_txn_start_offset)
        for each in _open(admin, sorted({each.topic for each in hang}), None)
    }
    return [
        each
        for each in hang
        if (each.topic, each.partition, each.producer.producer_id, each.producer.current_txn_start_offset) in still
    ]


def _expected(admin: Admin, producer_ids: set[int]) -> dict[int, dict[tuple[str, int], str]]:
    """By producer: where its coordinator will write a marker, and the transactional id it does so for."""
    from moldau.client.admin import TRANSACTION
    from moldau.client.connection import BrokerError
    from moldau.wire import ErrorCode
    from moldau.wire.messages import DescribeTransactionsRequest, DescribeTransactionsResponse

    found: dict[int, dict[tuple[str, int], str]] = {}
    if not producer_ids:
        return found
    for _, listed in _transactions(admin, [], None, sorted(producer_ids)):
        request = DescribeTransactionsRequest(transactional_ids=[listed.transactional_id])
        answer = admin.ask_coordinator(TRANSACTION, listed.transactional_id, request, DescribeTransactionsResponse)
        (state,) = answer.transaction_states
        if state.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:  # it has expired meanwhile
            continue
        if state.error_code:
            raise BrokerError(state.error_code, f"transactional id {listed.transactional_id}")
        if state.transaction_state in _OPEN_STATES:
            found.setdefault(state.producer_id, {}).update(
                {(each.topic, index): listed.transactional_id for each in state.topics for index in each.partitions}
            )
    return found


@app.command(
    changes=True,
    examples=(
        "txn hanging",
        "txn abort orders --partition 0 --start-offset 4711",
    ),
)
def abort(
    target: Target,
    output: Output,
    topic: Annotated[str, typer.Argument(help="A topic.")],
    partition: Annotated[int, typer.Option("--partition", "-p", min=0, help="A partition.")],
    start_offset: Annotated[
        int, typer.Option("--start-offset", min=0, help="Where the transaction begins: `txn hanging`, `txn producers`.")
    ],
    force: Annotated[bool, typer.Option("--force", help="Also one that its coordinator would end.")] = False,
) -> None:
    """Abort a transaction that hangs on one partition. One that its coordinator knows is for `txn terminate`."""
    from moldau.client.connection import BrokerError
    from moldau.wire.messages import WriteTxnMarkersRequest, WriteTxnMarkersResponse

    with target.admin() as admin:
        found = [
            each for each in _open(admin, [topic], partition) if each.producer.current_txn_start_offset == start_offset
        ]
        if not found:
            fail(f"no transaction of {topic}-{partition} begins at {start_offset}", ExitCode.NOT_FOUND)
        producer = found[0].producer
        owner = _expected(admin, {producer.producer_id}).get(producer.producer_id, {}).get((topic, partition))
        if owner is not None and not force:
            fail(
                f"it does not hang: its coordinator knows it as {owner}, and would end it in all its partitions with "
                f"`moldau txn terminate {owner}` (--force aborts this partition alone)"
            )
        (leader,) = [
            row.leader_id
            for each in admin.metadata([topic]).topics
            for row in each.partitions
            if row.partition_index == partition
        ]
        marker = WriteTxnMarkersRequest.WritableTxnMarker(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            transaction_result=False,
            coordinator_epoch=max(producer.coordinator_epoch, 0),  # -1: no transaction of it was ever ended there
            topics=[WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=topic, partition_indexes=[partition])],
        )
        answer = admin.ask_broker(leader, WriteTxnMarkersRequest(markers=[marker]), WriteTxnMarkersResponse)
    for each in answer.markers:
        for of_topic in each.topics:
            for row in of_topic.partitions:
                if row.error_code:
                    raise BrokerError(row.error_code, f"{topic}-{partition}")
    output.done(
        f"aborted the transaction of {topic}-{partition} from {start_offset}",
        {"topic": topic, "partition": partition, "start_offset": start_offset, "result": "aborted"},
    )


@app.command(changes=True)
def terminate(target: Target, output: Output, transactional_id: TransactionalId) -> None:
    """Fence a transactional id: what it has open is aborted, its producer may not go on."""
    from moldau.client.admin import TRANSACTION
    from moldau.client.connection import BrokerError
    from moldau.wire import ErrorCode
    from moldau.wire.messages import (
        DescribeTransactionsRequest,
        DescribeTransactionsResponse,
        InitProducerIdRequest,
        InitProducerIdResponse,
    )

    with target.admin() as admin:
        asked = DescribeTransactionsRequest(transactional_ids=[transactional_id])
        known = admin.ask_coordinator(TRANSACTION, transactional_id, asked, DescribeTransactionsResponse)
        (state,) = known.transaction_states
        if state.error_code:
            raise BrokerError(state.error_code, f"transactional id {transactional_id}")
        request = InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=state.transaction_timeout_ms,
            producer_id=-1,
            producer_epoch=-1,
        )
        deadline = time.monotonic() + 15
        while True:
            answer = admin.ask_coordinator(TRANSACTION, transactional_id, request, InitProducerIdResponse)
            if answer.error_code != ErrorCode.CONCURRENT_TRANSACTIONS or time.monotonic() > deadline:
                break
            time.sleep(0.1)  # the abort is under way
    if answer.error_code:
        raise BrokerError(answer.error_code, f"transactional id {transactional_id}")
    output.done(
        f"fenced {transactional_id}: producer {answer.producer_id}, epoch {answer.producer_epoch}",
        {
            "id": transactional_id,
            "producer_id": answer.producer_id,
            "producer_epoch": answer.producer_epoch,
            "result": "fenced",
        },
    )
