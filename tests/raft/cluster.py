"""A quorum in memory: virtual time, a network that loses, delays and cuts, disks that forget what was not flushed.

What must always hold is checked whenever anything happens:
- election safety: one leader per epoch (Raft, figure 3);
- leader completeness: a new leader has everything that was committed (figure 3, section 5.4.3);
- state machine safety: what is committed at an offset is the same everywhere, for ever.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from moldau.raft import (
    Address,
    Append,
    AppendLeaderChange,
    BeginQuorumEpoch,
    Effect,
    ElectionState,
    EndQuorumEpoch,
    Fetch,
    Fetched,
    FetchedSnapshot,
    FetchSnapshot,
    HighWatermarkChanged,
    InstallSnapshot,
    LeaderChanged,
    Persist,
    Raft,
    RaftSettings,
    ReplicaKey,
    Send,
    SnapshotChunk,
    SnapshotId,
    Truncate,
    Vote,
    Voter,
    VoterHistory,
    VoterSet,
)
from moldau.raft.leader import Leader
from moldau.raft.membership import VoterChangeRefused, with_added, without
from moldau.raft.messages import Answer, Request
from moldau.raft.voters import static_voters
from moldau.seams.randomness import SeededRandom
from moldau.wire import ErrorCode

LEADER_CHANGE = "leader-change"
_LONG_POLL_MS = 40.0


@dataclass(slots=True, frozen=True)
class Entry:
    epoch: int
    value: object


@dataclass
class MemoryLog:
    """Entries from `start` on; those before `flushed` survive a crash, of the others some do."""

    entries: list[Entry] = field(default_factory=list)
    start: int = 0
    flushed: int = 0
    snapshots: list[tuple[SnapshotId, tuple[Entry, ...]]] = field(default_factory=list)

    @property
    def start_offset(self) -> int:
        return self.start

    @property
    def end_offset(self) -> int:
        return self.start + len(self.entries)

    @property
    def flushed_offset(self) -> int:
        return self.flushed

    @property
    def last_epoch(self) -> int:
        if self.entries:
            return self.entries[-1].epoch
        return self.snapshots[-1][0].epoch if self.snapshots and self.start else 0

    @property
    def earliest_snapshot(self) -> SnapshotId | None:
        return self.snapshots[0][0] if self.snapshots else None

    @property
    def latest_snapshot(self) -> SnapshotId | None:
        return self.snapshots[-1][0] if self.snapshots else None

    def end_offset_for(self, epoch: int) -> tuple[int, int]:
        found, end = (self.snapshots[0][0].epoch if self.snapshots and self.start else 0), self.start
        for offset, entry in enumerate(self.entries, self.start):
            if entry.epoch > epoch:
                break
            found, end = entry.epoch, offset + 1
        return found, end

    def get(self, offset: int) -> Entry:
        return self.entries[offset - self.start]

    def whole(self) -> list[Entry]:
        """Everything from offset 0 on, through the snapshot where the log starts after one."""
        if not self.start:
            return list(self.entries)
        state = next(state for snapshot, state in self.snapshots if snapshot.end_offset == self.start)
        return [*state, *self.entries]

    def take_snapshot(self, offset: int) -> None:
        state = tuple(self.whole()[:offset])
        self.snapshots.append((SnapshotId(offset, state[-1].epoch), state))

    def cut_before(self, offset: int) -> None:
        self.entries = self.entries[offset - self.start :]
        self.start = offset
        self.snapshots = [each for each in self.snapshots if each[0].end_offset >= offset]


class Node:
    def __init__(self, cluster: Cluster, node_id: int, voters: VoterSet, *, seed: int) -> None:
        self.cluster = cluster
        self.id = node_id
        self.static = voters
        self.log = MemoryLog()
        self.disk_state = ElectionState()
        self.random = SeededRandom(seed)
        self.is_up = False
        self.flush_ms = 1.0
        self.raft: Raft
        self.history: VoterHistory
        self.snapshot_parts: tuple[Entry, ...] = ()
        self.life = 0
        self._flushing = False
        self._timer_at = float("inf")

    def start(self) -> None:
        self.is_up = True
        self.life += 1
        self._flushing = False
        self._timer_at = float("inf")
        self.history = history = VoterHistory(self.static)
        history.add_kraft_version(-1, 1)
        self._note_voters(self.log.whole(), 0)
        me = ReplicaKey(self.id)
        endpoints = (("CONTROLLER", Address(f"n{self.id}", self.id)),)
        settings = self.cluster.settings
        self.raft = Raft(me, self.log, history, settings, self.random, endpoints=endpoints)
        self.raft.start(self.cluster.now_ms, self.disk_state)
        self.carry_out_effects()

    def crash(self) -> None:
        """What was not flushed is kept up to an arbitrary point."""
        self.is_up = False
        keep = self.cluster.chance.randint(min(self.log.flushed, self.log.end_offset), self.log.end_offset)
        self.log.entries = self.log.entries[: keep - self.log.start]
        self.log.flushed = keep

    def _note_voters(self, entries: list[Entry], first_offset: int) -> None:
        found = False
        for offset, entry in enumerate(entries, first_offset):
            if isinstance(entry.value, VoterSet):
                self.history.add_voters(offset, entry.value)
                found = True
        if found and first_offset:
            self.raft.voters_changed(self.cluster.now_ms)

    # -- the driver: what broker.quorum does with a real disk and network

    def carry_out_effects(self) -> None:
        while True:
            self.raft.poll(self.cluster.now_ms)
            effects = self.raft.take_effects()
            if not effects:
                break
            for effect in effects:
                self._run(effect)
        self._flush_later()
        at_ms = self.raft.deadline_ms
        if at_ms != self._timer_at:
            self._timer_at = at_ms
            if at_ms < float("inf"):
                self._later(at_ms - self.cluster.now_ms, lambda: self._on_timer(at_ms))

    def _later(self, delay_ms: float, action: Callable[[], None]) -> None:
        life = self.life

        def run() -> None:
            if self.is_up and self.life == life:
                action()

        self.cluster.later(delay_ms, run)

    def _on_timer(self, at_ms: float) -> None:
        if at_ms == self._timer_at:  # not replaced by another one meanwhile
            self._timer_at = float("inf")
            self.carry_out_effects()

    def _flush_later(self) -> None:
        if self._flushing or self.log.flushed >= self.log.end_offset:
            return
        self._flushing = True
        end = self.log.end_offset

        def done() -> None:
            self._flushing = False
            self.log.flushed = max(self.log.flushed, min(end, self.log.end_offset))
            self.carry_out_effects()

        self._later(self.flush_ms, done)

    def _run(self, effect: Effect) -> None:
        cluster, log = self.cluster, self.log
        match effect:
            case Persist(state):
                assert state.epoch >= self.disk_state.epoch
                if state.epoch == self.disk_state.epoch and self.disk_state.voted is not None:
                    assert state.voted == self.disk_state.voted, "two votes in one epoch"
                self.disk_state = state
            case Send():
                cluster.send(self, effect)
            case AppendLeaderChange(epoch, _, granting):
                cluster.on_leader(self, epoch)
                assert len(granting) >= self.raft.voters.majority
                log.entries.append(Entry(epoch, LEADER_CHANGE))
            case Append(records, _):
                assert isinstance(records, _Records)
                log.entries += records.entries
                self._note_voters(records.entries, log.end_offset - len(records.entries))
            case Truncate(offset):
                self.history.truncate_to(offset)
                self.raft.voters_changed(cluster.now_ms)
                assert self.raft.high_watermark is None or offset >= self.raft.high_watermark
                log.entries = log.entries[: offset - log.start]
                log.flushed = min(log.flushed, offset)
            case HighWatermarkChanged(offset):
                cluster.on_committed(self, offset)
            case SnapshotChunk(_, _, data):
                assert isinstance(data, _Records)
                self.snapshot_parts = tuple(data.entries)
            case InstallSnapshot(snapshot):
                log.snapshots = [(snapshot, self.snapshot_parts)]
                log.entries, log.start, log.flushed = [], snapshot.end_offset, snapshot.end_offset
                self.history.truncate_to(0)
                self._note_voters(log.whole(), 0)
                self.raft.voters_changed(cluster.now_ms)
                self.raft.on_installed(snapshot)
            case LeaderChanged():
                pass

    def append(self, value: object) -> bool:
        """As the leader; whether it is one."""
        if not self.is_up or not isinstance(self.raft.role, Leader):
            return False
        self.log.entries.append(Entry(self.raft.epoch, value))
        if isinstance(value, VoterSet):
            self._note_voters([self.log.entries[-1]], self.log.end_offset - 1)
        self.carry_out_effects()
        return True

    def add_voter(self, node_id: int) -> bool:
        """As the leader; whether it may."""
        voter = Voter(ReplicaKey(node_id), (("CONTROLLER", Address(f"n{node_id}", node_id)),))
        return self._change_voters(lambda: with_added(self.raft, self.cluster.now_ms, voter))

    def remove_voter(self, node_id: int) -> bool:
        return self._change_voters(lambda: without(self.raft, ReplicaKey(node_id)))

    def _change_voters(self, decide: Callable[[], VoterSet]) -> bool:
        try:
            return self.is_up and self.append(decide())
        except VoterChangeRefused:
            return False

    def answer(self, request: Request) -> Answer:
        raft, now_ms = self.raft, self.cluster.now_ms
        answer: Answer
        match request:
            case Vote():
                answer = raft.on_vote(now_ms, request)
            case BeginQuorumEpoch():
                answer = raft.on_begin_epoch(now_ms, request)
            case EndQuorumEpoch():
                answer = raft.on_end_epoch(now_ms, request)
            case Fetch():
                answer = raft.on_fetch(now_ms, request)
                if answer.error is ErrorCode.NONE and answer.diverging is None and answer.snapshot is None:
                    entries = self.log.entries[request.offset - self.log.start :][: self.cluster.fetch_max]
                    answer = type(answer)(
                        answer.error, answer.leader_id, answer.epoch, answer.high_watermark, records=_Records(entries)
                    )
            case FetchSnapshot():
                answer = self._answer_snapshot(request)
        self.carry_out_effects()
        return answer

    def _answer_snapshot(self, request: FetchSnapshot) -> FetchedSnapshot:
        raft = self.raft
        error = raft.leader_only(request.epoch)
        state = dict(self.log.snapshots).get(request.snapshot)
        if error is ErrorCode.NONE and state is None:
            error = ErrorCode.SNAPSHOT_NOT_FOUND
        raft.heard_from(self.cluster.now_ms, request.replica)
        data = _Records(list(state or ()))
        return FetchedSnapshot(error, raft.leader_id, raft.epoch, request.snapshot, len(data), 0, data)


class _Records(bytes):
    """Entries that look like bytes to Raft, which only asks whether there are any."""

    entries: list[Entry]

    def __new__(cls, entries: list[Entry]) -> _Records:
        self = super().__new__(cls, len(entries))
        self.entries = entries
        return self


class Cluster:
    def __init__(self, size: int, seed: int = 0, *, observers: int = 0, settings: RaftSettings | None = None) -> None:
        self.chance = random.Random(seed)
        self.settings = settings or RaftSettings()
        self.now_ms = 0.0
        self.fetch_max = 50
        self.lose = 0.0
        self.delay_ms = (0.5, 2.0)
        self.cut: set[tuple[int, int]] = set()  # (from, to)
        self.leaders: dict[int, int] = {}
        self.committed: list[Entry] = []
        self.voter_changes = 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        voters = static_voters([(node_id, f"n{node_id}", node_id) for node_id in range(size)], "CONTROLLER")
        self.nodes = [Node(self, node_id, voters, seed=seed * 100 + node_id) for node_id in range(size + observers)]
        for node in self.nodes:
            node.start()

    # -- time

    def later(self, delay_ms: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.now_ms + max(0.0, delay_ms), self._count, action))

    def run(self, for_ms: float) -> None:
        end_ms = self.now_ms + for_ms
        while self._queue and self._queue[0][0] <= end_ms:
            self.now_ms, _, action = heapq.heappop(self._queue)
            action()
        self.now_ms = end_ms

    def run_until(self, condition: Callable[[], bool], within_ms: float = 30_000) -> None:
        end_ms = self.now_ms + within_ms
        while not condition():
            assert self._queue, "nothing will ever happen again"
            assert self._queue[0][0] <= end_ms, f"not within {within_ms} ms: {[n.raft.role for n in self.nodes]}"
            self.now_ms, _, action = heapq.heappop(self._queue)
            action()

    # -- network

    def send(self, sender: Node, send: Send) -> None:
        target = self.nodes[send.address.port]
        raft = sender.raft

        def fail() -> None:
            if sender.is_up and sender.raft is raft:
                raft.on_failure(self.now_ms, send)
                sender.carry_out_effects()

        def arrive() -> None:
            if not target.is_up or self._is_lost(sender.id, target.id):
                self.later(0 if not target.is_up else 2000, fail)
                return
            answer = target.answer(send.request)
            if isinstance(answer, Fetched) and answer.error is ErrorCode.NONE and not answer.records:
                self.later(_LONG_POLL_MS, again)
            else:
                self.later(self._delay_ms(), lambda: back(answer))

        def again() -> None:
            """A fetch that found nothing waits for something, as the real one does."""
            if target.is_up:
                answer = target.answer(send.request)
                self.later(self._delay_ms(), lambda: back(answer))
            else:
                fail()

        def back(answer: Answer) -> None:
            if self._is_lost(target.id, sender.id):
                self.later(2000, fail)
            elif sender.is_up and sender.raft is raft:
                raft.on_answer(self.now_ms, send, answer)
                sender.carry_out_effects()

        self.later(self._delay_ms(), arrive)

    def _is_lost(self, sender: int, target: int) -> bool:
        return (sender, target) in self.cut or self.chance.random() < self.lose

    def _delay_ms(self) -> float:
        return self.chance.uniform(*self.delay_ms)

    def isolate(self, node_id: int) -> None:
        for other in self.nodes:
            if other.id != node_id:
                self.cut |= {(node_id, other.id), (other.id, node_id)}

    def heal(self) -> None:
        self.cut.clear()
        self.lose = 0.0
        self.delay_ms = (0.5, 2.0)

    # -- what must always hold

    def on_leader(self, node: Node, epoch: int) -> None:
        assert self.leaders.setdefault(epoch, node.id) == node.id, f"two leaders in epoch {epoch}"
        assert node.log.whole()[: len(self.committed)] == self.committed, f"leader {node.id} lacks committed entries"

    def on_committed(self, node: Node, offset: int) -> None:
        entries = node.log.whole()[:offset]
        assert len(entries) == offset, "the high watermark is beyond the log"
        shared = min(offset, len(self.committed))
        assert entries[:shared] == self.committed[:shared], f"node {node.id} commits something else"
        self.committed += entries[shared:]

    def check_log_matching(self) -> None:
        """Figure 3: two logs with the same epoch at an offset are equal up to there."""
        for one in self.nodes:
            for other in self.nodes:
                mine, theirs = one.log.whole(), other.log.whole()
                same = [at for at, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a.epoch == b.epoch]
                if same:
                    assert mine[: same[-1] + 1] == theirs[: same[-1] + 1]

    # -- questions

    @property
    def leader(self) -> Node | None:
        leading = [node for node in self.nodes if node.is_up and isinstance(node.raft.role, Leader)]
        return max(leading, key=lambda node: node.raft.epoch, default=None)

    def has_active_leader(self) -> bool:
        leader = self.leader
        if leader is None or not isinstance(leader.raft.role, Leader):
            return False
        return leader.raft.role.high_watermark is not None and leader.raft.role.high_watermark > (
            leader.raft.role.epoch_start_offset
        )

    def elect(self) -> Node:
        self.run_until(self.has_active_leader)
        leader = self.leader
        assert leader is not None
        return leader

    def is_caught_up(self) -> bool:
        leader = self.leader
        return leader is not None and all(
            node.log.end_offset == leader.log.end_offset and node.raft.high_watermark == leader.log.end_offset
            for node in self.nodes
            if node.is_up
        )
