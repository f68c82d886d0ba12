"""New offsets for a group: the plan, the file it can wait in, and carrying it out."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from moldau.cli.failure import explain_code, fail, misused, tell
from moldau.cli.frame import Target
from moldau.cli.places import Place, chosen, offsets_at, parse_time
from moldau.cli.target import TIMEOUT_SECONDS

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

Plan = dict[Place, int]


def make_plan(admin: AdminClient, before: Mapping[Place, int], topics: Sequence[str] | None, to: str) -> Plan:
    """Where each partition shall be read from; never outside of what the log holds."""
    found = admin.list_topics(timeout=TIMEOUT_SECONDS)
    known = {name: list(each.partitions) for name, each in found.topics.items()}
    places = chosen(known, topics) if topics else sorted(before)
    if to == "current":
        return {place: before[place] for place in places if place in before}
    first, last = offsets_at(admin, places, "earliest"), offsets_at(admin, places, "latest")
    if to == "earliest":
        return dict(first)
    if to == "latest":
        return dict(last)
    sign, digits = to[:1], to.lstrip("+-")
    if digits.isdecimal() and len(to) < 12:
        number = int(to)
        if sign in ("+", "-"):
            missing = [place for place in places if place not in before]
            if missing:
                misused(f"--to {to} begins at what is committed, and {missing[0][0]}-{missing[0][1]} has nothing")
            return {place: _within(before[place] + number, first[place], last[place]) for place in places}
        return {place: _within(number, first[place], last[place]) for place in places}
    since = offsets_at(admin, places, parse_time(to))
    return {place: since[place] if since[place] >= 0 else last[place] for place in places}


def held_to_the_log(admin: AdminClient, plan: Plan) -> Plan:
    """A plan from a file: it may be old, and written by hand."""
    found = admin.list_topics(timeout=TIMEOUT_SECONDS)
    known = {name: list(each.partitions) for name, each in found.topics.items()}
    places = chosen(known, [f"{topic}:{index}" for topic, index in sorted(plan)])
    first, last = offsets_at(admin, places, "earliest"), offsets_at(admin, places, "latest")
    held = {place: _within(plan[place], first[place], last[place]) for place in places}
    for place, offset in held.items():
        if offset != plan[place]:
            tell(f"{place[0]}-{place[1]} has no offset {plan[place]}: {offset} instead")
    return held


def _within(offset: int, first: int, last: int) -> int:
    return max(first, min(last, offset))


def write_plan(file: Path, plan: Plan) -> None:
    """As Kafka's own tool writes it with --export: topic,partition,offset."""
    try:
        with file.open("w", newline="", encoding="utf-8") as opened:
            csv.writer(opened).writerows((topic, index, offset) for (topic, index), offset in sorted(plan.items()))
    except OSError as error:
        misused(f"cannot write {file}: {error.strerror}")


def read_plan(file: Path) -> Plan:
    plan: Plan = {}
    try:
        with file.open(newline="", encoding="utf-8") as opened:
            for number, row in enumerate(csv.reader(opened), start=1):
                if not row:
                    continue
                if len(row) != 3 or not row[1].strip().isdecimal() or not row[2].strip().isdecimal():
                    misused(f"{file}, line {number}: write topic,partition,offset")
                plan[row[0].strip(), int(row[1])] = int(row[2])
    except OSError as error:
        misused(f"cannot read {file}: {error.strerror}")
    except (UnicodeDecodeError, csv.Error) as error:
        misused(f"{file} is no plan ({error}): write lines of topic,partition,offset")
    return plan


def apply(target: Target, admin: AdminClient, group: str, plan: Plan) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition

    if not plan:
        return
    places = [TopicPartition(topic, index, offset) for (topic, index), offset in plan.items()]
    (future,) = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, places)]).values()
    try:
        result = future.result(TIMEOUT_SECONDS)
    except KafkaException as error:
        code = error.args[0].code()
        if code in (error.args[0].UNKNOWN_MEMBER_ID, error.args[0].NON_EMPTY_GROUP):
            fail(f"{group} has members: stop them first, or they would go on as before")
        explained = explain_code(error.args[0], target.bootstrap_servers)
        fail(f"{group}: {explained.message}", explained.code)
    for place in result.topic_partitions or ():
        if place.error is not None:
            hint = ": stop its members first" if place.error.code() == place.error.UNKNOWN_MEMBER_ID else ""
            reason = place.error.str().removeprefix("Broker: ")
            fail(f"{group}, {place.topic}-{place.partition}: {reason}{hint}")
