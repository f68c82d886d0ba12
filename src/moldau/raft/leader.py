"""The leader's view of the others: how far each has fetched, what is committed, and whether a majority still listens.

Invariants
- The high watermark counts a majority of the voters, and moves only when something of this leader's own epoch is among
  it (Raft, section 5.4.2). It never moves back.
- The leader counts itself only with what is on its disk.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from moldau.raft.messages import Vote
from moldau.raft.roles import NEVER
from moldau.raft.voters import ReplicaKey, VoterSet

OBSERVER_SESSION_MS = 300_000
_OBSERVERS_MAX = 10_000
UNKNOWN_OFFSET = -1


@dataclass(slots=True)
class Progress:
    """One replica, as its fetches show it."""

    key: ReplicaKey
    end_offset: int = UNKNOWN_OFFSET
    last_fetch_ms: float = -1.0
    last_caught_up_ms: float = -1.0
    # The leader's end at the last fetch: who has that much now was caught up then.
    leader_end_offset: int = UNKNOWN_OFFSET

    def fetched(self, now_ms: float, offset: int, leader_end_offset: int) -> None:
        if offset >= leader_end_offset:
            self.last_caught_up_ms = now_ms
        elif 0 < self.leader_end_offset <= offset:
            self.last_caught_up_ms = self.last_fetch_ms
        self.end_offset = max(self.end_offset, offset)
        self.last_fetch_ms = now_ms
        self.leader_end_offset = leader_end_offset


@dataclass(slots=True)
class Leader:
    """Appends, and counts who has what."""

    epoch: int
    me: ReplicaKey
    voters: VoterSet
    epoch_start_offset: int
    check_quorum_ms: float
    granting: tuple[ReplicaKey, ...]
    high_watermark: int | None = None
    # When to tell voters that do not fetch who leads.
    begin_epoch_due_ms: float = 0.0
    check_quorum_deadline_ms: float = NEVER
    progress: dict[ReplicaKey, Progress] = field(default_factory=dict)
    _heard: set[int] = field(default_factory=set)

    @property
    def leader_id(self) -> int:
        return self.me.id

    @property
    def voted(self) -> ReplicaKey:
        return self.me

    @property
    def deadline_ms(self) -> float:
        return self.check_quorum_deadline_ms

    def grants(self, vote: Vote, *, up_to_date: bool) -> bool:
        return False

    def set_voters(self, voters: VoterSet, now_ms: float) -> None:
        """Voters came or went; the next fetches count with the new set."""
        self.voters = voters
        self._restart_check(now_ms)

    def _restart_check(self, now_ms: float) -> None:
        self._heard.clear()
        alone = not any(each.key.id != self.me.id for each in self.voters)
        self.check_quorum_deadline_ms = NEVER if alone else now_ms + self.check_quorum_ms

    def start(self, now_ms: float) -> None:
        self._restart_check(now_ms)
        self.begin_epoch_due_ms = now_ms

    def fetched(self, key: ReplicaKey, now_ms: float, offset: int, leader_end_offset: int) -> None:
        """`key` has everything before `offset` on its disk."""
        progress = self.progress.get(key)
        if progress is None:
            self._forget_silent_observers(now_ms)
            self._forget_replaced(key)
            progress = self.progress[key] = Progress(key)
        progress.fetched(now_ms, offset, leader_end_offset)
        if key in self.voters:
            self._heard.add(key.id)
            needed = self.voters.majority - (1 if self.me in self.voters else 0)
            if len(self._heard) >= needed:
                self._restart_check(now_ms)

    def _forget_silent_observers(self, now_ms: float) -> None:
        silent = [
            key
            for key, progress in self.progress.items()
            if key not in self.voters and progress.last_fetch_ms < now_ms - OBSERVER_SESSION_MS
        ]
        for key in silent:
            del self.progress[key]
        if len(self.progress) >= _OBSERVERS_MAX:
            del self.progress[min(self.progress, key=lambda each: self.progress[each].last_fetch_ms)]

    def _forget_replaced(self, key: ReplicaKey) -> None:
        """A voter known by its id alone came back with another directory: what the former one had counts no more."""
        voter = self.voters.get(key.id)
        if voter is not None and not any(voter.key.directory_id):
            for other in [each for each in self.progress if each.id == key.id]:
                del self.progress[other]

    def progress_of(self, voter: ReplicaKey) -> Progress | None:
        """Of a voter, which may be in the set without its directory id."""
        if any(voter.directory_id):
            return self.progress.get(voter)
        return next((each for key, each in self.progress.items() if key.id == voter.id), None)

    def update_high_watermark(self, own_end_offset: int) -> bool:
        """Whether it moved."""
        ends = []
        for voter in self.voters:
            if voter.key.id == self.me.id and self.me in self.voters:
                ends.append(own_end_offset)
            else:
                progress = self.progress_of(voter.key)
                ends.append(UNKNOWN_OFFSET if progress is None else progress.end_offset)
        ends.sort(reverse=True)
        offset = ends[self.voters.majority - 1] if ends else UNKNOWN_OFFSET
        if offset <= self.epoch_start_offset or (self.high_watermark is not None and offset <= self.high_watermark):
            return False
        self.high_watermark = offset
        return True

    def silent_voters(self, now_ms: float, within_ms: float) -> list[ReplicaKey]:
        """Voters that have not fetched lately: they may not know who leads."""
        silent = []
        for voter in self.voters:
            if voter.key.id == self.me.id:
                continue
            progress = self.progress_of(voter.key)
            if progress is None or progress.last_fetch_ms < now_ms - within_ms:
                silent.append(voter.key)
        return silent

    def successors(self) -> tuple[ReplicaKey, ...]:
        """The other voters, those with the most first: who has all that is committed is among them."""

        def end_offset(key: ReplicaKey) -> int:
            progress = self.progress_of(key)
            return UNKNOWN_OFFSET if progress is None else progress.end_offset

        others = [voter.key for voter in self.voters if voter.key.id != self.me.id]
        return tuple(sorted(others, key=lambda key: (-end_offset(key), key.id)))
