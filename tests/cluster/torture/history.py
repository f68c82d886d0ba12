"""What clients saw, and what must not be in it: the anomalies of Jepsen's Kafka workload.

Values are unique. For each we know whether its append was acknowledged (and mostly where), or may have happened or not;
and of a transaction whether it was committed, aborted, or nobody knows.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field

Place = tuple[int, int]  # partition, offset


@dataclass(slots=True)
class History:
    """Filled by many threads."""

    acked: dict[bytes, Place] = field(default_factory=dict)
    acked_somewhere: set[bytes] = field(default_factory=set)
    unknown: set[bytes] = field(default_factory=set)
    # transaction -> its values, by how it ended
    committed: dict[str, list[bytes]] = field(default_factory=dict)
    aborted: dict[str, list[bytes]] = field(default_factory=dict)
    undecided: dict[str, list[bytes]] = field(default_factory=dict)
    # Each consumer's polls since it was last told where to begin, in order.
    polls: list[list[tuple[int, int, bytes]]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def new_poller(self) -> list[tuple[int, int, bytes]]:
        with self.lock:
            self.polls.append([])
            return self.polls[-1]


@dataclass(slots=True)
class FinalRead:
    """Everything, after all faults were healed: (partition, offset, value) in order."""

    everything: list[tuple[int, int, bytes]]
    only_committed: list[tuple[int, int, bytes]]


def anomalies(history: History, final: FinalRead) -> list[str]:
    """Everything that is wrong, in words."""
    found: list[str] = []
    at = {(partition, offset): value for partition, offset, value in final.everything}
    found += _inconsistent_offsets(history, at)
    found += _duplicates(final)
    found += _lost(history, at)
    found += _non_monotonic(history)
    found += _out_of_order(final)
    found += _transactions(history, final)
    return found


def _inconsistent_offsets(history: History, at: dict[Place, bytes]) -> list[str]:
    """One offset, two values: told to a producer, to some consumer, or read in the end."""
    seen: dict[Place, set[bytes]] = {place: {value} for place, value in at.items()}
    for value, place in history.acked.items():
        seen.setdefault(place, set()).add(value)
    for poller in history.polls:
        for partition, offset, value in poller:
            seen.setdefault((partition, offset), set()).add(value)
    return [f"inconsistent offset {place}: {sorted(values)}" for place, values in seen.items() if len(values) > 1]


def _duplicates(final: FinalRead) -> list[str]:
    times = Counter(value for _, _, value in final.everything)
    return [f"duplicate: {value!r} is there {count} times" for value, count in times.items() if count > 1]


def _lost(history: History, at: dict[Place, bytes]) -> list[str]:
    there = set(at.values())
    found = [f"lost: {value!r} acknowledged at {place}" for value, place in history.acked.items() if value not in there]
    found += [f"lost: {value!r} acknowledged" for value in history.acked_somewhere if value not in there]
    for poller in history.polls:
        found += [
            f"lost: {value!r} was read at {(partition, offset)}"
            for partition, offset, value in poller
            if value not in there
        ]
    return found


def _non_monotonic(history: History) -> list[str]:
    """A consumer nobody moved never goes back."""
    found = []
    for number, poller in enumerate(history.polls):
        last: dict[int, int] = {}
        for partition, offset, value in poller:
            if offset <= last.get(partition, -1):
                found.append(f"non-monotonic poll of consumer {number}: {value!r} at {(partition, offset)}")
            last[partition] = max(offset, last.get(partition, -1))
    return found


def _out_of_order(final: FinalRead) -> list[str]:
    """What one producer sent to one partition is there in the order it was sent."""
    found = []
    last: dict[tuple[int, str], int] = {}
    for partition, offset, value in sorted(final.everything):
        producer, _, number = value.decode().rpartition("/")
        key = (partition, producer)
        if int(number) <= last.get(key, -1):
            found.append(f"out of order: {value!r} at {(partition, offset)}")
        last[key] = int(number)
    return found


def _transactions(history: History, final: FinalRead) -> list[str]:
    visible = {value for _, _, value in final.only_committed}
    found = []
    for name, values in history.committed.items():
        missing = [value for value in values if value not in visible]
        if missing:
            found.append(f"committed transaction {name} lacks {missing[:3]} (of {len(values)}, {len(missing)} missing)")
    for name, values in history.aborted.items():
        seen = [value for value in values if value in visible]
        if seen:
            found.append(f"G1a: aborted transaction {name} is visible: {seen[:3]}")
    for name, values in history.undecided.items():
        seen = [value for value in values if value in visible]
        if seen and len(seen) != len(values):
            found.append(f"torn transaction {name}: {len(seen)} of {len(values)} values are visible")
    return found
