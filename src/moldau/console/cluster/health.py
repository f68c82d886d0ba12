"""What somebody should look at, the worst first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moldau.console.cluster.model import Group, Snapshot, Topic
from moldau.console.wording import counted

_NEARLY_FULL = 0.1
_EXAMPLES = 3


@dataclass(slots=True, frozen=True)
class Alert:
    level: str  # bad, warn
    text: str
    link: str = ""


def alerts(snapshot: Snapshot) -> list[Alert]:
    found = [Alert("bad", problem) for problem in snapshot.problems]
    for broker in snapshot.brokers.values():
        if not broker.is_up:
            text = f"Broker {broker.id} is away; {counted(broker.replicas, 'replica')} with it."
            found.append(Alert("bad", text, f"/brokers/{broker.id}"))
        for folder in broker.log_dirs:
            if folder.error:
                found.append(Alert("bad", f"Broker {broker.id}: {folder.path} fails ({folder.error}).", "/brokers"))
            elif 0 <= folder.usable_bytes < folder.total_bytes * _NEARLY_FULL:
                share = 100 - 100 * folder.usable_bytes // max(1, folder.total_bytes)
                text = f"Broker {broker.id}: the disk of {folder.path} is {share} % full."
                found.append(Alert("warn", text, f"/brokers/{broker.id}"))
    leaderless = [topic for topic in snapshot.topics.values() if topic.leaderless]
    if leaderless:
        count = sum(topic.leaderless for topic in leaderless)
        have = f"{counted(count, 'partition')} {_have(count)}"
        text = f"{have} no leader and cannot be read or written: {_names(leaderless)}."
        found.append(Alert("bad", text, "/topics?show=leaderless"))
    short = [topic for topic in snapshot.topics.values() if topic.short]
    if short:
        count = sum(topic.short for topic in short)
        text = f"{counted(count, 'partition')} {_have(count)} replicas out of sync: {_names(short)}."
        found.append(Alert("warn", text, "/topics?show=short"))
    for word, what in (
        ("stalled", "standing still with members there"),
        ("stopped", "without members while records wait"),
        ("slow", "falling behind"),
    ):
        groups = [group for group in snapshot.groups.values() if group.judgement == word]
        if groups:
            text = f"{counted(len(groups), 'group')} {'is' if len(groups) == 1 else 'are'} {what}: {_names(groups)}."
            found.append(Alert("bad" if word == "stalled" else "warn", text, f"/groups?show={word}"))
    return found


def _names(found: Sequence[Topic | Group]) -> str:
    names = [each.name for each in found[:_EXAMPLES]]
    return ", ".join(names) + ("…" if len(found) > _EXAMPLES else "")


def _have(count: int) -> str:
    return "has" if count == 1 else "have"
