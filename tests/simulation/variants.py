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

from tests.simulation.scenario import Plan, play

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
    """What is wrong, how to make it so, and within how many seeds from 0 on it shows in which world."""

    name: str
    break_it: Callable[[], Iterator[None]]
    seeds_max: int
    plan: Plan

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
    Variant("acknowledge before the in-sync replicas have it", _ack_before_isr, 12, _PLAIN),
    Variant("truncate by high watermark", _truncate_by_high_watermark, 60, _PLAIN),
    Variant("do not say where logs diverge", _never_diverge, 12, _PLAIN),
    Variant("vote for a shorter log", _vote_for_anybody, 60, _QUORUM),
    Variant("forget votes over a restart", _forget_votes, 150, _POWER),
    Variant("skip the flush of the metadata", _skip_metadata_flush, 150, _POWER),
    Variant("serve beyond the high watermark", _read_beyond_high_watermark, 5, _PLAIN),
    Variant("let any replica lead", _any_replica_may_lead, 100, _PLAIN),
    Variant("lose a transaction marker", _lose_a_marker, 12, _WITHOUT_GROUPS),
]


def seeds_until_noticed(variant: Variant) -> int | None:
    """How many seeds it takes, or None if more than stated."""
    with variant.broken():
        for seed in range(variant.seeds_max):
            if play(seed, variant.plan).violations:
                return seed + 1
    return None
