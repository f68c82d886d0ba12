"""What changed from one snapshot to the next, in sentences: the console's memory of what happened."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote

from moldau.console.cluster.model import Snapshot, Topic

KEPT = 500
_OF_A_KIND = 5  # more of one kind in one round become one line


@dataclass(slots=True, frozen=True)
class Change:
    at_ms: int
    kind: str  # broker, controller, isr, leader, topic, group
    level: str  # good, note, bad
    text: str
    link: str = ""


class Changes:
    def __init__(self) -> None:
        self.last: deque[Change] = deque(maxlen=KEPT)

    def note(self, before: Snapshot, after: Snapshot) -> None:
        if before.number == 0:
            return
        kinds: dict[tuple[str, str], list[Change]] = {}
        for change in differences(before, after):
            kinds.setdefault((change.kind, change.level), []).append(change)
        for (kind, level), found in kinds.items():
            for change in found[:_OF_A_KIND]:
                self.last.appendleft(change)
            if len(found) > _OF_A_KIND:
                more = len(found) - _OF_A_KIND
                self.last.appendleft(Change(after.at_ms, kind, level, f"… and {more:,} more of the kind: {kind}"))


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
        yield Change(at, "topic", "note", f"topic {name} was created", f"/topics/{name}")
    for name in before.topics.keys() - after.topics.keys():
        yield Change(at, "topic", "note", f"topic {name} was deleted")
    for name, topic in after.topics.items():
        was = before.topics.get(name)
        if was is not None and was.partitions is not topic.partitions:
            yield from _partition_changes(at, was, topic)
    for name, group in after.groups.items():
        former = before.groups.get(name)
        link = f"/group?name={quote(name, safe='')}"
        if former is not None and former.judgement != group.judgement:
            level = "good" if group.judgement == "ok" else "bad"
            yield Change(at, "group", level, f"group {name} is {group.judgement}, was {former.judgement}", link)
        elif former is not None and bool(former.members) != bool(group.members):
            what = "has members again" if group.members else "has no members any more"
            yield Change(at, "group", "note", f"group {name} {what}", link)


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
            yield Change(at, "isr", "bad", f"{where}: replica {gone} fell out of sync", link)
        elif len(new.isr) > len(old.isr):
            back = ", ".join(str(each) for each in new.isr if each not in old.isr)
            yield Change(at, "isr", "good", f"{where}: replica {back} is in sync again", link)
        if old.leader != new.leader:
            if new.leader < 0:
                yield Change(at, "leader", "bad", f"{where} has no leader", link)
            else:
                yield Change(at, "leader", "note", f"{where} is led by {new.leader}, before by {old.leader}", link)
