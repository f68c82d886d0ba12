"""One partition on a few nodes, in memory: the pure leader and follower around a log that is a list.

The controller here does what it is told to: the tests choose who leads, who is in sync, who hears of it, and when.
How followers cut is a choice, so that the tests can show that cutting at the high watermark is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, cast

from moldau.log.epoch_cache import EpochCache
from moldau.replication.follower import (
    FollowedPartition,
    Next,
    decide,
    follower_high_watermark,
    resume_offset,
    truncation_offset,
)
from moldau.replication.leader import IsrChange, LeaderState, ReplicaRefused, Role
from moldau.seams import Disk
from moldau.wire import ErrorCode

LAG_MAX_MS = 1_000.0


class CheckFailed(AssertionError):
    """A promise of replication is broken."""


class _NoDisk:
    def write_file_atomically(self, path: str, data: bytes, *, flush: bool = True) -> None:
        """Epochs live as long as the node object does."""


class Entry(NamedTuple):
    epoch: int
    value: str


class Log:
    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.start_offset = 0
        self.flushed_offset = 0
        self.high_watermark = 0
        self.epochs = EpochCache(cast(Disk, _NoDisk()), "")

    @property
    def end_offset(self) -> int:
        return self.start_offset + len(self.entries)

    def at(self, offset: int) -> Entry:
        return self.entries[offset - self.start_offset]

    def append(self, entry: Entry) -> None:
        self.epochs.assign(entry.epoch, self.end_offset)
        self.entries.append(entry)

    def truncate(self, offset: int) -> None:
        del self.entries[max(0, offset - self.start_offset) :]
        self.epochs.truncate_from_end(offset)
        self.flushed_offset = min(self.flushed_offset, offset)
        self.high_watermark = min(self.high_watermark, offset)

    def start_over(self, offset: int) -> None:
        self.entries.clear()
        self.epochs.clear()
        self.start_offset = self.flushed_offset = self.high_watermark = offset

    def delete_before(self, offset: int) -> None:
        del self.entries[: offset - self.start_offset]
        self.start_offset = offset
        self.epochs.truncate_from_start(offset)

    def __str__(self) -> str:
        return " ".join(f"{entry.value}@{entry.epoch}" for entry in self.entries) or "nothing"


@dataclass
class Node:
    id: int
    broker_epoch: int
    log: Log = field(default_factory=Log)
    is_up: bool = True
    leader_id: int = -1
    leader_epoch: int = -1
    lead: LeaderState | None = None
    follow: FollowedPartition | None = None


class Answer(NamedTuple):
    error: ErrorCode
    high_watermark: int = -1
    start_offset: int = -1
    entries: tuple[Entry, ...] = ()
    diverging: tuple[int, int] | None = None


class Life(NamedTuple):
    """One run of a node, from its registration to its end."""

    node_id: int
    broker_epoch: int


class World:
    def __init__(self, ids: list[int], *, min_isr: int = 1, truncate_by_high_watermark: bool = False) -> None:
        self.now_ms = 0.0
        self.min_isr = min_isr
        self.truncate_by_high_watermark = truncate_by_high_watermark
        self.nodes = {each: Node(each, broker_epoch=100 + each) for each in ids}
        self.role = Role(tuple(ids), tuple(ids), 0, 0)
        self.leader_id = ids[0]
        # What acks=all producers were told is safe, and what any reader has seen: offset -> value.
        self.acked: dict[int, str] = {}
        self.seen: dict[int, str] = {}
        self.lost_by_choice = False
        self.tell(*ids)

    # -- the controller

    def elect(self, leader_id: int, isr: list[int] | None = None, *told: int, unclean: bool = False) -> None:
        if isr is None:
            isr = [each for each in self.role.isr if self.nodes[each].is_up]
        if unclean:
            isr, self.lost_by_choice = [leader_id], True
        self.role = Role(self.role.replicas, tuple(isr), self.role.leader_epoch + 1, self.role.partition_epoch + 1)
        self.leader_id = leader_id
        self.tell(*(told or self.nodes))

    def reassign(self, ids: list[int]) -> None:
        isr = tuple(each for each in self.role.isr if each in ids)
        for each in ids:
            self.nodes.setdefault(each, Node(each, broker_epoch=100 + each))
        self.role = Role(tuple(ids), isr, self.role.leader_epoch, self.role.partition_epoch + 1)
        self.tell(*self.nodes)

    def tell(self, *ids: int) -> None:
        for each in ids:
            if self.nodes[each].is_up:
                self._become(self.nodes[each])

    def is_eligible(self, broker_id: int, broker_epoch: int) -> bool:
        node = self.nodes[broker_id]
        return node.is_up and broker_epoch == node.broker_epoch

    def life_of(self, node_id: int) -> Life:
        return Life(node_id, self.nodes[node_id].broker_epoch)

    def commit(self, change: IsrChange, *, sender: Life | None = None, is_told: bool = True) -> ErrorCode:
        """AlterPartition: checked as the controller does; nobody but the leader is told, if the answer arrives.

        `sender` is the life of the node that asked; without, it is the leader's present one.
        """
        role = self.role
        leader = self.nodes[self.leader_id]
        if sender is not None and sender != self.life_of(sender.node_id):
            return ErrorCode.STALE_BROKER_EPOCH
        if sender is not None and sender.node_id != self.leader_id:
            return ErrorCode.FENCED_LEADER_EPOCH
        if change.leader_epoch < role.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if change.partition_epoch < role.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        if not all(
            self.is_eligible(each, self.nodes[each].broker_epoch if epoch < 0 else epoch) for each, epoch in change.isr
        ):
            return ErrorCode.INELIGIBLE_REPLICA
        isr = tuple(each for each, _ in change.isr)
        self.role = Role(role.replicas, isr, role.leader_epoch, role.partition_epoch + 1)
        if is_told and leader.lead is not None and leader.lead.on_committed(change, isr, *self.role[2:]):
            self.advance(leader)
        return ErrorCode.NONE

    # -- nodes

    def _become(self, node: Node) -> None:
        role, log = self.role, node.log
        is_new_epoch = role.leader_epoch > node.leader_epoch
        node.leader_id, node.leader_epoch = self.leader_id, role.leader_epoch
        if node.id == self.leader_id:
            node.follow = None
            if is_new_epoch or node.lead is None:
                log.epochs.assign(role.leader_epoch, log.end_offset)
            if node.lead is None:
                node.lead = LeaderState(node.id, role, log.end_offset, self.now_ms, self.is_eligible)
            else:
                node.lead.update(role, log.end_offset, self.now_ms)
            self.advance(node)
        else:
            node.lead = None
            if is_new_epoch or node.follow is None:
                if self.truncate_by_high_watermark:
                    log.truncate(log.high_watermark)
                node.follow = FollowedPartition(role.leader_epoch, log.end_offset, log.epochs.latest)

    def crash(self, node_id: int, *, lose: int = 0) -> None:
        """The process dies; with the machine, what was not flushed (`lose` records at most) goes too."""
        node = self.nodes[node_id]
        node.is_up = False
        node.lead = node.follow = None
        node.leader_epoch = -1
        node.log.truncate(max(node.log.flushed_offset, node.log.end_offset - lose))

    def restart(self, node_id: int) -> None:
        node = self.nodes[node_id]
        node.is_up = True
        node.broker_epoch += 1_000
        self._become(node)

    def advance(self, node: Node) -> None:
        lead, log = node.lead, node.log
        assert lead is not None
        offset = lead.high_watermark(log.end_offset, self.now_ms, LAG_MAX_MS, self.min_isr)
        if offset > log.high_watermark:
            self._note_acked(node, log.high_watermark, offset)
            log.high_watermark = offset

    def _note_acked(self, node: Node, first: int, end: int) -> None:
        for offset in range(max(first, node.log.start_offset), end):
            value = node.log.at(offset).value
            self._see(offset, value)
            self.acked[offset] = value

    def _see(self, offset: int, value: str) -> None:
        if not self.lost_by_choice and self.seen.setdefault(offset, value) != value:
            raise CheckFailed(f"offset {offset} was {self.seen[offset]} for one reader and is {value} for another")

    def produce(self, node_id: int, *values: str) -> ErrorCode:
        """acks=all. NONE means that it is in the leader's log; `acked` says what is safe."""
        node = self.nodes[node_id]
        if node.lead is None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if len(node.lead.isr) < node.lead.min_isr(self.min_isr):
            return ErrorCode.NOT_ENOUGH_REPLICAS
        for value in values:
            node.log.append(Entry(node.leader_epoch, value))
        self.advance(node)
        return ErrorCode.NONE

    def serve(self, leader: Node, follower: Node, wanted: FollowedPartition, max_records: int) -> Answer:
        """The leader's side of a fetch."""
        lead, log = leader.lead, leader.log
        if not leader.is_up:
            return Answer(ErrorCode.NETWORK_EXCEPTION)
        if wanted.leader_epoch != leader.leader_epoch:
            is_old = wanted.leader_epoch < leader.leader_epoch
            return Answer(ErrorCode.FENCED_LEADER_EPOCH if is_old else ErrorCode.UNKNOWN_LEADER_EPOCH)
        if lead is None:
            return Answer(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if wanted.last_fetched_epoch >= 0 and not self.truncate_by_high_watermark:
            epoch, end = log.epochs.end_offset_for(wanted.last_fetched_epoch, log.end_offset)
            if end < 0 or wanted.fetch_offset < log.start_offset:
                return Answer(ErrorCode.OFFSET_OUT_OF_RANGE)
            if epoch < wanted.last_fetched_epoch or end < wanted.fetch_offset:
                return Answer(ErrorCode.NONE, log.high_watermark, log.start_offset, (), (epoch, end))
        if not log.start_offset <= wanted.fetch_offset <= log.end_offset:
            return Answer(ErrorCode.OFFSET_OUT_OF_RANGE)
        first = wanted.fetch_offset - log.start_offset
        entries = tuple(log.entries[first : first + max_records])
        answer = Answer(ErrorCode.NONE, log.high_watermark, log.start_offset, entries)
        try:
            lead.on_fetch(
                follower.id, follower.broker_epoch, wanted.fetch_offset, follower.log.start_offset, log.end_offset,
                self.now_ms,
            )  # fmt: skip
        except ReplicaRefused:
            return Answer(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.advance(leader)
        return answer

    def fetch(self, follower_id: int, max_records: int = 100) -> str:
        """A follower asks the one it takes for the leader, once. Says what came of it."""
        follower = self.nodes[follower_id]
        wanted = follower.follow
        if not follower.is_up or wanted is None:
            return "does not follow"
        leader = self.nodes[follower.leader_id]
        return self.receive(follower, leader, self.serve(leader, follower, wanted, max_records))

    def receive(self, follower: Node, leader: Node, answer: Answer) -> str:
        wanted, log = follower.follow, follower.log
        assert wanted is not None
        step = decide(answer.error, answer.diverging)
        if step is Next.APPEND:
            for entry in answer.entries:
                log.append(entry)
            log.high_watermark = follower_high_watermark(log.high_watermark, answer.high_watermark, log.end_offset)
            if log.start_offset < answer.start_offset <= log.end_offset:
                log.delete_before(answer.start_offset)
            wanted.fetch_offset, wanted.last_fetched_epoch = log.end_offset, log.epochs.latest
            return "appends " + (" ".join(each.value for each in answer.entries) or "nothing")
        if step is Next.TRUNCATE:
            assert answer.diverging is not None
            self._cut(follower, truncation_offset(answer.diverging, log.epochs, log.end_offset))
            return f"cuts at {log.end_offset}"
        if step is Next.FIND_OFFSET:
            resume = resume_offset(log.end_offset, leader.log.start_offset, leader.log.end_offset)
            if resume.start_over:
                log.start_over(resume.offset)
            else:
                self._cut(follower, resume.offset)
            wanted.fetch_offset, wanted.last_fetched_epoch = log.end_offset, log.epochs.latest
            return f"{'starts over' if resume.start_over else 'goes on'} at {log.end_offset}"
        return answer.error.name

    def _cut(self, follower: Node, offset: int) -> None:
        assert follower.follow is not None
        follower.log.truncate(offset)
        follower.follow.fetch_offset = follower.log.end_offset
        follower.follow.last_fetched_epoch = follower.log.epochs.latest

    # -- changes of the ISR

    def expand(self, follower_id: int) -> IsrChange | None:
        leader = self.nodes[self.leader_id]
        return None if leader.lead is None else leader.lead.expansion(follower_id, leader.log.high_watermark)

    def shrink(self) -> IsrChange | None:
        leader = self.nodes[self.leader_id]
        return None if leader.lead is None else leader.lead.shrinkage(leader.log.end_offset, self.now_ms, LAG_MAX_MS)

    # -- promises

    def excuse(self) -> None:
        """All replicas lost their unflushed records at once: nobody promised to survive that."""
        self.acked.clear()
        self.seen.clear()

    def check(self) -> None:
        """Nothing acknowledged is lost; replicas agree below their high watermarks."""
        leader = self.nodes[self.leader_id]
        if leader.lead is not None and not self.lost_by_choice:
            for offset, value in self.acked.items():
                if offset >= leader.log.start_offset and (
                    offset >= leader.log.end_offset or leader.log.at(offset).value != value
                ):
                    raise CheckFailed(f"{value} at offset {offset} was acknowledged, and node {leader.id} lacks it")
        committed: dict[int, Entry] = {}
        for node in self.nodes.values():
            for offset in range(node.log.start_offset, node.log.high_watermark):
                entry = node.log.at(offset)
                if committed.setdefault(offset, entry) != entry and not self.lost_by_choice:
                    raise CheckFailed(f"replicas differ at offset {offset}: {committed[offset]} and {entry}")
