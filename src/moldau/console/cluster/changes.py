"""What changed from one snapshot to the next, in sentences: the console's memory of what happened.

Invariants: what happened to brokers and the controller is kept apart from what followed of it, so that it is neither
forgotten nor pushed off the first screen, however many partitions it moved. `everything` tells each change on a line of
its own; `in_brief` tells those of one look that are of one sort on one line.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import quote

from moldau.console.cluster.model import Snapshot, Topic

KEPT = 1_000
CAUSES_KEPT = 200
_BRIEF_KEPT = 200
_OF_A_SORT = 2  # more of one sort in one look are told in one line, in brief
_PLACES = 3  # named in such a line
_CAUSES = ("broker", "controller")


@dataclass(slots=True, frozen=True)
class Change:
    at_ms: int
    kind: str  # broker, controller, isr, leader, topic, group
    level: str  # good, note, bad
    text: str
    link: str = ""
    sort: str = ""  # what is said of many: "leaders moved"
    place: str = ""  # and of some of them: "from broker 3"


class Changes:
    def __init__(self) -> None:
        self._causes: deque[Change] = deque(maxlen=CAUSES_KEPT)
        self._others: deque[Change] = deque(maxlen=KEPT)
        self._brief: deque[Change] = deque(maxlen=_BRIEF_KEPT)

    def note(self, before: Snapshot, after: Snapshot) -> None:
        if before.number == 0:
            return
        sorts: dict[tuple[str, str], list[Change]] = {}
        for change in differences(before, after):
            if change.kind in _CAUSES:
                self._causes.append(change)
            else:
                self._others.append(change)
                sorts.setdefault((change.level, change.sort), []).append(change)
        for found in sorts.values():
            self._brief.extend(found if len(found) <= _OF_A_SORT else [_folded(found)])

    def everything(self) -> list[Change]:
        """The newest first; in one look causes before what followed."""
        return _newest_first([*self._causes, *self._others])

    def in_brief(self, lines: int, kinds: frozenset[str] | None = None) -> list[Change]:
        """The newest first. Up to half of the lines are for brokers and the controller, whatever came after them."""
        causes = list(self._causes)[-(lines // 2) :]
        others = [change for change in list(self._brief) if kinds is None or change.kind in kinds]
        return _newest_first([*causes, *others[len(causes) - lines :]])


def _newest_first(changes: Iterable[Change]) -> list[Change]:
    return sorted(changes, key=lambda change: -change.at_ms)


def _folded(found: list[Change]) -> Change:
    """One line for many: "37 leaders moved: 30 from broker 3, 7 from broker 1"."""
    first = found[0]
    places = Counter(change.place for change in found if change.place).most_common()
    text = f"{len(found):,} {first.sort}"
    if len(places) == 1:
        text += f" {places[0][0]}"
    elif places:
        named = [f"{count:,} {place}" for place, count in places[:_PLACES]]
        text += ": " + ", ".join(named) + (", …" if len(places) > _PLACES else "")
    return Change(first.at_ms, first.kind, first.level, text, "/happened", first.sort)


def differences(before: Snapshot, after: Snapshot) -> Iterator[Change]:
    at = after.at_ms
    for number, broker in after.brokers.items():
        old = before.brokers.get(number)
        if old is None or (broker.is_up and not old.is_up):
            yield Change(at, "broker", "good", f"broker {number} is back", f"/brokers/{number}")
        elif old.is_up and not broker.is_up:
            yield Change(at, "broker", "bad", f"broker {number} is away", f"/brokers/{number}")
    for number in before.brokers.keys() - after.brokers.keys():
        yield Change(at, "broker", "note", f"broker {number} has left the cluster")
    if before.quorum and after.quorum and before.quorum.leader != after.quorum.leader:
        text = f"the active controller is {after.quorum.leader}, no longer {before.quorum.leader}"
        yield Change(at, "controller", "note", text, "/brokers")
    for name in after.topics.keys() - before.topics.keys():
        yield Change(at, "topic", "note", f"topic {name} was created", f"/topics/{name}", "topics were created")
    for name in before.topics.keys() - after.topics.keys():
        yield Change(at, "topic", "note", f"topic {name} was deleted", sort="topics were deleted")
    for name, topic in after.topics.items():
        was = before.topics.get(name)
        if was is not None and was.partitions is not topic.partitions:
            yield from _partition_changes(at, was, topic)
    for name, group in after.groups.items():
        former = before.groups.get(name)
        link = f"/group?name={quote(name, safe='')}"
        if former is not None and former.judgement != group.judgement:
            level = "good" if group.judgement == "ok" else "bad"
            text = f"group {name} is {group.judgement}, was {former.judgement}"
            yield Change(at, "group", level, text, link, f"groups are {group.judgement}")
        elif former is not None and bool(former.members) != bool(group.members):
            what = "has members again" if group.members else "has no members any more"
            many = "groups have members again" if group.members else "groups have no members any more"
            yield Change(at, "group", "note", f"group {name} {what}", link, many)


def _partition_changes(at: int, before: Topic, after: Topic) -> Iterator[Change]:
    link = f"/topics/{after.name}"
    olds = {each.index: each for each in before.partitions}
    for new in after.partitions:
        old = olds.get(new.index)
        if old is None or (old.isr == new.isr and old.leader == new.leader):
            continue
        where = f"{after.name}-{new.index}"
        if len(new.isr) < len(old.isr):
            gone = ", ".join(str(each) for each in old.isr if each not in new.isr)
            text = f"{where}: replica {gone} fell out of sync"
            yield Change(at, "isr", "bad", text, link, "partitions lost replicas in sync", f"on broker {gone}")
        elif len(new.isr) > len(old.isr):
            back = ", ".join(str(each) for each in new.isr if each not in old.isr)
            text = f"{where}: replica {back} is in sync again"
            yield Change(at, "isr", "good", text, link, "partitions have replicas in sync again", f"on broker {back}")
        if old.leader != new.leader:
            if new.leader < 0:
                lost = f"after broker {old.leader}"
                yield Change(at, "leader", "bad", f"{where} has no leader", link, "partitions have no leader", lost)
            else:
                text = f"{where} is led by {new.leader}, before by {old.leader}"
                since = f"from broker {old.leader}" if old.leader >= 0 else "from nobody"
                yield Change(at, "leader", "note", text, link, "leaders moved", since)
