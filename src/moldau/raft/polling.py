"""What each role does when time passes: wait, ask for votes, fetch, remind, give up.

A role looks at the clock, changes into another or sends what is to be sent next, and leaves in `raft.deadline_ms` when
to look again. Everything here may be repeated at any time: what is under way is not sent twice (`links`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from moldau.raft.leader import Leader
from moldau.raft.messages import BeginQuorumEpoch, EndQuorumEpoch, Fetch, FetchSnapshot, Request, Vote
from moldau.raft.roles import NEVER, Ballots, Candidate, Follower, Outcome, Prospective, Resigned, Unattached

if TYPE_CHECKING:
    from moldau.raft.log_facts import LogFacts
    from moldau.raft.settings import RaftSettings
    from moldau.raft.voters import Address, ReplicaKey, VoterHistory, VoterSet
    from moldau.seams.randomness import Random

    class Replica(Protocol):
        """What a role may know and do."""

        deadline_ms: float  # when to look again

        @property
        def me(self) -> ReplicaKey: ...
        @property
        def role(self) -> Unattached | Follower | Prospective | Candidate | Leader | Resigned: ...
        @property
        def epoch(self) -> int: ...
        @property
        def settings(self) -> RaftSettings: ...
        @property
        def random(self) -> Random: ...
        @property
        def log(self) -> LogFacts: ...
        @property
        def high_watermark(self) -> int | None: ...
        @property
        def leader_high_watermark(self) -> int: ...
        @property
        def history(self) -> VoterHistory: ...
        @property
        def voters(self) -> VoterSet: ...
        @property
        def is_voter(self) -> bool: ...
        @property
        def may_campaign(self) -> bool: ...
        @property
        def bootstrap(self) -> tuple[Address, ...]: ...
        @property
        def endpoints(self) -> tuple[tuple[str, Address], ...]: ...

        def address_of(self, node_id: int) -> Address | None: ...
        def wake_at(self, at_ms: float) -> None: ...
        def send(self, now_ms: float, node_id: int, address: Address, request: Request) -> bool: ...
        def raise_high_watermark(self, offset: int) -> None: ...

        def unattach(self, now_ms: float, epoch: int, leader_id: int | None = None, *, wait: bool = False) -> None: ...
        def follow(self, now_ms: float, epoch: int, leader_id: int, address: Address) -> None: ...
        def become_prospective(self, now_ms: float) -> None: ...
        def become_candidate(self, now_ms: float) -> None: ...
        def become_leader(self, now_ms: float, ballots: Ballots) -> None: ...
        def resign(self, now_ms: float) -> None: ...


_ASK_INTERVAL_MS = 50.0


class Polling:
    """Of one replica. Remembers only whom it asked last."""

    __slots__ = ("_ask_not_before_ms", "_next_asked", "_raft")

    def __init__(self, raft: Replica) -> None:
        self._raft = raft
        self._next_asked = 0
        self._ask_not_before_ms = 0.0

    def poll(self, now_ms: float) -> None:
        """For the role of this moment; the caller comes again if that changed."""
        match self._raft.role:
            case Unattached() as role:
                self._unattached(role, now_ms)
            case Follower() as role:
                self._follower(role, now_ms)
            case Prospective() as role:
                self._prospective(role, now_ms)
            case Candidate() as role:
                self._candidate(role, now_ms)
            case Leader() as role:
                self._leader(role, now_ms)
            case Resigned() as role:
                self._resigned(role, now_ms)

    def _unattached(self, role: Unattached, now_ms: float) -> None:
        raft = self._raft
        if not raft.may_campaign:
            role.deadline_ms = raft.deadline_ms = NEVER
        elif raft.voters.is_only(raft.me):
            raft.become_candidate(now_ms)
            return
        elif now_ms >= role.deadline_ms:
            raft.become_prospective(now_ms)
            return
        self._ask_around(role, now_ms)

    def _ask_around(self, role: Unattached, now_ms: float) -> None:
        """Fetch from anybody, to be told who leads."""
        raft = self._raft
        request = self._fetch_request()
        if request is None:
            return
        if now_ms < self._ask_not_before_ms:
            raft.wake_at(self._ask_not_before_ms)
            return
        choices = [(each.key.id, each.address) for each in raft.voters if each.key.id != raft.me.id]
        if role.leader_id is not None and raft.voters.get(role.leader_id) is None:
            choices.append((role.leader_id, raft.address_of(role.leader_id)))
        mine = {address for _, address in raft.endpoints}
        # As in Kafka, servers whose id is not known have negative ones.
        choices += [(-2 - index, each) for index, each in enumerate(raft.bootstrap) if each not in mine]
        for _ in choices:
            node_id, address = choices[self._next_asked % len(choices)]
            self._next_asked += 1
            if address is not None and raft.send(now_ms, node_id, address, request):
                self._ask_not_before_ms = now_ms + _ASK_INTERVAL_MS
                return

    def _follower(self, role: Follower, now_ms: float) -> None:
        raft = self._raft
        raft.raise_high_watermark(min(raft.leader_high_watermark, raft.log.end_offset))
        if now_ms >= role.deadline_ms:
            if raft.voters.is_only(raft.me):
                raft.become_candidate(now_ms)
            elif raft.may_campaign:
                raft.become_prospective(now_ms)
            else:
                raft.unattach(now_ms, role.epoch, role.leader_id)
                self._next_asked += 1
            return
        request: Request | None
        if role.snapshot is not None:
            request = FetchSnapshot(raft.me, role.epoch, role.snapshot, role.snapshot_position)
        else:
            request = self._fetch_request()
        if request is not None:
            raft.send(now_ms, role.leader_id, role.address, request)

    def _fetch_request(self) -> Fetch | None:
        """None while something is not flushed: whoever is asked may lead, and takes a fetch for the word that all
        before its offset is on disk. The end of the flush is a reason to poll again."""
        raft = self._raft
        if raft.log.flushed_offset < raft.log.end_offset:
            return None
        known = -1 if raft.high_watermark is None else raft.high_watermark
        return Fetch(raft.me, raft.epoch, raft.log.end_offset, raft.log.last_epoch, known)

    def _prospective(self, role: Prospective, now_ms: float) -> None:
        raft = self._raft
        outcome = role.ballots.outcome
        if not raft.may_campaign:
            raft.unattach(now_ms, role.epoch, role.leader_id, wait=True)
        elif outcome is Outcome.WON:
            raft.become_candidate(now_ms)
        elif outcome is Outcome.LOST or now_ms >= role.deadline_ms:
            # Perhaps only we cannot reach the leader, perhaps the others have not noticed yet: back to waiting.
            if role.leader_id is not None and role.address is not None:
                raft.follow(now_ms, role.epoch, role.leader_id, role.address)
            else:
                raft.unattach(now_ms, role.epoch, role.leader_id, wait=True)
        else:
            self._ask_for_votes(now_ms, role.ballots, pre_vote=True)

    def _candidate(self, role: Candidate, now_ms: float) -> None:
        raft = self._raft
        if not raft.may_campaign:
            raft.unattach(now_ms, role.epoch, wait=True)
        elif role.ballots.outcome is Outcome.WON:
            raft.become_leader(now_ms, role.ballots)
        elif now_ms >= role.deadline_ms:
            raft.become_prospective(now_ms)
        elif role.is_backing_off:
            return
        elif role.ballots.outcome is Outcome.LOST:
            role.is_backing_off = True
            pause_ms = raft.random.fraction() * raft.settings.election_backoff_max_ms
            role.deadline_ms = raft.deadline_ms = now_ms + pause_ms
        else:
            self._ask_for_votes(now_ms, role.ballots, pre_vote=False)

    def _ask_for_votes(self, now_ms: float, ballots: Ballots, *, pre_vote: bool) -> None:
        raft = self._raft
        for key in ballots.unanswered():
            address = raft.address_of(key.id)
            if address is not None:
                request = Vote(key, raft.me, raft.epoch, raft.log.last_epoch, raft.log.end_offset, pre_vote)
                raft.send(now_ms, key.id, address, request)

    def _leader(self, role: Leader, now_ms: float) -> None:
        raft = self._raft
        if role.update_high_watermark(raft.log.flushed_offset):
            assert role.high_watermark is not None
            raft.raise_high_watermark(role.high_watermark)
        # Removed, and the removal is committed: the others go on without this node.
        gone = not raft.is_voter and (role.high_watermark or 0) > raft.history.latest_offset
        if now_ms >= role.check_quorum_deadline_ms or gone:
            raft.resign(now_ms)
            return
        if now_ms >= role.begin_epoch_due_ms:
            within_ms = raft.settings.begin_epoch_interval_ms
            role.begin_epoch_due_ms = now_ms + within_ms
            for key in role.silent_voters(now_ms, within_ms):
                address = raft.address_of(key.id)
                if address is not None:
                    raft.send(now_ms, key.id, address, BeginQuorumEpoch(key, raft.me.id, raft.epoch, raft.endpoints))
        if not role.voters.is_only(raft.me):
            raft.wake_at(role.begin_epoch_due_ms)

    def _resigned(self, role: Resigned, now_ms: float) -> None:
        raft = self._raft
        if raft.voters.is_only(raft.me):
            raft.become_candidate(now_ms)
            return
        if now_ms >= role.deadline_ms:
            # This epoch had its leader; the next one is open.
            raft.unattach(now_ms, role.epoch + 1)
            return
        for key in role.candidates:
            address = raft.address_of(key.id)
            if key.id not in role.told and address is not None:
                request = EndQuorumEpoch(raft.me.id, role.epoch, role.candidates, raft.endpoints)
                raft.send(now_ms, key.id, address, request)
