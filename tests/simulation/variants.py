"""Nodes broken on purpose. A simulator that does not notice is worth nothing: each variant must be caught, and how soon
is part of the record (`docs/simulation.md`).

Each is one line or two that somebody might well have written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from tests.simulation.scenario import Plan

_WITHOUT_GROUPS = Plan(members=0, trouble_s=10.0)
_PLAIN = Plan(members=0, transactional_writers=0, trouble_s=10.0)
_POWER = Plan(
    members=0,
    transactional_writers=0,
    writers=1,
    partitions=1,
    readers=False,
    trouble_s=25.0,
    kinds=("power", "crash", "isolate", "topic change"),
)
_QUORUM = Plan(
    members=0,
    transactional_writers=0,
    writers=1,
    partitions=1,
    readers=False,
    trouble_s=25.0,
    kinds=("crash", "isolate", "pair cut", "one-way cut", "slow link", "topic change", "topic change"),
)


@dataclass(slots=True, frozen=True)
class Variant:
    """What is wrong, how to make it so, the world in which it shows, and how many seeds it takes at most."""

    name: str
    break_it: Callable[[], Iterator[None]]
    seeds_max: int
    plan: Plan = _WITHOUT_GROUPS

    @contextmanager
    def broken(self) -> Iterator[None]:
        yield from self.break_it()


def _ack_before_isr() -> Iterator[None]:
    from moldau.replication.leader import LeaderState

    def high_watermark(self: Any, log_end_offset: int, *_: Any) -> int:
        return log_end_offset

    with patch.object(LeaderState, "high_watermark", high_watermark):
        yield


def _truncate_by_high_watermark() -> Iterator[None]:
    """As Kafka did before KIP-101: a follower goes back to its high watermark, and trusts the rest."""
    from moldau.broker.handlers import fetch
    from moldau.broker.partition import Partition

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


def _never_diverge() -> Iterator[None]:
    """The leader does not say where the follower's log left its own."""
    from moldau.broker.handlers import fetch

    with patch.object(fetch, "_diverging_epoch", lambda *_: None):
        yield


def _vote_twice() -> Iterator[None]:
    from moldau.raft import roles

    def grants(self: Any, vote: Any, *, up_to_date: bool) -> bool:
        return up_to_date

    with patch.object(roles.Unattached, "grants", grants), patch.object(roles.Candidate, "grants", grants):
        yield


def _vote_for_anybody() -> Iterator[None]:
    """Votes go to candidates with a shorter log too."""
    from moldau.raft import roles

    originals = {role: role.grants for role in (roles.Unattached, roles.Follower, roles.Prospective, roles.Candidate)}

    def patched(role: Any) -> Callable[..., bool]:
        def grants(self: Any, vote: Any, *, up_to_date: bool) -> bool:
            return bool(originals[role](self, vote, up_to_date=True))

        return grants

    patches = [patch.object(role, "grants", patched(role)) for role in originals]
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in patches:
            each.stop()


def _forget_votes() -> Iterator[None]:
    from moldau.broker.quorum_log import QuorumLog

    with patch.object(QuorumLog, "write_election_state", lambda *_: None):
        yield


def _skip_metadata_flush() -> Iterator[None]:
    from moldau.broker.quorum_log import QuorumLog

    with patch.object(QuorumLog, "flushed_offset", property(lambda self: self.end_offset)):
        yield


def _read_beyond_high_watermark() -> Iterator[None]:
    from moldau.broker.handlers import fetch

    with patch.object(fetch, "_CONSUMER", -99):
        yield


def _any_replica_may_lead() -> Iterator[None]:
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


def _shrink_isr_unasked() -> Iterator[None]:
    """The leader stops waiting for a slow follower before the controller has agreed."""
    from moldau.replication.leader import LeaderState

    propose = LeaderState._propose

    def at_once(self: Any, isr: frozenset[int]) -> Any:
        change = propose(self, isr)
        self.isr = isr
        return change

    with patch.object(LeaderState, "_propose", at_once):
        yield


def _answer_before_commit() -> Iterator[None]:
    """Coordinators answer when their records are written, not when they are committed."""
    from moldau.broker import coordinator_shards

    def when_committed(broker: Any, partition: Any, end_offset: int, then: Callable[[bool], None], *_: Any) -> None:
        then(True)

    from moldau.broker import group_coordinator, transaction_coordinator

    with (
        patch.object(coordinator_shards, "when_committed", when_committed),
        patch.object(group_coordinator, "when_committed", when_committed, create=True),
        patch.object(transaction_coordinator, "when_committed", when_committed, create=True),
    ):
        yield


def _lose_a_marker() -> Iterator[None]:
    """The last partition of a transaction never hears how it ended, and the coordinator believes it did."""
    from moldau.broker.txn_markers import MarkerSender

    write = MarkerSender.write

    def without_the_last(self: Any, marker: Any, places: list[Any], then: Callable[[Any], None]) -> None:
        from moldau.wire import ErrorCode

        lost = places[-1:] if len(places) > 1 else []

        def tell(results: Any) -> None:
            then({**dict(results), **dict.fromkeys(lost, ErrorCode.NONE)})

        write(self, marker, [place for place in places if place not in lost], tell)

    with patch.object(MarkerSender, "write", without_the_last):
        yield


VARIANTS = [
    Variant("acknowledge before the in-sync replicas have it", _ack_before_isr, 10, _PLAIN),
    Variant("truncate by high watermark", _truncate_by_high_watermark, 40, _PLAIN),
    Variant("do not say where logs diverge", _never_diverge, 40, _PLAIN),
    Variant("vote twice", _vote_twice, 40, _QUORUM),
    Variant("vote for a shorter log", _vote_for_anybody, 40, _QUORUM),
    Variant("forget votes over a restart", _forget_votes, 100, _POWER),
    Variant("skip the flush of the metadata", _skip_metadata_flush, 100, _POWER),
    Variant("serve beyond the high watermark", _read_beyond_high_watermark, 10, _PLAIN),
    Variant("let any replica lead", _any_replica_may_lead, 20, _PLAIN),
    Variant("shrink the ISR unasked", _shrink_isr_unasked, 40, _PLAIN),
    Variant("let coordinators answer before commit", _answer_before_commit, 40),
    Variant("lose a transaction marker", _lose_a_marker, 10),
]
