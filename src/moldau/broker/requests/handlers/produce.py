"""Produce (key 0), versions 3-13. Topics by name up to version 12, by id from 13 on.

Each partition's batch is appended where it lies in the frame; nothing is done per record. acks=1 is answered at once,
acks=all when the high watermark has passed the batch, acks=0 not at all: there, an error closes the connection so that
the producer notices. A batch that takes long to look through (a compacted topic, another codec) is checked by a thread,
and requests for very many partitions are carried out in slices; no later request of the connection overtakes them.
Version 0-2 are advertised but refused, as Apache Kafka does for the sake of librdkafka.
"""

from __future__ import annotations

import logging
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, Protocol

from moldau.broker.replicas.manager import PartitionUnavailable
from moldau.broker.requests.access import TOPIC, TRANSACTIONAL_ID, may
from moldau.broker.requests.threads import in_thread
from moldau.broker.requests.topic_access import topic_access
from moldau.controller.acls import Operation
from moldau.controller.names import INTERNAL_TOPICS
from moldau.log.errors import CorruptRecord, LogError, NotOneBatch, RecordListTooLarge, RecordTooLarge, StorageError
from moldau.log.origin import AppendOrigin
from moldau.log.validation import CheckedBatch, check_at_leisure, takes_long
from moldau.records.batch import ATTRIBUTES_AT, TRANSACTIONAL_FLAG
from moldau.timers.turns import Slices, at_once, let_go
from moldau.wire import ErrorCode, MalformedFrame
from moldau.wire.produce import (
    ManyPartitions,
    ProduceFrame,
    ProduceOutcome,
    decode_produce_request,
    encode_produce_response,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau.broker.calls import Call
    from moldau.broker.coordinators.txn_verification import Key, Verified
    from moldau.broker.coordinators.txn_verification import Needs as TxnVerificationNeeds
    from moldau.broker.parts import HasAuthorizer, HasImage, HasLoop, HasPurgatories, HasTime, HasTurns
    from moldau.broker.replicas.partition import Partition
    from moldau.broker.replicas.parts import HasReplicas
    from moldau.log.config import LogConfig

    class Needs(
        TxnVerificationNeeds,
        HasAuthorizer,
        HasImage,
        HasLoop,
        HasPurgatories,
        HasTime,
        HasTurns,
        HasReplicas,
        Protocol,
    ):
        """What this file may touch."""


_log = logging.getLogger(__name__)
_ACKS_ALL = -1
_ADMIN_CLIENT_ID = "__admin_client"
_KNOWN_WITHOUT_THE_LOG = (CorruptRecord, NotOneBatch, RecordListTooLarge, RecordTooLarge, StorageError)
_FLAGS_AT = ATTRIBUTES_AT + 1  # the second byte of the attributes has them
_NOTHING_VERIFIED: Mapping[Key, Verified] = {}
_CLIENT = AppendOrigin.CLIENT
_EMPTY = memoryview(b"")
_outcome: partial[ProduceOutcome] = partial(tuple.__new__, ProduceOutcome)  # without looking for defaults

_PARTITIONS_PER_SLICE = 200
_MADE_PER_SLICE = 5  # of partitions whose files may have to be made first
_READ_AT_ONCE_MAX = 5_000  # more are read, and answered, by a thread
# A replica, the offset its high watermark must reach, whether the topic demands a flush, and in which epoch this node
# led when it appended: in a later one the batch may be gone, and another be in its place.
_Append = tuple["Partition", int, bool, int]

# As they are in a request: each topic with its partitions and their batches.
Topics = list[tuple["str | bytes", list[tuple[int, "memoryview | None"]]]]
# What happened to each topic's partitions, in the order of the request.
Outcomes = list[tuple["str | bytes", list[ProduceOutcome]]]


def handle_frame(broker: Needs, call: Call, frame: memoryview, position: int) -> None:
    if call.meter is not None:
        call.meter.produced(call, len(frame))
    try:
        request = decode_produce_request(frame, position, call.version, _READ_AT_ONCE_MAX)
    except ManyPartitions:
        broker.go_on(call, _take_at_length(broker, call, bytearray(frame), position), len(frame))
        return
    if broker.replicas.is_making and sum(len(each) for _, each in request.topics) > _MADE_PER_SLICE:
        broker.go_on(call, _take_at_length(broker, call, bytearray(frame), position), len(frame))
        return
    _take(broker, call, request)


async def _take_at_length(broker: Needs, call: Call, frame: bytearray, position: int) -> None:
    """So many partitions that reading them takes longer than others should wait: a thread does. Replicas that are still
    to be made are made in slices, before anything asks for all of them."""
    work = partial(_read_at_length, memoryview(frame), position, call.version)
    try:
        async with broker.long_look:
            request, is_transactional = await broker.loop.run_in_executor(broker.executor, work)
    except MalformedFrame as error:
        _log.info("closing %s:%s: %s", call.connection.peer_host, call.connection.peer_port, error)
        call.slot.close(f"malformed request: {error}")
        return
    if broker.replicas.is_making:
        every = ((topic, index) for topic, batches_by_partition in request.topics for index, _ in batches_by_partition)
        for at, (topic, index) in enumerate(every):
            if at % _MADE_PER_SLICE == 0:
                await broker.turns.next_turn()
            broker.replicas.get(topic, index)
    refused = await broker.in_turns(_unwritable(broker, call, request))
    split = await in_thread(broker, partial(_split, request, refused)) if refused else None
    _take(broker, call, request, is_transactional=is_transactional, own_bytes=len(frame), split=split)


def _read_at_length(frame: memoryview, position: int, version: int) -> tuple[ProduceFrame, bool]:
    request = decode_produce_request(frame, position, version)
    return request, _is_transactional(request)


def _take(
    broker: Needs,
    call: Call,
    request: ProduceFrame,
    *,
    is_transactional: bool | None = None,
    own_bytes: int | None = None,
    split: _Split | None = None,
) -> None:
    """`own_bytes`: the batches are in memory of our own, of this size, and somebody has looked whether they are
    transactional and which may not be written (`split`: some); None: in the network room's."""
    acks = request.acks
    if acks not in (_ACKS_ALL, 0, 1):
        _answer_all(broker, call, request.topics, ErrorCode.INVALID_REQUIRED_ACKS, acks)
        return
    if request.transactional_id is None or broker.authorizer is not None:
        if is_transactional is None:
            is_transactional = _is_transactional(request)
        if is_transactional and not _may_write_as(broker, call, request.transactional_id):
            _answer_all(broker, call, request.topics, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, acks)
            return
    if own_bytes is None and broker.authorizer is not None:
        writable = topic_access(broker, broker.authorizer, call.session).writable
        for each in request.topics:
            if not writable[each[0]]:
                split = _split(request, at_once(_unwritable(broker, call, request)))
                break
    if split is not None:
        _take_rest(broker, call, split, own_bytes)
    elif request.transactional_id is None:
        _append(broker, call, request, _NOTHING_VERIFIED, own_bytes)
    else:
        from moldau.broker.coordinators.txn_verification import verify_produce

        verify_produce(broker, call, request, partial(_append, broker, call), own_bytes=own_bytes)


def _may_write_as(broker: Needs, call: Call, transactional_id: str | None) -> bool:
    if transactional_id is None:
        return False  # batches of a transaction, and nobody says whose
    return may(broker, call, Operation.WRITE, TRANSACTIONAL_ID)(transactional_id)


def _unwritable(broker: Needs, call: Call, request: ProduceFrame) -> Slices[Topics]:
    """What the client may not write to."""
    refused: Topics = []
    if broker.authorizer is None:
        return refused
    writable = topic_access(broker, broker.authorizer, call.session).writable
    for number, each in enumerate(request.topics, 1):
        if not writable[each[0]]:
            refused.append(each)
            broker.denied(call, Operation.WRITE, TOPIC, writable.name_of(each[0]) or "")
        if number % _PARTITIONS_PER_SLICE == 0:
            yield
    return refused


class _Split(NamedTuple):
    """A request of which some is refused."""

    allowed: ProduceFrame
    refused: Topics
    errors: dict[Key, Verified]


def _split(request: ProduceFrame, refused: Topics) -> _Split:
    from moldau.broker.coordinators.txn_verification import Verified

    unwritable = {topic for topic, _ in refused}
    allowed = request._replace(topics=[each for each in request.topics if each[0] not in unwritable])
    error = Verified(None, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return _Split(allowed, refused, {(topic, index): error for topic, partitions in refused for index, _ in partitions})


def _take_rest(broker: Needs, call: Call, split: _Split, own_bytes: int | None) -> None:
    """Append what is allowed. Of what is refused no coordinator hears: it would join the transaction."""
    from moldau.broker.coordinators.txn_verification import verify_produce

    def append(checked: ProduceFrame, verified: Mapping[Key, Verified], own_bytes: int | None) -> None:
        whole = checked._replace(topics=checked.topics + split.refused)
        _append(broker, call, whole, {**verified, **split.errors}, own_bytes)

    if split.allowed.transactional_id is None:
        append(split.allowed, _NOTHING_VERIFIED, own_bytes)
    else:
        verify_produce(broker, call, split.allowed, append, own_bytes=own_bytes)


def _is_transactional(request: ProduceFrame) -> bool:
    """Whether any batch belongs to a transaction: then the request must say to whose."""
    for _, batches_by_partition in request.topics:
        for _, batches in batches_by_partition:
            if batches and len(batches) > _FLAGS_AT and batches[_FLAGS_AT] & TRANSACTIONAL_FLAG:
                return True
    return False


def _append(
    broker: Needs, call: Call, request: ProduceFrame, verified: Mapping[Key, Verified], own_bytes: int | None = None
) -> None:
    """At once, as nearly always; or on and on, if there is more in the request than others should wait for."""
    told: list[ProduceOutcome] = []
    appended: list[_Append] = []
    for topic, batches_by_partition in request.topics:
        for index, batches in batches_by_partition:
            outcome = None
            if len(told) < _PARTITIONS_PER_SLICE:
                outcome = _append_batch(broker, call, request.acks, topic, index, batches, verified, appended)
            if outcome is None:
                _go_on(broker, call, request, verified, told, appended, own_bytes)
                return
            told.append(outcome)
    _answer(broker, call, request, told, appended, at_once=True)


def _find(broker: Needs, call: Call, acks: int, topic: str | bytes, index: int) -> Partition:
    partition = broker.replicas.leader(topic, index)
    if partition.topic in INTERNAL_TOPICS and call.client_id != _ADMIN_CLIENT_ID:
        raise PartitionUnavailable(ErrorCode.INVALID_TOPIC_EXCEPTION)
    if acks == _ACKS_ALL and partition.lead is not None and not partition.has_enough_replicas:
        partition.produce_requests += 1
        partition.failed_produce_requests += 1
        raise PartitionUnavailable(ErrorCode.NOT_ENOUGH_REPLICAS)
    return partition


def _append_batch(
    broker: Needs,
    call: Call,
    acks: int,
    topic: str | bytes,
    index: int,
    batches: memoryview | None,
    verified: Mapping[Key, Verified],
    appended: list[_Append],
    checked: CheckedBatch | None = None,
) -> ProduceOutcome | None:
    """None: it takes long to look through, and nobody has yet, under the topic's present settings."""
    guard = None
    if verified and (known := verified.get((topic, index))) is not None:
        if known.error is not ErrorCode.NONE:
            call.failed(known.error)
            return ProduceOutcome(index, known.error, error_message=known.message)
        guard = known.guard
    try:
        partition = _find(broker, call, acks, topic, index)
        log = partition.log
        if not log.config.takes_batches_as_they_are and batches and _needs_a_look(batches, checked, log.config):
            return None
        first_offset, last_offset, append_time = partition.append(batches or _EMPTY, _CLIENT, guard, 0, checked)
    except PartitionUnavailable as error:
        call.failed(error.code)
        return ProduceOutcome(index, error.code, error_message=error.message)
    except LogError as error:
        call.failed(error.code)
        return _refused(partition, error)
    appended.append((partition, last_offset + 1, log.needs_flush, partition.leader_epoch))
    return _outcome((index, 0, first_offset, append_time, log.log_start_offset, None, (), None))


def _needs_a_look(batches: memoryview, checked: CheckedBatch | None, config: LogConfig) -> bool:
    return (checked is None or checked.config is not config) and takes_long(batches, config)


def _go_on(
    broker: Needs,
    call: Call,
    request: ProduceFrame,
    verified: Mapping[Key, Verified],
    told: list[ProduceOutcome],
    appended: list[_Append],
    own_bytes: int | None,
) -> None:
    """After this call, whose memory the batches are in unless they are in our own. What is kept counts in any case."""
    kept_bytes = own_bytes or 0
    if own_bytes is None:
        for _, batches_by_partition in request.topics:
            for at, (index, batches) in enumerate(batches_by_partition):
                batches_by_partition[at] = (index, None if batches is None else memoryview(bytearray(batches)))
                kept_bytes += len(batches or b"")
    broker.go_on(call, _append_rest(broker, call, request, verified, told, appended), kept_bytes)


async def _append_rest(
    broker: Needs,
    call: Call,
    request: ProduceFrame,
    verified: Mapping[Key, Verified],
    told: list[ProduceOutcome],
    appended: list[_Append],
) -> None:
    """Go on behind those that were told already, in turns with others; long looks are a thread's work."""
    acks = request.acks
    every = ((topic, *each) for topic, batches_by_partition in request.topics for each in batches_by_partition)
    for topic, index, batches in islice(every, len(told), None):
        if len(told) % _PARTITIONS_PER_SLICE == 0:
            await broker.turns.next_turn()
        outcome = _append_batch(broker, call, acks, topic, index, batches, verified, appended)
        while outcome is None:
            assert batches is not None
            outcome = await _append_after_a_look(broker, call, acks, topic, index, batches, verified, appended)
        told.append(outcome)
    _answer(broker, call, request, told, appended, at_once=False)
    if len(told) > _READ_AT_ONCE_MAX:
        await broker.in_turns(let_go(*(batches_by_partition for _, batches_by_partition in request.topics)))


async def _append_after_a_look(
    broker: Needs,
    call: Call,
    acks: int,
    topic: str | bytes,
    index: int,
    batches: memoryview,
    verified: Mapping[Key, Verified],
    appended: list[_Append],
) -> ProduceOutcome | None:
    """None: the topic's settings changed meanwhile, and another look is needed."""
    try:
        config = _find(broker, call, acks, topic, index).log.config
        # One at a time: threads that compete with the loop for the interpreter slow it down.
        async with broker.long_look:
            work = partial(check_at_leisure, batches, config, broker.clock.wall_ms())
            checked = await broker.loop.run_in_executor(broker.executor, work)
        partition = _find(broker, call, acks, topic, index)  # it may lead no more
    except PartitionUnavailable as error:
        call.failed(error.code)
        return ProduceOutcome(index, error.code, error_message=error.message)
    if isinstance(checked, LogError):
        partition.produce_requests += 1
        call.failed(checked.code)
        return _refused(partition, checked)
    return _append_batch(broker, call, acks, topic, index, batches, verified, appended, checked)


def _answer(
    broker: Needs,
    call: Call,
    request: ProduceFrame,
    told: list[ProduceOutcome],
    appended: list[_Append],
    *,
    at_once: bool,
) -> None:
    """`at_once`: nothing came between the appends and this. Otherwise a batch may be where it should be by its offset
    only, since another leader truncated it meanwhile: `_DelayedProduce` knows."""
    acks = request.acks
    if acks == 0:
        if len(appended) < len(told):
            call.slot.close("a Produce with acks=0 failed; closing is the only way to tell")
        else:
            call.respond_nothing()
    elif at_once and _are_acknowledged(appended, acks):
        call.respond_payload(
            [encode_produce_response(call.version, _by_topic(request, told), throttle_time_ms=call.throttle())]
        )
    else:
        outcomes = _by_topic(request, told)
        now_ms = broker.clock.monotonic_ms()
        deadline_ms = now_ms + request.timeout_ms
        call.waits_since(now_ms)
        delayed = _DelayedProduce(broker, call, acks, outcomes, appended)
        broker.produce_purgatory.watch(delayed, [partition.key for partition, *_ in appended], deadline_ms)
    for partition, *_ in appended:
        broker.fetch_purgatory.check_and_complete(partition.key)


def _by_topic(request: ProduceFrame, told: list[ProduceOutcome]) -> Outcomes:
    topics = request.topics
    if len(topics) == 1 and told:
        return [(topics[0][0], told)]
    outcomes: Outcomes = []
    start = 0
    for topic, batches_by_partition in topics:
        end = start + len(batches_by_partition)
        if end > start:
            outcomes.append((topic, told[start:end]))
        start = end
    return outcomes


def _refused(partition: Partition, error: LogError) -> ProduceOutcome:
    """As Kafka answers: the reason in words goes with errors of single records, the log start offset with all that
    needed a look at the log."""
    _log.info("%r refused a batch: %s", partition, error)
    by_record = error.record_errors
    is_plain = isinstance(error, _KNOWN_WITHOUT_THE_LOG)
    partition.failed_produce_requests += not is_plain  # nor does Kafka count those
    start = -1 if is_plain else partition.log.log_start_offset
    message = str(error) if by_record else None
    return ProduceOutcome(
        partition.index, error.code, log_start_offset=start, error_message=message, record_errors=by_record
    )


def _is_lost(append: _Append) -> bool:
    """Whether this node leads no more, or leads again, and what is at the batch's offset is not what it appended: a
    batch of the same epoch is the same batch."""
    partition, required_offset, _, leader_epoch = append
    if not partition.is_leader or partition.leader_epoch == leader_epoch:
        return not partition.is_leader
    log = partition.log
    return log.log_end_offset < required_offset or log.epochs.epoch_for_offset(required_offset - 1) != leader_epoch


def _is_acknowledged(append: _Append, acks: int) -> bool:
    """Whether the batch is where this `acks` wants it: on the disk if the topic demands a flush, on all replicas."""
    partition, required_offset, needs_flush, _ = append
    log = partition.log
    if needs_flush and log.flushed_offset < required_offset:
        return False
    return acks != _ACKS_ALL or log.high_watermark >= required_offset


def _are_acknowledged(appended: list[_Append], acks: int) -> bool:
    for each in appended:  # noqa: SIM110 - a generator costs more than most loops here
        if not _is_acknowledged(each, acks):
            return False
    return True


class _DelayedProduce:
    """Waits until every batch can be acknowledged, or the request's timeout."""

    __slots__ = ("_acks", "_appended", "_broker", "_call", "_outcomes")

    def __init__(self, broker: Needs, call: Call, acks: int, outcomes: Outcomes, appended: list[_Append]) -> None:
        self._broker = broker
        self._call = call
        self._acks = acks
        self._outcomes = outcomes
        self._appended = appended

    def is_ready(self) -> bool:
        return all(_is_acknowledged(each, self._acks) or _is_lost(each) for each in self._appended)

    def on_complete(self, expired: bool) -> None:
        errors: dict[tuple[bytes, int], ErrorCode] = {}
        for append in self._appended:
            partition = append[0]
            if _is_lost(append):
                errors[partition.key] = ErrorCode.NOT_LEADER_OR_FOLLOWER
            elif not _is_acknowledged(append, self._acks):
                errors[partition.key] = ErrorCode.REQUEST_TIMED_OUT
            elif self._acks == _ACKS_ALL and not partition.had_enough_replicas:
                errors[partition.key] = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        if errors:
            for error in errors.values():
                self._call.failed(error)
            names = {partition.topic: partition.topic_id for partition, *_ in self._appended}
            self._outcomes = [
                (
                    topic,
                    [
                        outcome._replace(error_code=code, base_offset=-1)
                        if (code := errors.get((names.get(topic, topic), outcome.partition)))  # type: ignore[arg-type]  # a name or an id
                        else outcome
                        for outcome in of_topic
                    ],
                )
                for topic, of_topic in self._outcomes
            ]
        call, outcomes = self._call, self._outcomes
        if sum(len(of_topic) for _, of_topic in outcomes) > _READ_AT_ONCE_MAX:
            self._broker.go_on(call, _respond_at_length(self._broker, call, outcomes))
        else:
            call.respond_payload([encode_produce_response(call.version, outcomes, throttle_time_ms=call.throttle())])


async def _respond_at_length(broker: Needs, call: Call, outcomes: Outcomes) -> None:
    work = partial(encode_produce_response, call.version, outcomes, throttle_time_ms=call.throttle())
    async with broker.long_look:
        body = await broker.loop.run_in_executor(broker.executor, work)
    call.respond_payload([body])
    await broker.in_turns(let_go(*(of_topic for _, of_topic in outcomes), outcomes))


def _answer_all(broker: Needs, call: Call, topics: Topics, code: ErrorCode, acks: int) -> None:
    call.failed(code)
    if acks == 0:
        call.slot.close(f"a Produce with acks=0 failed with {code.name}; closing is the only way to tell")
    elif sum(len(partitions) for _, partitions in topics) > _READ_AT_ONCE_MAX:
        broker.go_on(call, _refuse_at_length(broker, call, topics, code))
    else:
        outcomes = _all_refused(topics, code)
        call.respond_payload([encode_produce_response(call.version, outcomes, throttle_time_ms=call.throttle())])


async def _refuse_at_length(broker: Needs, call: Call, topics: Topics, code: ErrorCode) -> None:
    await _respond_at_length(broker, call, await in_thread(broker, partial(_all_refused, topics, code)))


def _all_refused(topics: Topics, code: ErrorCode) -> Outcomes:
    return [(topic, [ProduceOutcome(index, code) for index, _ in partitions]) for topic, partitions in topics]
