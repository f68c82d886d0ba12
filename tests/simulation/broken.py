"""Ways to break a node, each a line or two that somebody might well have written. `variants` says how soon the
simulator must notice each.

Every function patches the code while its generator is suspended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

# -- replication


def ack_before_isr() -> Iterator[None]:
    from moldau.replication.leader import LeaderState

    def high_watermark(self: Any, log_end_offset: int, *_: Any) -> int:
        return log_end_offset

    with patch.object(LeaderState, "high_watermark", high_watermark):
        yield


def truncate_by_high_watermark() -> Iterator[None]:
    """As Kafka did before KIP-101: a follower goes back to its high watermark, and trusts the rest."""
    from moldau.broker.replicas.partition import Partition
    from moldau.broker.requests.handlers import fetch

    become = Partition.become

    def become_and_truncate(self: Any, image: Any) -> None:
        was_follower_of = (self.image.leader, self.leader_epoch) if hasattr(self, "image") else None
        become(self, image)
        if not self.is_leader and was_follower_of != (image.leader, image.leader_epoch):
            self.log.truncate_to(self.log.high_watermark)

    with (
        patch.object(Partition, "become", become_and_truncate),
        patch.object(fetch, "_diverging_epoch", lambda *_: None),
    ):
        yield


def never_diverge() -> Iterator[None]:
    """The leader does not say where the follower's log left its own."""
    from moldau.broker.requests.handlers import fetch

    with patch.object(fetch, "_diverging_epoch", lambda *_: None):
        yield


def vote_for_anybody() -> Iterator[None]:
    """Votes go to candidates with a shorter log too."""
    from moldau.raft import roles

    originals = {role: role.grants for role in (roles.Unattached, roles.Follower, roles.Prospective, roles.Candidate)}

    def patched(role: Any) -> Callable[..., bool]:
        def grants(self: Any, vote: Any, *, up_to_date: bool) -> bool:
            return bool(originals[role](self, vote, up_to_date=True))

        return grants

    with ExitStack() as stack:
        for role in originals:
            stack.enter_context(patch.object(role, "grants", patched(role)))
        yield


def forget_votes() -> Iterator[None]:
    from moldau.broker.quorum.metadata_log import QuorumLog

    with patch.object(QuorumLog, "write_election_state", lambda *_: None):
        yield


def skip_metadata_flush() -> Iterator[None]:
    from moldau.broker.quorum.metadata_log import QuorumLog

    with patch.object(QuorumLog, "flushed_offset", property(lambda self: self.end_offset)):
        yield


def read_beyond_high_watermark() -> Iterator[None]:
    from moldau.broker.requests.handlers import fetch

    with patch.object(fetch, "_CONSUMER", -99):
        yield


def any_replica_may_lead() -> Iterator[None]:
    from moldau.controller import partition_change

    def choose(
        target: Any, partition: Any, election: Any, acceptable: Callable[[int], bool], *_: Any
    ) -> tuple[int, bool]:
        for replica in reversed(target.replicas):
            if acceptable(replica):
                if replica not in target.isr:
                    target.isr = [*target.isr, replica]
                return replica, True
        return -1, True

    with patch.object(partition_change, "_choose", choose):
        yield


def lose_a_marker() -> Iterator[None]:
    """The last partition of a transaction never hears how it ended, and the coordinator believes it did."""
    from moldau.broker.coordinators.txn_markers import MarkerSender

    write = MarkerSender.write

    def without_the_last(self: Any, marker: Any, places: list[Any], then: Callable[[Any], None]) -> None:
        from moldau.wire import ErrorCode

        lost = places[-1:] if len(places) > 1 else []

        def tell(results: Any) -> None:
            then({**dict(results), **dict.fromkeys(lost, ErrorCode.NONE)})

        write(self, marker, [place for place in places if place not in lost], tell)

    with patch.object(MarkerSender, "write", without_the_last):
        yield


def shrink_isr_unasked() -> Iterator[None]:
    """Who lags no longer counts, before the controller agreed."""
    from moldau.replication.leader import LeaderState

    shrinkage = LeaderState.shrinkage

    def unasked(self: Any, *args: Any) -> Any:
        change = shrinkage(self, *args)
        if change is not None:
            self.isr = self.pending_isr
        return change

    with patch.object(LeaderState, "shrinkage", unasked):
        yield


def expand_isr_early() -> Iterator[None]:
    """Who fetches is taken into the ISR, whether it has everything or not; and is not waited for until it is in."""
    from moldau.replication.leader import LeaderState

    def expansion(self: Any, broker_id: int, _: int) -> Any:
        if self.pending is not None or broker_id in self.isr:
            return None
        change = self._propose(self.isr | {broker_id})
        self.pending_isr = frozenset()
        return change

    with patch.object(LeaderState, "expansion", expansion):
        yield


def keep_leader_epoch() -> Iterator[None]:
    """A new leader goes on in the epoch of the one before."""
    from moldau.controller import fold

    merge = fold.merge

    def merged(partition: Any, change: Any) -> Any:
        return merge(partition, change)._replace(leader_epoch=partition.leader_epoch)

    with patch.object(fold, "merge", merged):
        yield


def lead_in_another_incarnation() -> Iterator[None]:
    """A broker that comes back before anybody missed it goes on leading what it led."""
    from moldau.broker.replicas.manager import ReplicaManager

    with patch.object(ReplicaManager, "_may_lead", lambda _: True):
        yield


def forget_aborted_transactions() -> Iterator[None]:
    from moldau.log.partition_log import PartitionLog

    with patch.object(PartitionLog, "aborted_transactions", lambda *_: []):
        yield


def take_any_sequence() -> Iterator[None]:
    """A repeated batch is not recognized, and whatever sequence comes is taken."""
    from moldau.log.producers.producer_state import ProducerEntry, ProducerState

    with (
        patch.object(ProducerEntry, "duplicate_of", lambda *_: None),
        patch.object(ProducerState, "_check_sequence", lambda *_: None),
    ):
        yield


# -- the quorum


def vote_twice() -> Iterator[None]:
    """Whoever asks in an epoch gets a vote, also the second, also from a candidate."""
    from moldau.raft import roles

    def grants(self: Any, vote: Any, *, up_to_date: bool) -> bool:
        return up_to_date and (vote.pre_vote or self.leader_id is None)

    with ExitStack() as stack:
        for role in (roles.Unattached, roles.Prospective, roles.Candidate):
            stack.enter_context(patch.object(role, "grants", grants))
        yield


def write_votes_without_flush() -> Iterator[None]:
    from tests.support.sim_disk import SimDisk

    write = SimDisk.write_file_atomically

    def unflushed(self: Any, path: str, data: bytes, *, flush: bool = True) -> None:
        write(self, path, data, flush=flush and not path.endswith("quorum-state"))

    with patch.object(SimDisk, "write_file_atomically", unflushed):
        yield


def control_at_once() -> Iterator[None]:
    """A new controller acts on the image it has, before it knows that all of the log is in it."""
    from moldau.broker.quorum.quorum import MetadataQuorum

    changed = MetadataQuorum._on_leader_changed

    def at_once(self: Any, leader_id: int | None, epoch: int) -> None:
        changed(self, leader_id, epoch)
        if leader_id == self._me.id and not self.is_leader:
            self._images.forget_uncommitted()
            self.is_leader = True
            self._tell(leader_id, epoch)

    with patch.object(MetadataQuorum, "_on_leader_changed", at_once):
        yield


def append_what_is_outdated() -> Iterator[None]:
    """What a thread decided is appended, whatever came between."""
    from moldau.broker.quorum.quorum import MetadataQuorum

    append = MetadataQuorum.append_prepared

    def unasked(self: Any, prepared: Any) -> Any:
        return append(self, prepared._replace(ground=self.ground()))

    with patch.object(MetadataQuorum, "append_prepared", unasked):
        yield


def take_any_disk_for_the_voter() -> Iterator[None]:
    """A voter is known by its node id alone: with an empty disk it votes on, as if it remembered."""
    from moldau.raft.replica import Raft
    from moldau.raft.voters import VoterSet

    with (
        patch.object(Raft, "_is_me", lambda self, key: key.id in (-1, self.me.id)),
        patch.object(VoterSet, "__contains__", lambda self, key: key.id in self._by_id),
    ):
        yield


def change_voters_uncommitted() -> Iterator[None]:
    """The next change of the voters begins before the last one is committed."""
    from moldau.broker.quorum.voters import VoterChanges
    from moldau.raft import membership
    from moldau.raft.leader import Leader
    from moldau.wire import ErrorCode

    def changeable(raft: Any) -> Any:
        if not isinstance(raft.role, Leader):
            raise membership.VoterChangeRefused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "")
        return raft.voters

    async def change(self: Any, decide: Callable[[], Any], *_: Any) -> None:
        self._quorum.append_voters(decide())

    with (
        patch.object(membership, "changeable", changeable),
        patch("moldau.broker.quorum.voters.changeable", changeable),
        patch.object(VoterChanges, "_change", change),
    ):
        yield


# -- coordinators


def answer_before_commit() -> Iterator[None]:
    """A coordinator answers when its records are in its own log."""

    def at_once(
        _broker: Any, _partition: Any, _end_offset: int, _timeout_ms: int, then: Callable[[bool], None]
    ) -> None:
        then(True)

    with (
        patch("moldau.broker.coordinators.groups.when_committed", at_once),
        patch("moldau.broker.coordinators.transactions.when_committed", at_once),
    ):
        yield


def commit_as_anybody() -> Iterator[None]:
    """Offsets are taken from whoever sends them, also from a member that was replaced long ago."""
    with patch("moldau.groups.offset_requests._check_committer", lambda *_: None):
        yield


def give_before_taken() -> Iterator[None]:
    """A member gets its partitions at once, also those another one has not given up (KIP-848)."""
    from moldau.groups import consumer_steps
    from moldau.groups.reconcile import Goal

    def goal(*args: Any) -> Goal:
        return replace(Goal(*args), owners={})

    with patch.object(consumer_steps, "Goal", goal):
        yield


def never_end_sessions() -> Iterator[None]:
    """Who vanishes is a member for ever."""
    from moldau.groups import consumer_heartbeat

    with patch.object(consumer_heartbeat, "restart_session", lambda *_: None):
        yield


# -- housekeeping


def compact_beyond_the_last_stable_offset() -> Iterator[None]:
    """Values of open transactions cost their keys the committed ones (A1)."""
    from moldau.log.cleaner import cleanable

    def up_to_active(log: Any, *_: Any) -> int:
        return int(log.active_segment.base_offset)

    with patch.object(cleanable, "_first_uncleanable", up_to_active):
        yield


def inherit_checkpoints() -> Iterator[None]:
    """A topic that is made again begins with what the checkpoints say of the former one (A2)."""
    from moldau.log.dirs.log_dir import LogDir

    with patch.object(LogDir, "forget", lambda *_: None):
        yield


def make_replicas_anew() -> Iterator[None]:
    """What lay in a dir that is away is made again, empty, in another (A12)."""
    from moldau.broker.replicas.manager import ReplicaManager
    from moldau.log.errors import StorageError

    dir_of = ReplicaManager._dir_of

    def anywhere(self: Any, *args: Any) -> str | None:
        try:
            return dir_of(self, *args)
        except StorageError:
            return None

    def any_epoch(logs: Any, _: Any) -> int:
        return max((each.broker_epoch or -1 for each in logs.online_dirs), default=-1)

    with (
        patch.object(ReplicaManager, "_dir_of", anywhere),
        patch("moldau.broker.node.node.clean_shutdown_epoch", any_epoch),
    ):
        yield
