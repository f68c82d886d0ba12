"""What somebody should look at, the worst first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moldau.console.cluster.model import Group, Snapshot, Topic
from moldau.console.wording import counted

_NEARLY_FULL = 0.1
_EXAMPLES = 3
_MOST = 0.6


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


def why(group: Group, snapshot: Snapshot) -> list[str]:
    """Why a group is behind, as far as can be seen from here, and what helps; nothing where all is well."""
    if not group.lag or group.judgement == "ok":
        return []
    found = []
    if group.judgement == "stopped":
        found.append("Records wait and nobody is in the group: its consumers are not running, or cannot join it.")
    elif group.judgement == "stalled":
        found.append(
            "Its members are there, and no offset moves: they hang, fail at the same record again and again, "
            "or do not commit."
        )
    else:
        found.append("It reads, but records come faster: its consumers need to be quicker, or more.")
        readers, most = len(group.members), len(group.positions)
        if readers >= most:
            found.append(f"More members would not help: {counted(most, 'partition')}, and each has a member.")
    (topic, index), worst = max(group.positions.items(), key=lambda each: each[1].lag)
    if len(group.positions) > 1 and worst.lag > _MOST * group.lag:
        share = 100 * worst.lag // group.lag
        found.append(f"{share} % of its lag is in one partition, {topic}-{index}: look at the keys, and at its member.")
    lost = [topic for topic in group.topics if topic not in snapshot.topics]
    if lost:
        found.append(f"It has offsets for what is not there any more: {', '.join(lost[:_EXAMPLES])}.")
    dead = [topic for topic in group.topics if topic in snapshot.topics and snapshot.topics[topic].leaderless]
    if dead:
        found.append(f"Partitions without a leader cannot be read: {', '.join(dead[:_EXAMPLES])}.")
    return found


def _names(found: Sequence[Topic | Group]) -> str:
    names = [each.name for each in found[:_EXAMPLES]]
    return ", ".join(names) + ("…" if len(found) > _EXAMPLES else "")


def _have(count: int) -> str:
    return "has" if count == 1 else "have"
