"""Before a transactional batch is written: is the partition in the transaction, or shall it be added (KIP-890)?

Without this, a batch of a producer that was fenced long ago could be appended after its transaction ended, and would
keep readers waiting for an end that never comes. The log gives a guard before the coordinator is asked and accepts the
batch only with it; a marker written meanwhile makes the guard worthless.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, cast

from moldau.broker.partition import Partition
from moldau.records import CorruptBatch, read_header
from moldau.transactions.verification import Operation, client_error, produce_error, produce_operation
from moldau.wire import ErrorCode, Struct
from moldau.wire import messages as m
from moldau.wire.produce import ProduceFrame

if TYPE_CHECKING:
    from moldau.broker.broker import Broker
    from moldau.broker.calls import Call

_ASK_VERSION = 5  # of AddPartitionsToTxn, as brokers use it among themselves
Transaction = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
Key = tuple["str | bytes", int]


class Verified(NamedTuple):
    """What the coordinator said about one partition: a guard for the append, or an error for the client."""

    guard: object | None
    error: ErrorCode

    @property
    def message(self) -> str | None:
        """Said where the code alone would mislead: it has other meanings too."""
        if self.error in (ErrorCode.INVALID_TXN_STATE, ErrorCode.NOT_ENOUGH_REPLICAS):
            return "the transaction coordinator could not confirm that the partition is in the transaction"
        return None


def ask_coordinator(
    broker: Broker,
    transactional_id: str,
    producer: tuple[int, int],
    place: tuple[str, int],
    *,
    operation: Operation,
    answer: Callable[[ErrorCode], None],
) -> None:
    """Verify that the place (topic, partition) is in the producer's transaction, or add it."""
    add = operation is Operation.ADD_PARTITION
    if not add and not broker.config.get_bool("transaction.partition.verification.enable"):
        answer(ErrorCode.NONE)  # old clients add partitions themselves, and the operator trusts them
        return
    if broker.transactions.leader_for(transactional_id) != broker.node_id:
        broker.remote_coordinators.ask(transactional_id, producer, place, operation, answer)
        return
    topic, index = place
    request = Transaction(
        transactional_id=transactional_id,
        producer_id=producer[0],
        producer_epoch=producer[1],
        verify_only=not add,
        topics=[m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(topic, [index])],
    )

    def on_result(result: Struct) -> None:
        told = cast("m.AddPartitionsToTxnResponse.AddPartitionsToTxnResult", result)
        error = ErrorCode(told.topic_results[0].results_by_partition[0].partition_error_code)
        answer(client_error(error, operation))

    error = broker.transactions.handle(transactional_id, request, _ASK_VERSION, on_result)
    if error:
        answer(client_error(error, operation))


def verify_produce(
    broker: Broker,
    call: Call,
    request: ProduceFrame,
    then: Callable[[ProduceFrame, dict[Key, Verified]], None],
) -> None:
    """Ask about every partition whose transaction is not open yet, then go on.

    The frame belongs to the network room: if any answer has to be waited for, the batches are copied out of it, and
    the connection's next request waits too, since batches must be appended in the order they were sent.
    """
    operation = produce_operation(call.version)
    is_paused = False
    found: dict[Key, Verified] = {}
    waiting = 1  # this function itself

    def one_less() -> None:
        nonlocal waiting
        waiting -= 1
        if waiting == 0:
            then(request, found)
            if is_paused and not call.connection.is_closed:
                call.connection.resume_dispatch()

    for key, partition, producer, guard in _to_ask(broker, request, operation):
        waiting += 1

        def on_answer(error: ErrorCode, key: Key = key, guard: object = guard) -> None:
            found[key] = Verified(guard, produce_error(error, operation))
            one_less()

        ask_coordinator(
            broker,
            request.transactional_id or "",
            producer,
            (partition.topic, partition.index),
            operation=operation,
            answer=on_answer,
        )
    if waiting > 1:
        is_paused = True
        call.connection.pause_dispatch()
        request = request._replace(
            topics=[
                (topic, [(index, None if each is None else memoryview(bytearray(each))) for index, each in partitions])
                for topic, partitions in request.topics
            ]
        )
    one_less()


def _to_ask(
    broker: Broker, request: ProduceFrame, operation: Operation
) -> list[tuple[Key, Partition, tuple[int, int], object]]:
    asked = []
    for topic, partitions in request.topics:
        for index, batches in partitions:
            partition = broker.replicas.get(topic, index)
            if partition is None or not partition.is_leader or not batches:
                continue  # the append will say what is wrong
            try:
                header = read_header(batches)
            except CorruptBatch:
                continue
            if not header.is_transactional:
                continue
            guard = partition.log.start_verification(
                header.producer_id,
                header.base_sequence,
                header.producer_epoch,
                supports_epoch_bump=operation is Operation.ADD_PARTITION,
            )
            if guard is not None:
                asked.append(((topic, index), partition, (header.producer_id, header.producer_epoch), guard))
    return asked
