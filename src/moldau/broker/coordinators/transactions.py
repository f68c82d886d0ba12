"""Transaction coordination on this node: a shard for every partition of `__transaction_state` it leads.

The shards are pure (`moldau.transactions`); this carries out their effects: appends their records, tells them when
these are committed, writes the markers that end a transaction, and wakes them when something is due.

Invariant: one request's trouble is its own. A record that cannot be written, or an answer that cannot be encoded, is an
error to the client that asked; it keeps nobody else from an answer, and the shard from no wake-up.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from moldau.broker.coordinators.log import read_batches
from moldau.broker.coordinators.shards import LedShards, Loading, append_records, when_committed
from moldau.broker.coordinators.txn_markers import Marker, MarkerSender
from moldau.broker.replicas.manager import PartitionUnavailable
from moldau.broker.replicas.partition import Partition
from moldau.broker.wake_up import RETRY_MS, WakeUp
from moldau.controller.delta import ImageDelta
from moldau.controller.features import TRANSACTION_VERSION
from moldau.log.errors import LogError
from moldau.transactions import (
    Append,
    Effects,
    Now,
    RequestContext,
    Response,
    TopicPartition,
    TransactionRequest,
    TransactionShard,
    TxnMarker,
)
from moldau.transactions.config import transaction_config
from moldau.transactions.replies import refusal
from moldau.wire import ErrorCode, Struct

if TYPE_CHECKING:
    from moldau.broker.coordinators.producer_ids import ProducerIds
    from moldau.broker.coordinators.shards import Needs as ShardsNeeds
    from moldau.broker.coordinators.txn_markers import Needs as TxnMarkersNeeds
    from moldau.broker.parts import HasConfig, HasImage, HasTime

    class Needs(TxnMarkersNeeds, ShardsNeeds, HasConfig, HasImage, HasTime, Protocol):
        """What this file may touch."""

        @property
        def producer_ids(self) -> ProducerIds: ...


_log = logging.getLogger(__name__)

TOPIC = "__transaction_state"

Answer = Callable[[Struct], None]


class TransactionCoordinator:
    """Belongs to the event loop."""

    def __init__(self, broker: Needs) -> None:
        self._broker = broker
        self._shards: LedShards[_ActiveShard] = LedShards(
            broker, TOPIC, "transaction.state.log.num.partitions", self._load, self._start
        )
        self._next_request_id = 0
        self._markers = MarkerSender(broker)

    @property
    def shards(self) -> list[TransactionShard]:
        return [shard.state for shard in self._shards]

    @property
    def is_loading(self) -> bool:
        """Whether some shard cannot answer yet."""
        return len(self._shards) < len(self._shards.indexes)

    def leader_for(self, transactional_id: str) -> int | None:
        """The broker that coordinates the id; None if nobody does at the moment."""
        image = self._broker.image.partition(TOPIC, self._shards.partition_for(transactional_id))
        return None if image is None or image.leader < 0 else image.leader

    def shard_for(self, transactional_id: str) -> TransactionShard | ErrorCode:
        """The shard of an id, or why there is none here."""
        index = self._shards.partition_for(transactional_id)
        shard = self._shards.get(index)
        return self._shards.why_missing(index) if shard is None else shard.state

    def apply(self, delta: ImageDelta) -> None:
        """Leadership of the transaction log may have changed, and the level of transaction.version."""
        self._shards.apply(delta)
        if any(change.key == TRANSACTION_VERSION for change in delta.features):
            for shard in self._shards:
                shard.state.transaction_version = self._transaction_version()

    def _transaction_version(self) -> int:
        return self._broker.image.features.get(TRANSACTION_VERSION, 0)

    def load_all(self) -> None:
        """Take charge of every partition this node leads already."""
        self._shards.follow_all()

    def _load(self, partition: Partition) -> Loading[_ActiveShard]:
        broker = self._broker
        state = TransactionShard(
            partition.leader_epoch,
            transaction_config(broker.config.get_int),
            broker.producer_ids.allocator,
            self._transaction_version(),
        )
        for batch in read_batches(partition):
            for key, value in batch.records:
                state.replay(key, value)
            yield
        return _ActiveShard(broker, partition, state, self._markers)

    def _start(self, shard: _ActiveShard) -> None:
        shard.state.transaction_version = self._transaction_version()
        effects = shard.state.finish_load(now_of(self._broker))
        for reason in shard.state.unreadable:
            _log.error("skipped a record of %r that cannot be read: %s", shard.partition, reason)
        shard.carry_out(effects)

    def handle(
        self,
        transactional_id: str,
        request: TransactionRequest,
        api_version: int,
        answer: Answer,
        *,
        group_id: str = "",
    ) -> ErrorCode:
        """Give a request to the shard of the id; `answer` is called with its response, now or later.

        Anything but NONE: there is no shard for the id here, or it failed, and `answer` will not be called.
        """
        index = self._shards.partition_for(transactional_id)
        shard = self._shards.get(index)
        if shard is None:
            return self._shards.why_missing(index)
        self._next_request_id += 1
        offsets_partition = self._broker.groups.partition_for(group_id) if group_id else -1
        context = RequestContext(self._next_request_id, api_version, offsets_partition)
        try:
            effects = shard.state.handle(request, context, now_of(self._broker))
        except Exception:  # ours. State changes when records are committed: nothing has changed for anybody.
            _log.exception("%s of %r failed", type(request).__name__, transactional_id)
            return ErrorCode.UNKNOWN_SERVER_ERROR
        shard.answers[context.request_id] = _Request(request, api_version, answer)
        shard.carry_out(effects)
        self._broker.producer_ids.prefetch()
        return ErrorCode.NONE

    def stop(self) -> None:
        self._shards.stop()
        self._markers.stop()


def now_of(broker: HasTime) -> Now:
    return Now(broker.clock.monotonic_ms(), broker.clock.wall_ms())


class _Request(NamedTuple):
    """Not answered yet."""

    message: TransactionRequest
    api_version: int
    answer: Answer


class _ActiveShard:
    """A shard, its partition, its timer, and the requests it has not answered."""

    def __init__(self, broker: Needs, partition: Partition, state: TransactionShard, markers: MarkerSender) -> None:
        self._broker = broker
        self._markers = markers
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.state = state
        self.answers: dict[int, _Request] = {}
        self._wake_up = WakeUp(broker.wheel, self._tick)
        self._is_dropped = False
        self._pending: deque[Effects] = deque()
        self._is_running = False

    def carry_out(self, effects: Effects) -> None:
        """Effects lead to results, and results to more effects: one after the other, never nested."""
        self._pending.append(effects)
        if self._is_running:
            return
        self._is_running = True
        try:
            while self._pending and not self._is_dropped:
                self._carry_out_one(self._pending.popleft())
        finally:
            self._is_running = False
        if not self._is_dropped:
            self._wake_up.at(self.state.next_deadline_ms)

    def _carry_out_one(self, effects: Effects) -> None:
        for append in effects.appends:
            self._append(append)
        for response in effects.responses:
            self._answer(response)
        for marker in effects.markers:
            self._write_markers(marker)
        for abandoned in effects.abandoned:
            _log.error(
                "%s: no marker for %s: %s", abandoned.transactional_id, abandoned.partition, abandoned.error.name
            )

    def _answer(self, response: Response) -> None:
        """Whatever happens: others wait for their turn."""
        request = self.answers.pop(response.request_id, None)
        if request is None:
            return
        try:
            request.answer(response.message)
        except Exception:
            _log.exception("a %s cannot be answered", type(request.message).__name__)
            try:
                request.answer(refusal(request.message, request.api_version, ErrorCode.UNKNOWN_SERVER_ERROR))
            except Exception:
                _log.exception("nor can it be refused")

    def _append(self, append: Append) -> None:
        try:
            end_offset = append_records(self._broker, self.partition, append.records)
        except (PartitionUnavailable, LogError) as error:
            self._on_append(append.token, ErrorCode(error.code))
            return
        except Exception:  # ours: a record that cannot be built
            _log.exception("%d records cannot be written to %r", len(append.records), self.partition)
            self._on_append(append.token, ErrorCode.UNKNOWN_SERVER_ERROR)
            return

        def then(is_committed: bool) -> None:
            self._on_append(append.token, ErrorCode.NONE if is_committed else ErrorCode.REQUEST_TIMED_OUT)

        when_committed(self._broker, self.partition, end_offset, append.timeout_ms, then)

    def _on_append(self, token: int, error: ErrorCode) -> None:
        self._run(partial(self.state.on_append, token, error, now_of(self._broker)))

    def _write_markers(self, marker: TxnMarker) -> None:
        gone: list[TopicPartition] = []
        there: list[TopicPartition] = []
        for place in marker.partitions:
            (gone if self._broker.image.partition(*place) is None else there).append(place)
        wanted = Marker(
            marker.producer_id,
            marker.producer_epoch,
            marker.coordinator_epoch,
            marker.committed,
            marker.transaction_version,
        )

        def on_results(results: Mapping[TopicPartition, ErrorCode]) -> None:
            now = now_of(self._broker)
            self._run(partial(self.state.on_marker_results, marker.transactional_id, marker.token, results, now))

        if gone:
            now = now_of(self._broker)
            self._run(partial(self.state.on_partitions_deleted, marker.transactional_id, marker.token, gone, now))
        try:
            self._markers.write(wanted, there, on_results)
        except Exception:  # ours. The transaction must end all the same: what was not heard of is tried again.
            _log.exception("markers of %r cannot be written", marker.transactional_id)
            on_results(dict.fromkeys(there, ErrorCode.NETWORK_EXCEPTION))

    def _tick(self) -> None:
        self._run(partial(self.state.tick, now_of(self._broker)))

    def _run(self, event: Callable[[], Effects]) -> None:
        """Let something happen to the shard, and carry out what follows from it."""
        if self._is_dropped:
            return
        try:
            effects = event()
        except Exception:  # ours. The shard must be woken all the same: others wait for it.
            _log.exception("an event of %r failed", self.partition)
            self._wake_up.at(self._broker.clock.monotonic_ms() + RETRY_MS)
        else:
            self.carry_out(effects)

    def drop(self, error: ErrorCode) -> None:
        """No longer ours: answer whoever waits. `resign` knows the error: leadership is the only reason here."""
        for response in self.state.resign().responses:
            self._answer(response)
        self._is_dropped = True
        self._wake_up.at(None)
