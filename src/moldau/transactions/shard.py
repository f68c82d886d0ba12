"""The transaction coordinator for one partition of `__transaction_state`: a state machine without IO.

The broker makes a shard when it becomes leader of the partition, replays the log into it (`replay`, `finish_load`),
and then hands it requests, results and the time; every call returns `Effects`. When leadership is lost it calls
`resign` and drops the shard.

Invariants:
- State changes only when the record that says so is committed. Until then the id is pending, and whoever asks is
  told to retry.
- A transaction has one decision: markers leave only after PREPARE_COMMIT or PREPARE_ABORT is committed, and always
  carry it.
- From a decision there is one way forward: the markers, then COMPLETE_*, tried again until they succeed or the
  shard resigns.
- What `replay` makes of the committed log is the live state, except for `last_producer_epoch`, which Kafka does not
  log either.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import Enum
from functools import partial

from moldau.transactions import decisions, queries, records, replies
from moldau.transactions import metadata as md
from moldau.transactions.completion import Completion
from moldau.transactions.config import TransactionConfig
from moldau.transactions.decisions import Decision, Fence, ProducerIdAndEpoch
from moldau.transactions.effects import Abandoned, Append, Effects, Now, RequestContext, Response, TxnMarker
from moldau.transactions.expiry import ExpirySweep, tombstones
from moldau.transactions.metadata import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMEOUT_MS,
    PREPARED,
    TopicPartition,
    TransactionMetadata,
    TransactionState,
)
from moldau.transactions.pending import APPEND_ERRORS, InFlight, Reply, Transaction, Waiting
from moldau.transactions.producer_ids import ProducerIdAllocator
from moldau.transactions.replies import AddPartitionsTransaction
from moldau.wire import messages as m
from moldau.wire.errors import ErrorCode
from moldau.wire.primitives import MalformedFrame

TransactionRequest = m.InitProducerIdRequest | AddPartitionsTransaction | m.AddOffsetsToTxnRequest | m.EndTxnRequest

_OFFSETS_TOPIC = "__consumer_offsets"


class _Phase(Enum):
    LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    ACTIVE = ErrorCode.NONE
    RESIGNED = ErrorCode.NOT_COORDINATOR


class TransactionShard:
    """See the module. `transaction_version` is the cluster's feature level; set it when it changes."""

    def __init__(
        self,
        coordinator_epoch: int,
        config: TransactionConfig,
        producer_ids: ProducerIdAllocator,
        transaction_version: int = md.TV_2,
    ) -> None:
        self.coordinator_epoch = coordinator_epoch
        self.transaction_version = transaction_version
        self._config = config
        self._producer_ids = producer_ids
        self.unreadable: list[str] = []
        """Records that were skipped when the log was loaded, and why. Worth a line each in the broker's log."""
        self._phase = _Phase.LOADING
        self._unread: dict[bytes, bytes] = {}  # while loading: the last value of every key
        self._transactions: dict[str, Transaction] = {}
        self._ongoing: dict[str, None] = {}  # ids in ONGOING, oldest first: all that a timeout sweep looks at
        self._ending: dict[str, None] = {}  # ids with a completion
        self._retrying: dict[str, None] = {}  # those of them that wait for their next attempt
        self._in_flight: dict[int, InFlight] = {}
        self._next_token = 1
        self._timeout_sweep_at_ms = 0.0
        self._expiry = ExpirySweep(config.transactional_id_expiration_ms, config.remove_expired_interval_ms)

    # ---- loading and resigning ----

    def replay(self, key: bytes | memoryview, value: bytes | memoryview | None) -> None:
        """One record of the log, in order. Only the last one of a key is decoded, so a long log loads quickly."""
        assert self._phase is _Phase.LOADING
        if value is None:
            self._unread.pop(bytes(key), None)
        else:
            self._unread[bytes(key)] = bytes(value)

    def finish_load(self, now: Now) -> Effects:
        """The log is read: take requests, and go on with the transactions that were decided but not completed."""
        assert self._phase is _Phase.LOADING
        effects = Effects()
        for key, value in self._unread.items():
            try:
                loaded = records.decode(key, value)
            except MalformedFrame as error:
                # One record that no release writes must not take the whole partition out of service.
                self.unreadable.append(f"{key.hex()}: {error}")
                continue
            if loaded is None:
                self.unreadable.append(f"{key.hex()}: written by a later release")
            elif loaded.metadata is not None:
                transaction = self._transactions[loaded.transactional_id] = Transaction(loaded.metadata)
                if loaded.metadata.state is TransactionState.ONGOING:
                    self._ongoing[loaded.transactional_id] = None
                elif loaded.metadata.state in PREPARED:
                    self._start_completion(transaction, now, effects)
        self._unread.clear()
        self._phase = _Phase.ACTIVE
        self._timeout_sweep_at_ms = now.monotonic_ms + self._config.abort_timed_out_interval_ms
        self._expiry.wait(now)
        return effects

    @property
    def known(self) -> list[Transaction]:
        """Every transactional id, for metrics: to be read only."""
        return list(self._transactions.values())

    def resign(self) -> Effects:
        """Another broker leads the partition now: answer whoever waits. Whether their records survive is not known
        here."""
        self._phase = _Phase.RESIGNED
        effects = Effects()
        for in_flight in self._in_flight.values():
            if (waiting := in_flight.waiting) is not None:
                message = waiting.reply(ErrorCode.NOT_COORDINATOR, None)
                effects.responses.append(Response(waiting.request_id, message))
        self._in_flight.clear()
        self._unread.clear()
        self._transactions.clear()
        self._ongoing.clear()
        self._ending.clear()
        self._retrying.clear()
        return effects

    # ---- requests ----

    def handle(self, request: TransactionRequest, context: RequestContext, now: Now) -> Effects:
        effects = Effects()
        match request:
            case m.InitProducerIdRequest():
                self._init_producer_id(request, context, now, effects)
            case m.EndTxnRequest():
                self._end_txn(request, context, now, effects)
            case m.AddOffsetsToTxnRequest():
                partitions = frozenset({TopicPartition(_OFFSETS_TOPIC, context.offsets_partition)})
                waiting = Waiting(context.request_id, partial(replies.add_offsets, context.api_version))
                # Clients with KIP-890 do not send this: the group coordinator adds the partition for them.
                self._add_partitions(request, partitions, waiting, now, effects, transaction_version=md.TV_0)
            case _ if request.verify_only:
                self._verify_partitions(request, context, effects)
            case _:
                version = replies.add_partitions_version(context.api_version)
                waiting = Waiting(context.request_id, partial(replies.add_partitions, context.api_version, request))
                partitions = replies.partitions_of(request)
                self._add_partitions(request, partitions, waiting, now, effects, transaction_version=version)
        return effects

    def _init_producer_id(
        self, request: m.InitProducerIdRequest, context: RequestContext, now: Now, effects: Effects
    ) -> None:
        reply: Reply = partial(replies.init_producer_id, context.api_version)
        error = self._validate_init(request)
        transactional_id = request.transactional_id or ""
        if error is ErrorCode.NONE:
            error = self._phase.value
        if error is not ErrorCode.NONE:
            effects.responses.append(Response(context.request_id, reply(error, None)))
            return
        timeout_ms = NO_TIMEOUT_MS if request.enable2_pc else request.transaction_timeout_ms
        transaction = self._transactions.get(transactional_id)
        if transaction is None:
            producer_id = self._producer_ids.claim()
            if producer_id is None:
                error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
                effects.responses.append(Response(context.request_id, reply(error, None)))
                return
            transaction = Transaction(md.created(transactional_id, producer_id, timeout_ms, now.wall_ms))
            self._transactions[transactional_id] = transaction
        expected = None
        if request.producer_id != NO_PRODUCER_ID:
            expected = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
        decision = decisions.decide_init(
            transaction.metadata,
            transaction.pending is not None,
            timeout_ms=timeout_ms,
            expected=expected,
            new_producer_id=self._producer_ids.claim,
            wall_ms=now.wall_ms,
        )
        if decision is Fence.NEEDED:
            waiting = Waiting(context.request_id, reply, success=ErrorCode.CONCURRENT_TRANSACTIONS)
            self._fence(transaction, waiting, now, effects)
        else:
            self._carry_out(transaction, decision, Waiting(context.request_id, reply), effects)

    def _validate_init(self, request: m.InitProducerIdRequest) -> ErrorCode:
        if not request.transactional_id:
            return ErrorCode.INVALID_REQUEST
        if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
            return ErrorCode.INVALID_REQUEST
        if request.enable2_pc and not self._config.two_phase_commit_enable:
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        if request.keep_prepared_txn:
            return ErrorCode.UNSUPPORTED_VERSION
        if not request.enable2_pc and not 0 < request.transaction_timeout_ms <= self._config.max_timeout_ms:
            return ErrorCode.INVALID_TRANSACTION_TIMEOUT
        return ErrorCode.NONE

    def _end_txn(self, request: m.EndTxnRequest, context: RequestContext, now: Now, effects: Effects) -> None:
        waiting = Waiting(context.request_id, partial(replies.end_txn, context.api_version))
        transaction, error = self._look_up(request.transactional_id)
        decision: Decision = error
        if error is ErrorCode.NONE:
            decision = decisions.decide_end(
                None if transaction is None else transaction.metadata,
                transaction is not None and transaction.pending is not None,
                producer=ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
                committed=request.committed,
                transaction_version=replies.end_txn_version(context.api_version),
                new_producer_id=self._producer_ids.claim,
                wall_ms=now.wall_ms,
            )
        self._carry_out(transaction, decision, waiting, effects)

    def _add_partitions(
        self,
        request: AddPartitionsTransaction | m.AddOffsetsToTxnRequest,
        partitions: frozenset[TopicPartition],
        waiting: Waiting,
        now: Now,
        effects: Effects,
        *,
        transaction_version: int,
    ) -> None:
        transaction, error = self._look_up(request.transactional_id)
        decision: Decision = error
        if error is ErrorCode.NONE:
            decision = decisions.decide_add_partitions(
                None if transaction is None else transaction.metadata,
                transaction is not None and transaction.pending is not None,
                producer=ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
                partitions=partitions,
                transaction_version=transaction_version,
                wall_ms=now.wall_ms,
            )
        self._carry_out(transaction, decision, waiting, effects)

    def _verify_partitions(self, request: AddPartitionsTransaction, context: RequestContext, effects: Effects) -> None:
        partitions = replies.partitions_of(request)
        transaction, error = self._look_up(request.transactional_id)
        if error is ErrorCode.NONE:
            errors = decisions.verify_partitions(
                None if transaction is None else transaction.metadata,
                producer=ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
                partitions=partitions,
            )
        else:
            errors = dict.fromkeys(partitions, error)
        effects.responses.append(Response(context.request_id, replies.verified_partitions(request, errors)))

    def describe(self, transactional_id: str) -> queries.Described:
        transaction, error = self._look_up(transactional_id)
        if error is not ErrorCode.NONE:
            return queries.describe_error(transactional_id, error)
        if transaction is None:
            return queries.describe_error(transactional_id, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        partitions: Collection[TopicPartition] = transaction.metadata.partitions
        if transaction.completion is not None:
            partitions = transaction.completion.remaining
        return queries.describe(transaction.metadata, partitions)

    def list_transactions(
        self, request: m.ListTransactionsRequest, now: Now, matches: Callable[[str], bool] | None = None
    ) -> m.ListTransactionsResponse:
        """The matching transactions of this shard; the broker joins the shards with `queries.merge_lists`.

        `matches` decides about the pattern of the request, if there is one.
        """
        if self._phase is not _Phase.ACTIVE:
            return m.ListTransactionsResponse(error_code=self._phase.value)
        transactions = (transaction.metadata for transaction in self._transactions.values())
        return queries.list_transactions(transactions, request, now.wall_ms, matches)

    def metadata(self, transactional_id: str) -> TransactionMetadata | None:
        """The committed state of an id, for tests and metrics."""
        transaction = self._transactions.get(transactional_id)
        return None if transaction is None else transaction.metadata

    @property
    def transactional_ids(self) -> Collection[str]:
        return self._transactions.keys()

    @property
    def ending(self) -> Collection[str]:
        """Ids whose transaction is decided and not yet complete."""
        return self._ending.keys()

    def _look_up(self, transactional_id: str) -> tuple[Transaction | None, ErrorCode]:
        if not transactional_id:
            return None, ErrorCode.INVALID_REQUEST
        return self._transactions.get(transactional_id), self._phase.value

    # ---- appending ----

    def _carry_out(
        self, transaction: Transaction | None, decision: Decision, waiting: Waiting | None, effects: Effects
    ) -> None:
        """Answer at once, or append the transition and answer then."""
        if isinstance(decision, TransactionMetadata):
            assert transaction is not None
            assert transaction.pending is None
            self._append(transaction, decision, waiting, effects)
        elif waiting is not None:
            metadata = None if transaction is None else transaction.metadata
            effects.responses.append(Response(waiting.request_id, waiting.reply(decision, metadata)))

    def _append(
        self,
        transaction: Transaction,
        new: TransactionMetadata,
        waiting: Waiting | None,
        effects: Effects,
        *,
        is_fence: bool = False,
    ) -> None:
        record = records.encode(new, self.transaction_version)  # first: should it fail, nothing has changed
        transaction.pending = new
        in_flight = InFlight((new.transactional_id,), waiting, is_fence)
        self._send_append(in_flight, (record,), new.timeout_ms, effects)

    def _send_append(
        self, in_flight: InFlight, batch: tuple[records.Record, ...], timeout_ms: int, effects: Effects
    ) -> None:
        token = self._take_token()
        self._in_flight[token] = in_flight
        effects.appends.append(Append(token, batch, timeout_ms))

    def _take_token(self) -> int:
        token, self._next_token = self._next_token, self._next_token + 1
        return token

    def on_append(self, token: int, error: ErrorCode, now: Now) -> Effects:
        """The batch is committed (NONE), or has failed. After `resign` it does not matter any more."""
        effects = Effects()
        in_flight = self._in_flight.pop(token, None)
        if in_flight is None:
            assert self._phase is _Phase.RESIGNED, f"append {token} was reported twice, or never asked for"
            return effects
        error = APPEND_ERRORS.get(error, error)
        for transactional_id in in_flight.transactional_ids:
            transaction = self._transactions[transactional_id]
            new = transaction.pending
            assert new is not None
            if error is ErrorCode.NONE:
                transaction.pending = None
                self._install(transaction, new, in_flight.waiting, now, effects)
            elif new.state in {TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT}:
                # The markers are out: there is no way but forward. The id stays pending.
                transaction.complete_at_ms = now.monotonic_ms + self._config.retry_backoff_ms
                self._retrying[transactional_id] = None
            else:
                transaction.pending = None
                is_old_fence = in_flight.is_fence and not md.supports_epoch_bump(new.client_transaction_version)
                transaction.has_failed_fence = transaction.has_failed_fence or is_old_fence
                self._answer(in_flight.waiting, error, None, effects)
        return effects

    def _answer(
        self, waiting: Waiting | None, error: ErrorCode, metadata: TransactionMetadata | None, effects: Effects
    ) -> None:
        if waiting is not None:
            answer = waiting.success if error is ErrorCode.NONE else error
            effects.responses.append(Response(waiting.request_id, waiting.reply(answer, metadata)))

    def _install(
        self,
        transaction: Transaction,
        new: TransactionMetadata,
        waiting: Waiting | None,
        now: Now,
        effects: Effects,
    ) -> None:
        """A committed transition becomes the state, and brings what follows from it."""
        transactional_id = new.transactional_id
        assert transaction.metadata.state in md.VALID_PREVIOUS_STATES[new.state]
        if new.state is TransactionState.DEAD:
            del self._transactions[transactional_id]
            return
        transaction.metadata = new
        if new.state is TransactionState.ONGOING:
            self._ongoing.setdefault(transactional_id)
        else:
            self._ongoing.pop(transactional_id, None)
        if new.state in PREPARED:
            self._start_completion(transaction, now, effects)
            # The client goes on with the id and epoch it will have once the transaction is complete.
            self._answer(waiting, ErrorCode.NONE, transaction.pending, effects)
            return
        if transaction.completion is not None:
            transaction.completion = None
            del self._ending[transactional_id]
        self._answer(waiting, ErrorCode.NONE, new, effects)

    # ---- ending a transaction ----

    def _fence(self, transaction: Transaction, waiting: Waiting | None, now: Now, effects: Effects) -> None:
        """Abort an open transaction and lock its producer out."""
        transaction.metadata, decision = decisions.decide_fence(
            transaction.metadata,
            has_failed_before=transaction.has_failed_fence,
            transaction_version=self.transaction_version,
            new_producer_id=self._producer_ids.claim,
            wall_ms=now.wall_ms,
        )
        if isinstance(decision, TransactionMetadata):
            self._append(transaction, decision, waiting, effects, is_fence=True)
        else:
            self._answer(waiting, decision, None, effects)

    def _start_completion(self, transaction: Transaction, now: Now, effects: Effects) -> None:
        metadata = transaction.metadata
        transaction.has_failed_fence = False
        transaction.pending = md.complete(metadata, now.wall_ms)
        transaction.completion = Completion(self._take_token(), set(metadata.partitions))
        self._ending[metadata.transactional_id] = None
        if metadata.partitions:
            effects.markers.append(self._marker(transaction, sorted(metadata.partitions)))
        else:
            self._append(transaction, transaction.pending, None, effects)

    def _marker(self, transaction: Transaction, partitions: list[TopicPartition]) -> TxnMarker:
        metadata, completion = transaction.metadata, transaction.completion
        assert completion is not None
        assert metadata.state in PREPARED
        return TxnMarker(
            token=completion.token,
            transactional_id=metadata.transactional_id,
            producer_id=metadata.producer_id,
            producer_epoch=metadata.producer_epoch,
            coordinator_epoch=self.coordinator_epoch,
            committed=metadata.state is TransactionState.PREPARE_COMMIT,
            transaction_version=metadata.client_transaction_version,
            partitions=tuple(partitions),
        )

    def on_marker_results(
        self, transactional_id: str, token: int, results: Mapping[TopicPartition, ErrorCode], now: Now
    ) -> Effects:
        """What became of the markers, in one part or in several. A leader that cannot be reached is any retriable error
        (NETWORK_EXCEPTION, LEADER_NOT_AVAILABLE, …)."""
        effects = Effects()
        transaction = self._with_completion(transactional_id, token)
        if transaction is None:
            return effects
        completion = transaction.completion
        assert completion is not None
        retry_at_ms = now.monotonic_ms + self._config.retry_backoff_ms
        effects.abandoned.extend(
            Abandoned(transactional_id, partition, error)
            for partition, error in completion.on_results(results, retry_at_ms)
        )
        self._after_results(transaction, effects)
        return effects

    def on_partitions_deleted(
        self, transactional_id: str, token: int, partitions: Collection[TopicPartition], now: Now
    ) -> Effects:
        """These partitions exist no more, so no marker can or need be written."""
        del now
        effects = Effects()
        transaction = self._with_completion(transactional_id, token)
        if transaction is not None:
            assert transaction.completion is not None
            transaction.completion.forget(partitions)
            self._after_results(transaction, effects)
        return effects

    def _with_completion(self, transactional_id: str, token: int) -> Transaction | None:
        transaction = self._transactions.get(transactional_id)
        if transaction is None or transaction.completion is None or transaction.completion.token != token:
            return None
        is_over = transaction.completion.is_abandoned or not transaction.completion.remaining
        return None if is_over else transaction

    def _after_results(self, transaction: Transaction, effects: Effects) -> None:
        """All markers are written: append the end. Or some have to be tried again: remember to."""
        completion, pending = transaction.completion, transaction.pending
        assert completion is not None
        assert pending is not None
        if transaction.retry_at_ms is None:
            self._retrying.pop(pending.transactional_id, None)
        else:
            self._retrying[pending.transactional_id] = None
        if not completion.remaining and not completion.is_abandoned:
            self._append(transaction, pending, None, effects)

    # ---- time ----

    @property
    def next_deadline_ms(self) -> float | None:
        """When `tick` has something to do, on the monotonic clock."""
        if self._phase is not _Phase.ACTIVE:
            return None
        if self._expiry.is_under_way:
            return self._expiry.due_ms  # in the past: as soon as others had their turn
        deadline_ms = min(self._timeout_sweep_at_ms, self._expiry.due_ms)
        for transactional_id in self._retrying:
            at_ms = self._transactions[transactional_id].retry_at_ms
            if at_ms is not None and at_ms < deadline_ms:
                deadline_ms = at_ms
        return deadline_ms

    def tick(self, now: Now) -> Effects:
        """Whatever is due: markers and ends to try again, transactions that ran out of time, ids nobody uses."""
        effects = Effects()
        if self._phase is not _Phase.ACTIVE:
            return effects
        self._retry(now, effects)
        if now.monotonic_ms >= self._timeout_sweep_at_ms:
            self._timeout_sweep_at_ms = now.monotonic_ms + self._config.abort_timed_out_interval_ms
            self._abort_timed_out(now, effects)
        if now.monotonic_ms >= self._expiry.due_ms:
            for batch in tombstones(self._expiry.step(self._transactions, now)):
                in_flight = InFlight(tuple(batch))
                self._send_append(in_flight, tuple(batch.values()), self._config.request_timeout_ms, effects)
        return effects

    def _retry(self, now: Now, effects: Effects) -> None:
        for transactional_id in list(self._retrying):
            transaction = self._transactions[transactional_id]
            completion, pending, at_ms = transaction.completion, transaction.pending, transaction.retry_at_ms
            assert completion is not None
            assert pending is not None
            assert at_ms is not None
            if at_ms > now.monotonic_ms:
                continue
            del self._retrying[transactional_id]
            if completion.remaining:
                effects.markers.append(self._marker(transaction, completion.take_retries()))
            else:
                transaction.complete_at_ms = None
                self._append(transaction, pending, None, effects)

    def _abort_timed_out(self, now: Now, effects: Effects) -> None:
        for transactional_id in self._ongoing:
            transaction = self._transactions[transactional_id]
            metadata = transaction.metadata
            is_timed_out = (
                metadata.timeout_ms != NO_TIMEOUT_MS and metadata.start_ms + metadata.timeout_ms < now.wall_ms
            )
            if is_timed_out and transaction.pending is None:
                self._fence(transaction, None, now, effects)
