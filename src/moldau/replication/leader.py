"""What the leader of a partition knows about its followers, and what follows from it.

A follower's fetch offset is its log end offset: everything before is on its disk or in its page cache. The high
watermark is the smallest log end offset of those who count, and those who count are more than the in-sync replicas:

Invariants
- The high watermark never goes back. It counts every member of the maximal ISR: the committed in-sync replicas and
  those the leader has asked the controller to add. So whichever of the two sets the controller makes true, each of its
  members has everything below the high watermark, and each is a safe leader.
- At most one change of the ISR is asked for at a time; it counts for `acks=all` only once it is committed.
- A follower is added to the ISR only when it has everything below the high watermark, has reached this leader's epoch,
  and is the incarnation (broker epoch) that the controller knows.
- What a follower fetched counts in the leader epoch it fetched it in, and in no later one.
- While the ISR is smaller than `min.insync.replicas`, the high watermark stands still (KIP-966): what is readable has
  been on that many replicas.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from moldau.replication.watch import FollowerWatch, Key
from moldau.wire.errors import ErrorCode

UNKNOWN_OFFSET = -1
UNKNOWN_BROKER_EPOCH = -1

# Whether the controller, as far as we know, would take a replica of this broker epoch into an ISR.
Eligible = Callable[[int, int], bool]

# The answer to AlterPartition will come through the image, or never matter again: nothing to repeat.
_WAIT_FOR_IMAGE = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    }
)
_GIVE_UP = frozenset({ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED})


class ReplicaRefused(Exception):
    """The fetch does not come from a replica of this partition, or from an earlier incarnation of one."""


class Role(NamedTuple):
    """What the cluster's image says about a partition, as far as its leader is concerned."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader_epoch: int
    partition_epoch: int


class IsrChange(NamedTuple):
    """What to ask the controller for with AlterPartition. `isr` are (broker id, broker epoch)."""

    isr: tuple[tuple[int, int], ...]
    leader_epoch: int
    partition_epoch: int


@dataclass(slots=True)
class RemoteReplica:
    """A follower, as its fetches show it. Times are the leader's, in milliseconds."""

    broker_id: int
    log_end_offset: int = UNKNOWN_OFFSET
    log_start_offset: int = UNKNOWN_OFFSET
    broker_epoch: int = UNKNOWN_BROKER_EPOCH
    # When it last had all that the leader had: now, or at the time of its fetch before.
    last_caught_up_ms: float = float("-inf")
    last_fetch_ms: float = float("-inf")
    leader_end_at_last_fetch: int = UNKNOWN_OFFSET
    # Of its fetch session. While the partition is at rest there, its fetches are not noted one by one.
    watch: FollowerWatch | None = None

    def disturb(self, key: Key, *, is_due: bool) -> None:
        """Something about the partition changes. If it was at rest, the follower had everything at its last fetch."""
        watch = self.watch
        if watch is None:
            return
        if key not in watch.changed:
            watch.changed[key] = None
            self.last_fetch_ms = max(self.last_fetch_ms, watch.last_fetch_ms)
            self.last_caught_up_ms = max(self.last_caught_up_ms, watch.last_fetch_ms)
            self.leader_end_at_last_fetch = max(self.leader_end_at_last_fetch, self.log_end_offset)
        if is_due or watch.wants_marks:
            watch.is_due = True

    def is_caught_up(self, leader_end_offset: int, now_ms: float, lag_max_ms: float) -> bool:
        return self.log_end_offset == leader_end_offset or now_ms - self.last_caught_up_ms <= lag_max_ms


class LeaderState:
    """One partition, from the moment this node leads it until it no longer does."""

    __slots__ = (
        "_eligible",
        "_node_id",
        "epoch_start_offset",
        "isr",
        "leader_epoch",
        "partition_epoch",
        "pending",
        "pending_isr",
        "remotes",
        "replicas",
    )

    def __init__(self, node_id: int, role: Role, log_end_offset: int, now_ms: float, eligible: Eligible) -> None:
        self._node_id = node_id
        self._eligible = eligible
        self.leader_epoch = role.leader_epoch
        self.epoch_start_offset = log_end_offset
        self.remotes: dict[int, RemoteReplica] = {}
        self.pending: IsrChange | None = None
        self.pending_isr: frozenset[int] = frozenset()
        self._take(role)
        self._forget_fetches(now_ms)

    def _take(self, role: Role) -> None:
        self.replicas = role.replicas
        self.isr = frozenset(role.isr)
        self.partition_epoch = role.partition_epoch
        self.pending = None
        self.pending_isr = frozenset()
        self.remotes = {
            broker_id: self.remotes.get(broker_id) or RemoteReplica(broker_id)
            for broker_id in role.replicas
            if broker_id != self._node_id
        }

    # -- what the controller says

    def update(self, role: Role, log_end_offset: int, now_ms: float) -> bool:
        """The image has news, and this node still leads. False if they are older than what AlterPartition told."""
        if role.partition_epoch < self.partition_epoch:
            return False
        is_new_epoch = role.leader_epoch > self.leader_epoch
        if not is_new_epoch and role.partition_epoch == self.partition_epoch and self.pending is not None:
            return False  # nothing new; what was asked for is still under way
        self._take(role)
        if is_new_epoch:
            self.leader_epoch = role.leader_epoch
            self.epoch_start_offset = log_end_offset
            self._forget_fetches(now_ms)
        return True

    def _forget_fetches(self, now_ms: float) -> None:
        """A new epoch. Another node may have led in between, unnoticed here, and followers may have truncated their
        logs for it: what they had is known again when they fetch. Those in sync get the time to do so."""
        for remote in self.remotes.values():
            remote.log_end_offset = remote.log_start_offset = remote.leader_end_at_last_fetch = UNKNOWN_OFFSET
            remote.last_caught_up_ms = now_ms if remote.broker_id in self.isr else float("-inf")
            remote.last_fetch_ms = remote.last_caught_up_ms
            remote.watch = None

    def on_committed(self, change: IsrChange, isr: Iterable[int], leader_epoch: int, partition_epoch: int) -> bool:
        """The controller did as asked. False if that is no longer news."""
        if change is not self.pending or leader_epoch != self.leader_epoch or partition_epoch < self.partition_epoch:
            return False
        self._take(Role(self.replicas, tuple(isr), leader_epoch, partition_epoch))
        return True

    def on_refused(self, change: IsrChange, error: ErrorCode) -> IsrChange | None:
        """The controller did not. Returns what to ask again, if anything."""
        if change is not self.pending:
            return None
        if error in _GIVE_UP:
            self.pending = None
            self.pending_isr = frozenset()
            return None
        return None if error in _WAIT_FOR_IMAGE else change

    # -- what followers say

    def on_fetch(
        self,
        broker_id: int,
        broker_epoch: int,
        offset: int,
        log_start_offset: int,
        leader_end_offset: int,
        now_ms: float,
        watch: FollowerWatch | None = None,
    ) -> bool:
        """A follower has everything before `offset`. Returns whether that is news."""
        remote = self.remotes.get(broker_id)
        if remote is None:
            raise ReplicaRefused(f"broker {broker_id} has no replica of this partition")
        if UNKNOWN_BROKER_EPOCH < broker_epoch < remote.broker_epoch:
            raise ReplicaRefused(f"broker {broker_id} has been restarted since this fetch was sent")
        if offset >= leader_end_offset:
            remote.last_caught_up_ms = max(remote.last_caught_up_ms, now_ms)
        elif offset >= remote.leader_end_at_last_fetch:
            remote.last_caught_up_ms = max(remote.last_caught_up_ms, remote.last_fetch_ms)
        remote.last_fetch_ms = now_ms
        remote.leader_end_at_last_fetch = max(remote.leader_end_at_last_fetch, leader_end_offset)
        remote.log_start_offset = log_start_offset
        remote.broker_epoch = broker_epoch
        remote.watch = watch
        if offset == remote.log_end_offset:
            return False
        remote.log_end_offset = offset
        return True

    def disturb(self, key: Key, *, is_due: bool) -> None:
        """The partition `key` names, this one, has records that followers lack (`is_due`), or other news for them."""
        for remote in self.remotes.values():
            remote.disturb(key, is_due=is_due)

    # -- what follows

    @property
    def maximal_isr(self) -> frozenset[int]:
        return self.isr | self.pending_isr

    def min_isr(self, configured: int) -> int:
        return min(configured, len(self.replicas))

    def high_watermark(self, log_end_offset: int, now_ms: float, lag_max_ms: float, min_insync_replicas: int) -> int:
        """The largest offset that may become the high watermark now, or UNKNOWN_OFFSET.

        It waits, too, for a follower that is about to join: else it would run ahead of it, and the follower would
        never be in sync with a busy leader.
        """
        isr = self.isr
        if len(isr) < min(min_insync_replicas, len(self.replicas)):
            return UNKNOWN_OFFSET
        smallest = log_end_offset
        pending = self.pending_isr
        for broker_id, remote in self.remotes.items():
            if remote.log_end_offset < smallest and (
                broker_id in isr
                or broker_id in pending
                or (
                    remote.is_caught_up(log_end_offset, now_ms, lag_max_ms)
                    and self._eligible(broker_id, remote.broker_epoch)
                )
            ):
                smallest = remote.log_end_offset
        return smallest

    def expansion(self, broker_id: int, high_watermark: int) -> IsrChange | None:
        """Ask to add this follower to the ISR, if it is time to. The change counts against the high watermark now."""
        if self.pending is not None or broker_id in self.isr:
            return None
        remote = self.remotes[broker_id]
        if remote.log_end_offset < max(high_watermark, self.epoch_start_offset):
            return None
        if not self._eligible(broker_id, remote.broker_epoch):
            return None
        return self._propose(self.isr | {broker_id})

    def shrinkage(self, log_end_offset: int, now_ms: float, lag_max_ms: float) -> IsrChange | None:
        """Ask to take out those who did not catch up for too long. They count until that is committed."""
        if self.pending is not None:
            return None
        behind = {
            remote.broker_id
            for remote in self.remotes.values()
            if remote.broker_id in self.isr and not remote.is_caught_up(log_end_offset, now_ms, lag_max_ms)
        }
        return self._propose(self.isr - behind) if behind else None

    def _propose(self, isr: frozenset[int]) -> IsrChange:
        members = tuple(
            (broker_id, self.remotes[broker_id].broker_epoch if broker_id in self.remotes else UNKNOWN_BROKER_EPOCH)
            for broker_id in self.replicas
            if broker_id in isr
        )
        self.pending = IsrChange(members, self.leader_epoch, self.partition_epoch)
        self.pending_isr = isr
        return self.pending

    def low_watermark(self, log_start_offset: int, is_alive: Callable[[int], bool]) -> int:
        """Records before are gone from every replica that is alive: what DeleteRecords waits for."""
        starts = [remote.log_start_offset for remote in self.remotes.values() if is_alive(remote.broker_id)]
        return min([log_start_offset, *starts])
