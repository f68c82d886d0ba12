"""What clients did and saw: the evidence the checkers judge. Nothing here knows about the inside of a node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

Partition = tuple[str, int]


class Fate(Enum):
    """What a client was told about a value it wrote."""

    UNKNOWN = "unknown"  # no answer came: it may be there or not
    ACKED = "acked"
    REFUSED = "refused"  # it must never be seen


class Outcome(Enum):
    OPEN = "open"
    UNKNOWN = "unknown"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(slots=True)
class Write:
    """One value, written once by one producer (and perhaps sent many times)."""

    partition: Partition
    value: bytes
    producer: str
    sequence: int
    transaction: Transaction | None = None
    fate: Fate = Fate.UNKNOWN
    offset: int = -1
    key: bytes | None = None


@dataclass(slots=True)
class Transaction:
    """Values that are to be seen together or not at all."""

    name: str
    outcome: Outcome = Outcome.OPEN
    writes: list[Write] = field(default_factory=list)


@dataclass(slots=True)
class Violation:
    """Something a message store must never do."""

    rule: str
    details: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.details}"


class History:
    def __init__(self) -> None:
        self.writes: dict[bytes, Write] = {}
        self.transactions: list[Transaction] = []
        self.violations: list[Violation] = []
        # By partition and isolation: what every reader so far saw at an offset.
        self._seen: dict[tuple[Partition, int], bytes] = {}
        self._committed_offsets: dict[tuple[str, Partition], int] = {}
        self._owners: dict[tuple[str, int, Partition], str] = {}
        # By group and partition: who has it, and until when at least.
        self._held: dict[tuple[str, Partition], tuple[str, float]] = {}
        self.reads = 0
        self.on_acked: list[Callable[[Partition, int], None]] = []

    def violated(self, rule: str, details: str) -> None:
        self.violations.append(Violation(rule, details))

    def written(self, write: Write) -> Write:
        assert write.value not in self.writes, "every value is written once"
        self.writes[write.value] = write
        if write.transaction is not None:
            write.transaction.writes.append(write)
        return write

    def acked(self, write: Write, offset: int) -> None:
        write.fate, write.offset = Fate.ACKED, offset
        if offset >= 0:
            self._at_offset("acknowledged", write.partition, offset, write.value)
            for listener in self.on_acked:
                listener(write.partition, offset)

    def read(self, reader: str, partition: Partition, offset: int, value: bytes) -> None:
        """A reader got a record: at one offset, everybody gets the same, always."""
        self.reads += 1
        self._at_offset(f"read by {reader}", partition, offset, value)
        write = self.writes.get(value)
        if write is None or write.partition != partition:
            self.violated("nothing comes from nowhere", f"{partition}@{offset} holds {value!r}")

    def _at_offset(self, how: str, partition: Partition, offset: int, value: bytes) -> None:
        before = self._seen.setdefault((partition, offset), value)
        if before != value:
            self.violated("an offset holds one record", f"{partition}@{offset}: {before!r}, then {value!r} {how}")

    def high_watermark(self, reader: str, partition: Partition, position: int, high_watermark: int) -> None:
        """A reader was told a high watermark: what he was given never lies beyond it again."""
        if high_watermark < position:
            self.violated(
                "the high watermark never goes back for a reader",
                f"{partition}: {reader} has read up to {position} and is told {high_watermark}",
            )

    def offset_committed(self, group: str, partition: Partition, offset: int) -> None:
        """A member committed an offset and was told so."""
        key = (group, partition)
        self._committed_offsets[key] = max(offset, self._committed_offsets.get(key, -1))

    def offset_fetched(self, group: str, partition: Partition, offset: int) -> None:
        """A member asked where to go on: never before what was acknowledged as committed."""
        committed = self._committed_offsets.get((group, partition), -1)
        if offset < committed:
            self.violated("a committed offset never goes back", f"{group} {partition}: {committed}, then {offset}")

    def owns(self, group: str, generation: int, partition: Partition, member: str) -> None:
        other = self._owners.setdefault((group, generation, partition), member)
        if other != member:
            self.violated("one owner per generation", f"{group}/{generation} {partition}: {other} and {member}")

    def holds(self, group: str, partition: Partition, member: str, now_s: float, until_s: float) -> None:
        """The coordinator told a member that the partition is its own, and thereby that it is nobody else's."""
        other, others_s = self._held.get((group, partition), (member, 0.0))
        if other != member and others_s > now_s:
            self.violated(
                "a partition is given up before another gets it",
                f"{group} {partition}: {member} has it, and it is {other}'s until {others_s:.3f}, now {now_s:.3f}",
            )
        self._held[group, partition] = (member, until_s)

    def gives_up(self, group: str, partition: Partition, member: str) -> None:
        """A member stopped reading it, and will say so."""
        if self._held.get((group, partition), ("", 0.0))[0] == member:
            del self._held[group, partition]

    def judge(self, final: dict[Partition, list[tuple[int, bytes]]], committed: dict[Partition, list[bytes]]) -> None:
        """At the end: `final` is the whole log of each partition, `committed` what a read_committed reader gets."""
        for partition, records in sorted(final.items()):
            self._judge_partition(partition, records)
        present = {value for values in committed.values() for value in values}
        for values in committed.values():
            if len(values) != len(set(values)):
                self.violated("nothing is doubled", "a read_committed reader saw a value twice")
        for transaction in self.transactions:
            self._judge_transaction(transaction, present)

    def _judge_partition(self, partition: Partition, records: list[tuple[int, bytes]]) -> None:
        values = [value for _, value in records]
        if len(values) != len(set(values)):
            twice = sorted({value for value in values if values.count(value) > 1})
            self.violated("nothing is doubled", f"{partition} holds {twice[:3]} twice")
        offsets = {value: offset for offset, value in records}
        for write in self.writes.values():
            if write.partition != partition:
                continue
            found = offsets.get(write.value)
            if write.fate is Fate.ACKED and found is None:
                self.violated("no acknowledged record is lost", f"{partition} {write.value!r} (offset {write.offset})")
            if write.fate is Fate.ACKED and found is not None and write.offset not in (-1, found):
                self.violated("offsets do not change", f"{partition} {write.value!r}: {write.offset}, now {found}")
        last: dict[str, int] = {}
        for _, value in records:
            known = self.writes.get(value)
            if known is None:
                self.violated("nothing comes from nowhere", f"{partition} holds {value!r}")
                continue
            if known.sequence < last.get(known.producer, -1):
                self.violated("a producer's order is kept", f"{partition}: {value!r} after {last[known.producer]}")
            last[known.producer] = known.sequence

    def _judge_transaction(self, transaction: Transaction, present: set[bytes]) -> None:
        seen = [write for write in transaction.writes if write.value in present]
        acked = [write for write in transaction.writes if write.fate is Fate.ACKED]
        if transaction.outcome is Outcome.COMMITTED and len(seen) < len(acked):
            missing = [write.value for write in acked if write.value not in present]
            self.violated("a committed transaction is seen whole", f"{transaction.name}: {missing}")
        if transaction.outcome is Outcome.ABORTED and seen:
            self.violated("an aborted transaction is never seen", f"{transaction.name}: {seen[0].value!r}")
        if transaction.outcome in (Outcome.UNKNOWN, Outcome.OPEN) and seen and len(seen) < len(acked):
            self.violated(
                "a transaction is seen whole or not at all", f"{transaction.name}: {len(seen)} of {len(acked)}"
            )
