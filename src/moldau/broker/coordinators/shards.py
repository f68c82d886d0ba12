"""What both coordinators are made of: a shard for every partition of their topic that this node leads.

Shards come and go with leadership. A shard is made by replaying its partition, in slices, so that a long log does not
keep the loop from everything else; whoever asks meanwhile is told to come back.

Invariants
- A shard serves the leader epoch it was loaded in. With another epoch, another log or no leadership it is dropped.
- A shard is made only of what was committed, so that another leader cannot lack what this one acted upon.
- A shard has seen everything in its partition, markers included: it becomes active in the turn of the loop in which
  the end of the log was reached.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from moldau.broker.coordinators.log import coordinator_batch
from moldau.broker.replicas.manager import PartitionUnavailable
from moldau.broker.replicas.partition import Partition
from moldau.controller.delta import ImageDelta
from moldau.groups import partition_for_group
from moldau.log.errors import LogError
from moldau.log.origin import AppendOrigin
from moldau.records import BatchOptions, CorruptBatch
from moldau.wire import ErrorCode

if TYPE_CHECKING:
    from moldau.broker.parts import HasConfig, HasImage, HasLoop, HasPurgatories, HasTime
    from moldau.broker.replicas.parts import HasReplicas

    class Needs(HasConfig, HasImage, HasLoop, HasPurgatories, HasTime, HasReplicas, Protocol):
        """What this file may touch."""


_log = logging.getLogger(__name__)

_SLICE_MS = 20
_COMMIT_WAIT_MS = 60_000


class Shard(Protocol):
    """What a coordinator keeps per partition."""

    partition: Partition
    leader_epoch: int

    def drop(self, error: ErrorCode) -> None:
        """No longer ours: answer whoever waits, and do nothing from now on."""


S = TypeVar("S", bound=Shard)

Loading = Generator[None, None, S]
"""Replays a partition, a batch per step, and returns its shard."""


@dataclass(slots=True, frozen=True, eq=False)
class _Load(Generic[S]):
    partition: Partition
    leader_epoch: int
    steps: Loading[S]


class LedShards(Generic[S]):
    """Belongs to the event loop. `load` replays a partition; `started` is called with the shard when it is active."""

    def __init__(
        self,
        broker: Needs,
        topic: str,
        count_setting: str,
        load: Callable[[Partition], Loading[S]],
        started: Callable[[S], None],
    ) -> None:
        self._broker = broker
        self._topic = topic
        self._count_setting = count_setting
        self._load = load
        self._started = started
        self._active: dict[int, S] = {}
        self._loading: dict[int, _Load[S]] = {}
        self._is_stopped = False

    def __iter__(self) -> Iterator[S]:
        return iter([shard for _, shard in sorted(self._active.items())])

    def __len__(self) -> int:
        return len(self._active)

    @property
    def indexes(self) -> list[int]:
        """The partitions this node coordinates, loaded or not."""
        return sorted(self._active.keys() | self._loading.keys())

    def partition_for(self, key: str) -> int:
        """The partition a group or a transactional id belongs to."""
        topic = self._broker.image.topics.get(self._topic)
        count = len(topic.partitions) if topic else self._broker.config.get_int(self._count_setting)
        return partition_for_group(key, count)

    def get(self, index: int) -> S | None:
        return self._active.get(index)

    def why_missing(self, index: int) -> ErrorCode:
        """What to tell a client when there is no shard."""
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if index in self._loading else ErrorCode.NOT_COORDINATOR

    def follow_all(self) -> None:
        """Take charge of every partition this node leads already."""
        topic = self._broker.image.topics.get(self._topic)
        for index in topic.partitions if topic is not None else ():
            self._follow(index)

    def apply(self, delta: ImageDelta) -> None:
        """The cluster changed, and with it maybe who leads what."""
        if any(topic.name == self._topic for topic in delta.topics_deleted):
            for index in self.indexes:
                self._follow(index)
        for change in delta.partitions:
            if change.topic.name == self._topic:
                self._follow(change.partition_id)

    def stop(self) -> None:
        self._is_stopped = True
        self._loading.clear()
        active, self._active = self._active, {}
        for shard in active.values():
            shard.drop(ErrorCode.NOT_COORDINATOR)

    def _follow(self, index: int) -> None:
        """Hold a shard for the partition exactly if this node leads it, for the epoch in which it does."""
        if self._is_stopped:
            return
        partition = self._broker.replicas.get(self._topic, index)
        leads = partition is not None and partition.is_leader
        current = self._active.get(index) or self._loading.get(index)
        if current is not None:
            if leads and current.partition is partition and current.leader_epoch == partition.leader_epoch:
                return
            self._loading.pop(index, None)
            if (shard := self._active.pop(index, None)) is not None:
                shard.drop(ErrorCode.NOT_COORDINATOR)
        if leads:
            assert partition is not None
            load = self._loading[index] = _Load(partition, partition.leader_epoch, self._load(partition))
            self._begin(load)

    def _begin(self, load: _Load[S], _: bool = False) -> None:
        """Once all there is in the log is committed: a shard acts on what it has read, and that must not be undone."""
        if self._loading.get(load.partition.index) is not load:
            return
        if not load.partition.is_leader or load.partition.leader_epoch != load.leader_epoch:
            return  # the image that says so is being acted upon, and will come to this shard
        log = load.partition.log
        if log.high_watermark >= log.log_end_offset:
            self._go_on(load)
        else:
            when_committed(
                self._broker, load.partition, log.log_end_offset, _COMMIT_WAIT_MS, partial(self._begin, load)
            )

    def _go_on(self, load: _Load[S]) -> None:
        index = load.partition.index
        if self._loading.get(index) is not load:
            return  # leadership changed meanwhile
        clock = self._broker.clock
        end_ms = clock.monotonic_ms() + _SLICE_MS
        try:
            while clock.monotonic_ms() <= end_ms:
                next(load.steps)
        except StopIteration as done:
            del self._loading[index]
            shard: S = done.value
            self._active[index] = shard
            self._started(shard)
        except (LogError, CorruptBatch) as error:
            # Another replica may be able to; here it would fail again.
            _log.error("cannot load %r, so its groups or transactions are not served here: %s", load.partition, error)
            del self._loading[index]
        else:
            self._broker.loop.call_soon(self._go_on, load)


def append_records(
    broker: Needs,
    partition: Partition,
    records: Sequence[tuple[bytes, bytes | None]],
    options: BatchOptions | None = None,
    guard: object | None = None,
    *,
    batch: bytearray | None = None,
) -> int:
    """Append as one batch (`batch`, if it has been made already); PartitionUnavailable or LogError if it cannot be, and
    then nothing has changed. The offset up to which the log must be committed for the batch to be."""
    if not partition.is_leader:
        raise PartitionUnavailable(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    if not partition.has_enough_replicas:
        raise PartitionUnavailable(ErrorCode.NOT_ENOUGH_REPLICAS)
    if batch is None:
        batch = coordinator_batch(records, broker.clock.wall_ms(), options)
    _, last_offset, _ = partition.append(batch, AppendOrigin.COORDINATOR, verification_guard=guard)
    broker.fetch_purgatory.check_and_complete(partition.key)
    return last_offset + 1


def when_committed(
    broker: Needs, partition: Partition, end_offset: int, timeout_ms: int, then: Callable[[bool], None]
) -> None:
    """Call `then` once: with True when what this leader has appended below `end_offset` is committed, with False when
    it leads no more, or after the timeout.

    Only the leader that appended can tell. Once another one leads, the high watermark of this replica goes on rising
    over offsets that may hold other records than those that were waited for.
    """
    waiting = _UntilCommitted(partition, end_offset, then)
    if waiting.is_ready():
        waiting.on_complete(expired=False)
        return
    deadline_ms = broker.clock.monotonic_ms() + timeout_ms
    broker.produce_purgatory.watch(waiting, [partition.key], deadline_ms)


class _UntilCommitted:
    """Belongs to one leadership of the partition: `generation` tells it from those that follow."""

    __slots__ = ("_end_offset", "_generation", "_partition", "_then")

    def __init__(self, partition: Partition, end_offset: int, then: Callable[[bool], None]) -> None:
        self._partition = partition
        self._generation = partition.generation
        self._end_offset = end_offset
        self._then = then

    def _leads_still(self) -> bool:
        return self._partition.is_leader and self._partition.generation == self._generation

    def is_ready(self) -> bool:
        return not self._leads_still() or self._partition.log.high_watermark >= self._end_offset

    def on_complete(self, expired: bool) -> None:
        self._then(self._leads_still() and self._partition.log.high_watermark >= self._end_offset)
