"""From answers to a snapshot: pure, but for the memory of what was before (rates, windows of lag)."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from moldau.console.cluster.gathering import FoundGroup
from moldau.console.cluster.model import Broker, Group, LogDir, Partition, Position, Topic, Where
from moldau.toolkit.lag import Judgement, Sample, judge, trend
from moldau.wire.messages import MetadataResponse

_WINDOW = 12
_ROUNDS_TO_JUDGE = 4
_WATCHED_MAX = 100_000  # partitions of groups with lag, together
_SEVERITY: dict[Judgement, int] = {"ok": 0, "slow": 1, "stalled": 2, "stopped": 3}


@dataclass(slots=True)
class Known:
    """What the last rounds found; what one could not find stays."""

    at_ms: int = 0
    starts: dict[Where, int] = field(default_factory=dict)
    ends: dict[Where, int] = field(default_factory=dict)
    rates: dict[Where, float] = field(default_factory=dict)
    answers: dict[int, float] = field(default_factory=dict)
    dirs: dict[int, tuple[LogDir, ...]] = field(default_factory=dict)
    sizes: dict[int, dict[Where, int]] = field(default_factory=dict)
    groups: dict[int, list[FoundGroup]] = field(default_factory=dict)
    samples: dict[tuple[str, Where], deque[Sample]] = field(default_factory=dict)

    def note_ends(self, at_ms: int, ends: Mapping[Where, int]) -> None:
        """New ends, and how quickly each moved since the last ones."""
        seconds = (at_ms - self.at_ms) / 1_000 if self.at_ms else 0.0
        rates = {}
        for where, end in ends.items():
            before = self.ends.get(where)
            # A rate is smoothed a little: the eye wants a number that can be read.
            if before is not None and seconds > 0:
                now = max(0.0, (end - before) / seconds)
                rates[where] = 0.6 * now + 0.4 * self.rates.get(where, now)
        self.rates = rates
        self.ends = dict(ends)
        self.at_ms = at_ms

    @property
    def size_of(self) -> dict[str, int]:
        found: defaultdict[str, int] = defaultdict(int)
        for sizes in self.sizes.values():
            for (topic, _), size in sizes.items():
                found[topic] += size
        return found


def build_groups(known: Known, at_ms: int) -> dict[str, Group]:
    found: dict[str, Group] = {}
    samples: dict[tuple[str, Where], deque[Sample]] = {}
    for told in (each for groups in known.groups.values() for each in groups):
        positions: dict[Where, Position] = {}
        total, growth, worst = 0, 0.0, 0
        for where, (committed, metadata) in sorted((told.committed or {}).items()):
            end = known.ends.get(where, -1)
            position = positions[where] = Position(committed, end, metadata)
            total += position.lag
            if end < 0 or not position.lag or len(samples) >= _WATCHED_MAX:
                continue
            window = known.samples.get((told.name, where)) or deque(maxlen=_WINDOW)
            window.append(Sample(at_ms, committed, end))
            samples[told.name, where] = window
            growth += trend(window)
            worst = max(worst, _SEVERITY[_judged(window, len(told.members))])
        word = next(word for word, number in _SEVERITY.items() if number == worst)
        found[told.name] = Group(
            told.name,
            told.kind.lower(),
            told.state,
            told.assignor,
            told.coordinator,
            told.members,
            positions,
            total,
            growth,
            word,
        )
    known.samples = samples
    return dict(sorted(found.items()))


def _judged(window: Sequence[Sample], members: int) -> Judgement:
    """A window begins when lag does, so its first rounds cannot say that a group with members stands still."""
    return "ok" if members and len(window) < _ROUNDS_TO_JUDGE else judge(window, members)


def build_topics(answer: MetadataResponse, known: Known, groups: Iterable[Group]) -> dict[str, Topic]:
    lags: defaultdict[str, int] = defaultdict(int)
    readers: defaultdict[str, list[str]] = defaultdict(list)
    for group in groups:
        for (topic, _), position in group.positions.items():
            lags[topic] += position.lag
        for topic in group.topics:
            readers[topic].append(group.name)
    sizes = known.size_of
    found = {}
    for row in sorted(answer.topics, key=lambda each: each.name or ""):
        name = row.name or ""
        if row.error_code:
            continue
        partitions = tuple(
            Partition(
                each.partition_index,
                each.leader_id,
                tuple(each.replica_nodes),
                tuple(each.isr_nodes),
                tuple(each.offline_replicas),
                known.starts.get((name, each.partition_index), -1),
                known.ends.get((name, each.partition_index), -1),
            )
            for each in sorted(row.partitions, key=lambda each: each.partition_index)
        )
        rate = sum(known.rates.get((name, each.index), 0.0) for each in partitions)
        found[name] = Topic(
            name,
            row.is_internal,
            partitions,
            sizes.get(name),
            rate,
            lags[name] if name in readers else None,
            tuple(readers.get(name, ())),
        )
    return found


def build_brokers(answer: MetadataResponse, known: Known, topics: Iterable[Topic]) -> dict[int, Broker]:
    """Those that answer, and those that only replicas speak of: they are away."""
    leaders: defaultdict[int, int] = defaultdict(int)
    replicas: defaultdict[int, int] = defaultdict(int)
    short: defaultdict[int, int] = defaultdict(int)
    rates: defaultdict[int, float] = defaultdict(float)
    for topic in topics:
        for partition in topic.partitions:
            leaders[partition.leader] += 1
            rates[partition.leader] += known.rates.get((topic.name, partition.index), 0.0)
            for replica in partition.replicas:
                replicas[replica] += 1
                short[replica] += replica not in partition.isr
    up = {row.node_id: row for row in answer.brokers}
    found = {}
    for number in sorted(set(up) | set(replicas)):
        row = up.get(number)
        found[number] = Broker(
            number,
            row.host if row else "",
            row.port if row else 0,
            (row.rack or "") if row else "",
            row is not None,
            leaders[number],
            replicas[number],
            short[number],
            known.dirs.get(number, ()),
            rates[number],
            known.answers.get(number) if row else None,
        )
    return found
