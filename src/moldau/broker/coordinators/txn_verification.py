"""Before a transactional batch is written: is the partition in the transaction, or shall it be added (KIP-890)?

Without this, a batch of a producer that was fenced long ago could be appended after its transaction ended, and would
keep readers waiting for an end that never comes. The log gives a guard before the coordinator is asked and accepts the
batch only with it; a marker written meanwhile makes the guard worthless.

Invariants
- A yes counts with the guards that were taken right before it was asked for: each try takes new ones.
- All partitions of a request are asked about together, wherever the coordinator is: asked one by one, the second would
  find the transaction busy with the first.
- CONCURRENT_TRANSACTIONS (the last transaction's markers are on their way) is waited for here, for a bounded time.
- Of very many partitions, some are looked at in a turn of the loop, and then others have theirs. A guard that became
  worthless meanwhile is refused by the log, as any.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from moldau.log.errors import LogError
from moldau.records import CorruptBatch, read_header
from moldau.timers.turns import Slices, at_once
from moldau.transactions import TopicPartition
from moldau.transactions.verification import (
    Operation,
    Question,
    as_transaction,
    client_error,
    errors_of,
    produce_error,
    produce_operation,
)
from moldau.wire import ErrorCode, Struct
from moldau.wire import messages as m
from moldau.wire.produce import ProduceFrame

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.coordinators.parts import HasRemoteCoordinators, HasTransactions
    from moldau.broker.coordinators.txn_verifier import OnErrors
    from moldau.broker.parts import HasConfig, HasIdentity, HasLoop, HasTime, HasTurns
    from moldau.broker.replicas.parts import HasReplicas

    class Needs(
        HasRemoteCoordinators,
        HasTransactions,
        HasConfig,
        HasIdentity,
        HasLoop,
        HasTime,
        HasTurns,
        HasReplicas,
        Protocol,
    ):
        """What this file may touch."""


_log = logging.getLogger(__name__)

_ASK_VERSION = 5  # of AddPartitionsToTxn, as brokers use it among themselves
_AT_ONCE_MAX = 200  # partitions of a Produce
_PER_SLICE = 200
Key = tuple["str | bytes", int]
Guard = object


class Verified(NamedTuple):
    """What the coordinator said about one partition: a guard for the append, or an error for the client."""

    guard: Guard | None
    error: ErrorCode

    @property
    def message(self) -> str | None:
        """Said where the code alone would mislead: it has other meanings too."""
        if self.error in (ErrorCode.INVALID_TXN_STATE, ErrorCode.NOT_ENOUGH_REPLICAS):
            return "the transaction coordinator could not confirm that the partition is in the transaction"
        return None


class Writer(NamedTuple):
    """Who writes, by its own account."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    operation: Operation


OnVerified = Callable[[Mapping[TopicPartition, Verified]], None]
OnProduce = Callable[[ProduceFrame, Mapping[Key, Verified], "int | None"], None]


def verify(broker: Needs, writer: Writer, sequences: Mapping[TopicPartition, int], then: OnVerified) -> None:
    """Ask about the partitions (each with the first sequence that is to be written there), and call `then`, now or
    later, with what was found. A partition that is missing there has the transaction open already, or is not led
    here: its append needs no guard, or will say what is wrong."""
    if _is_trusted(broker, writer):
        then({})
    else:
        _try(broker, writer, sequences, then, _patience_until(broker))


async def _verify_at_length(
    broker: Needs, writer: Writer, sequences: Mapping[TopicPartition, int]
) -> Mapping[TopicPartition, Verified]:
    """The same in turns."""
    if _is_trusted(broker, writer):
        return {}
    end_ms = _patience_until(broker)
    while True:
        guards, found = await broker.in_turns(_take_guards(broker, writer, sequences))
        if not guards:
            return found
        answered: asyncio.Future[Mapping[TopicPartition, ErrorCode]] = broker.loop.create_future()
        _ask(broker, Question(0, *writer[:3], frozenset(guards), writer.operation), partial(_tell, answered))
        errors = await answered
        if not _is_worth_another_try(broker, errors, end_ms):
            return found | {place: Verified(guards[place], error) for place, error in errors.items()}
        waited: asyncio.Future[Mapping[TopicPartition, ErrorCode]] = broker.loop.create_future()
        broker.wheel.add(_next_try_ms(broker), partial(_tell, waited, errors))
        await waited


def _tell(
    future: asyncio.Future[Mapping[TopicPartition, ErrorCode]], errors: Mapping[TopicPartition, ErrorCode]
) -> None:
    if not future.done():  # or nobody waits for it any more
        future.set_result(errors)


def _is_trusted(broker: Needs, writer: Writer) -> bool:
    """Old clients add partitions themselves, and the operator may trust them."""
    is_checked = broker.config.get_bool("transaction.partition.verification.enable")
    return not is_checked and writer.operation is not Operation.ADD_PARTITION


def _patience_until(broker: Needs) -> float:
    config = broker.config
    patience_ms = min(
        config.get_int("add.partitions.to.txn.retry.backoff.max.ms"), config.get_int("request.timeout.ms")
    )
    return broker.clock.monotonic_ms() + patience_ms


def _is_worth_another_try(broker: Needs, errors: Mapping[TopicPartition, ErrorCode], end_ms: float) -> bool:
    return broker.clock.monotonic_ms() < end_ms and ErrorCode.CONCURRENT_TRANSACTIONS in errors.values()


def _next_try_ms(broker: Needs) -> float:
    return broker.clock.monotonic_ms() + broker.config.get_int("add.partitions.to.txn.retry.backoff.ms")


def _try(
    broker: Needs, writer: Writer, sequences: Mapping[TopicPartition, int], then: OnVerified, end_ms: float
) -> None:
    guards, found = at_once(_take_guards(broker, writer, sequences))
    if not guards:
        then(found)
        return

    def on_errors(errors: Mapping[TopicPartition, ErrorCode]) -> None:
        if _is_worth_another_try(broker, errors, end_ms):
            broker.wheel.add(_next_try_ms(broker), partial(_try, broker, writer, sequences, then, end_ms))
        else:
            then(found | {place: Verified(guards[place], error) for place, error in errors.items()})

    _ask(broker, Question(0, *writer[:3], frozenset(guards), writer.operation), on_errors)


def _take_guards(
    broker: Needs, writer: Writer, sequences: Mapping[TopicPartition, int]
) -> Slices[tuple[dict[TopicPartition, Guard], dict[TopicPartition, Verified]]]:
    """A guard for each partition that has to be asked about, and what needs no question to be refused."""
    guards: dict[TopicPartition, Guard] = {}
    refused: dict[TopicPartition, Verified] = {}
    for number, (place, sequence) in enumerate(sequences.items(), 1):
        if number % _PER_SLICE == 0:
            yield
        partition = broker.replicas.get(*place)
        if partition is None or not partition.is_leader:
            continue
        try:
            guard = partition.log.start_verification(
                writer.producer_id,
                sequence,
                writer.producer_epoch,
                supports_epoch_bump=writer.operation is Operation.ADD_PARTITION,
            )
        except LogError as error:
            refused[place] = Verified(None, ErrorCode(error.code))
        else:
            if guard is not None:
                guards[place] = guard
    return guards, refused


def _ask(broker: Needs, question: Question, answer: OnErrors) -> None:
    coordinator = broker.transactions.leader_for(question.transactional_id)
    if coordinator != broker.node_id:
        broker.remote_coordinators.ask(question, coordinator, answer)
        return

    def on_result(result: Struct) -> None:
        errors = errors_of(cast("m.AddPartitionsToTxnResponse.AddPartitionsToTxnResult", result))
        answer({place: client_error(errors[place], question.operation) for place in question.partitions})

    request = as_transaction(question)
    error = broker.transactions.handle(question.transactional_id, request, _ASK_VERSION, on_result)
    if error:
        answer(dict.fromkeys(question.partitions, client_error(error, question.operation)))


def verify_produce(
    broker: Needs, call: Call, request: ProduceFrame, then: OnProduce, *, own_bytes: int | None = None
) -> None:
    """Ask about every partition whose transaction is not open yet, then go on.

    Unless the batches are in memory of our own (of `own_bytes`), that belongs to the network room: if the answer has to
    be waited for, they are copied out of it. The connection's next request waits too, since batches must be appended in
    the order they were sent. `then` is told of how much memory of our own they are in now, and counts it from there on.
    """
    if sum(len(partitions) for _, partitions in request.topics) > _AT_ONCE_MAX:
        kept_bytes = _size_bytes(request) if own_bytes is None else own_bytes
        ours = _copied(request) if own_bytes is None else request
        broker.go_on(call, _verify_produce_at_length(broker, call, ours, then, kept_bytes), kept_bytes)
        return
    asked = at_once(_transactional_batches(broker, request))
    if (known := _known_unasked(request, asked)) is not None:
        then(request, known, own_bytes)
        return
    operation = produce_operation(call.version)
    has_returned = False
    is_done = False
    kept_bytes = 0

    def on_verified(found: Mapping[TopicPartition, Verified]) -> None:
        nonlocal is_done
        is_done = True
        by_key = _by_key(asked, found, operation)
        if not has_returned:
            then(request, by_key, own_bytes)
            return
        try:
            then(request, by_key, kept_bytes)
        except Exception:  # nobody above us would answer, and the connection's next request would wait for ever
            _log.exception(f"{call.api.name} failed: %r", call)
            call.slot.close("the request failed")
        finally:
            call.connection.hold_memory(-kept_bytes)
            if not call.connection.is_closed:
                call.connection.resume_dispatch()

    verify(broker, _writer(request, asked, operation), asked.sequences, on_verified)
    if not is_done:
        call.connection.pause_dispatch()
        kept_bytes = _size_bytes(request)
        call.connection.hold_memory(kept_bytes)
        call.waits_since(broker.clock.monotonic_ms())
        if own_bytes is None:
            request = _copied(request)
    has_returned = True


async def _verify_produce_at_length(
    broker: Needs, call: Call, request: ProduceFrame, then: OnProduce, own_bytes: int
) -> None:
    """The same for so many partitions that others have their turn between some and some."""
    asked = await broker.in_turns(_transactional_batches(broker, request))
    known = _known_unasked(request, asked)
    if known is None:
        operation = produce_operation(call.version)
        found = await _verify_at_length(broker, _writer(request, asked, operation), asked.sequences)
        await broker.turns.next_turn()
        known = _by_key(asked, found, operation)
    then(request, known, own_bytes)


def _known_unasked(request: ProduceFrame, asked: _Asked) -> Mapping[Key, Verified] | None:
    """What can be told without the coordinator; None: it has to be asked."""
    if not asked.sequences:
        return {}
    if len(asked.producers) > 1:  # a transactional id has one producer: nothing of this request can be right
        error = Verified(None, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return {(topic, index): error for topic, partitions in request.topics for index, _ in partitions}
    return None


def _writer(request: ProduceFrame, asked: _Asked, operation: Operation) -> Writer:
    (producer,) = asked.producers
    return Writer(request.transactional_id or "", *producer, operation)


def _by_key(asked: _Asked, found: Mapping[TopicPartition, Verified], operation: Operation) -> Mapping[Key, Verified]:
    return {
        asked.keys[place]: each._replace(error=produce_error(each.error, operation)) for place, each in found.items()
    }


def _size_bytes(request: ProduceFrame) -> int:
    return sum(len(each or b"") for _, partitions in request.topics for _, each in partitions)


def _copied(request: ProduceFrame) -> ProduceFrame:
    return request._replace(
        topics=[
            (topic, [(index, None if each is None else memoryview(bytearray(each))) for index, each in partitions])
            for topic, partitions in request.topics
        ]
    )


class _Asked(NamedTuple):
    """The transactional batches of a request: by which key it names the partition, with which sequence they begin, and
    who wrote them."""

    keys: dict[TopicPartition, Key]
    sequences: dict[TopicPartition, int]
    producers: set[tuple[int, int]]


def _transactional_batches(broker: Needs, request: ProduceFrame) -> Slices[_Asked]:
    keys: dict[TopicPartition, Key] = {}
    sequences: dict[TopicPartition, int] = {}
    producers: set[tuple[int, int]] = set()
    number = 0
    for topic, partitions in request.topics:
        for index, batches in partitions:
            number += 1
            if number % _PER_SLICE == 0:
                yield
            partition = broker.replicas.get(topic, index)
            if partition is None or not partition.is_leader or not batches:
                continue  # the append will say what is wrong
            try:
                header = read_header(batches)
            except CorruptBatch:
                continue
            if header.is_transactional:
                place = TopicPartition(partition.topic, partition.index)
                keys[place] = (topic, index)
                sequences[place] = header.base_sequence
                producers.add((header.producer_id, header.producer_epoch))
    return _Asked(keys, sequences, producers)
