"""Where replicas should be: Kafka's JSON plans, a fair placement, and what is under way.

The placement moves little: a replica that may stay stays, each broker gets its fair share of replicas and of leaders,
and racks are kept apart as far as there are enough of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from moldau.cli.failure import ExitCode, fail, misused

if TYPE_CHECKING:
    from moldau.client.admin import Admin

Place = tuple[str, int]
Placement = dict[Place, list[int]]


class Ongoing(NamedTuple):
    replicas: list[int]
    adding: list[int]
    removing: list[int]


def current_placement(admin: Admin, topics: Iterable[str] | None) -> Placement:
    """All topics, the internal ones too, if none are named."""
    found = admin.metadata(topics)
    placement = {}
    for topic in found.topics:
        if topic.error_code:
            fail(f"no such topic: {topic.name} (`moldau topic list` shows what there is)", ExitCode.NOT_FOUND)
        for row in topic.partitions:
            placement[str(topic.name), row.partition_index] = list(row.replica_nodes)
    return placement


def spread(
    placement: Mapping[Place, Sequence[int]],
    brokers: Sequence[int],
    racks: Mapping[int, str | None],
    copies: int | None = None,
) -> Placement:
    """The same partitions on these brokers."""
    wanted = {place: copies or len(replicas) for place, replicas in placement.items()}
    most = max(wanted.values(), default=0)
    if most > len(brokers):
        misused(f"{most} replicas need {most} brokers, and there are {len(brokers)}: {', '.join(map(str, brokers))}")
    found: Placement = {}
    load = dict.fromkeys(brokers, 0)
    for place in sorted(placement):
        found[place] = [each for each in placement[place] if each in load][: wanted[place]]
        for each in found[place]:
            load[each] += 1
    for place, chosen in found.items():
        while len(chosen) < wanted[place]:
            used = {racks.get(each) for each in chosen}
            broker = min(
                (each for each in brokers if each not in chosen),
                key=lambda each: (racks.get(each) is not None and racks.get(each) in used, load[each], each),
            )
            chosen.append(broker)
            load[broker] += 1
    _level(found, load, racks)
    _share_leaders(found, brokers)
    return found


def _level(found: Placement, load: dict[int, int], racks: Mapping[int, str | None]) -> None:
    """From who has most to who has least, a replica at a time, as long as that makes it fairer."""
    while True:
        move = next(_fairer(found, load, racks), None)
        if move is None:
            return
        place, giver, taker = move
        found[place][found[place].index(giver)] = taker
        load[giver] -= 1
        load[taker] += 1


def _fairer(
    found: Placement, load: Mapping[int, int], racks: Mapping[int, str | None]
) -> Iterator[tuple[Place, int, int]]:
    by_load = sorted(load, key=lambda each: (load[each], each))
    for giver in reversed(by_load):
        for taker in by_load:
            if load[giver] - load[taker] < 2:
                break
            for place, chosen in found.items():
                others = {racks.get(each) for each in chosen if each != giver} - {None}
                if giver in chosen and taker not in chosen and racks.get(taker) not in others:
                    yield place, giver, taker


def _share_leaders(found: Placement, brokers: Sequence[int]) -> None:
    """The first replica of each is its preferred leader: nobody should be it much more often than others."""
    leads = dict.fromkeys(brokers, 0)
    fair = -(-len(found) // len(brokers)) if brokers else 0
    for chosen in found.values():
        if leads[chosen[0]] >= fair:
            best = min(chosen, key=lambda each: (leads[each], chosen.index(each)))
            chosen.remove(best)
            chosen.insert(0, best)
        leads[chosen[0]] += 1


def differing(before: Mapping[Place, Sequence[int]], after: Placement) -> Placement:
    return {place: replicas for place, replicas in after.items() if list(before.get(place, ())) != replicas}


def as_json(placement: Placement) -> dict[str, Any]:
    """As Kafka's kafka-reassign-partitions reads and writes it."""
    rows = [
        {"topic": topic, "partition": index, "replicas": replicas}
        for (topic, index), replicas in sorted(placement.items())
    ]
    return {"version": 1, "partitions": rows}


def write_plan(file: Path, placement: Placement) -> None:
    try:
        file.write_text(json.dumps(as_json(placement), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        misused(f"cannot write {file}: {error.strerror}")


def read_plan(file: Path) -> Placement:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        rows = found["partitions"]
        plan = {(str(row["topic"]), int(row["partition"])): [int(each) for each in row["replicas"]] for row in rows}
    except OSError as error:
        misused(f"cannot read {file}: {error.strerror}")
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        misused(
            f'{file} is no plan ({type(error).__name__}: {error}): write {{"version": 1, "partitions": '
            '[{"topic": "t", "partition": 0, "replicas": [1, 2]}]}'
        )
    doubled = [place for place, replicas in plan.items() if len(set(replicas)) < len(replicas) or not replicas]
    if doubled or len(plan) < len(rows):
        where = doubled[0] if doubled else ("a partition", "named twice")
        misused(f"{file}: {where[0]}-{where[1]} has no replicas, or the same one twice")
    return plan


def ongoing(admin: Admin) -> dict[Place, Ongoing]:
    from moldau.client.connection import BrokerError
    from moldau.wire.messages import ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse

    answer = admin.ask(ListPartitionReassignmentsRequest(topics=None), ListPartitionReassignmentsResponse)
    if answer.error_code:
        raise BrokerError(answer.error_code, "reassignments")
    return {
        (topic.name, row.partition_index): Ongoing(
            list(row.replicas), list(row.adding_replicas), list(row.removing_replicas)
        )
        for topic in answer.topics
        for row in topic.partitions
    }


def submit(admin: Admin, placement: Mapping[Place, list[int] | None]) -> list[str]:
    """Begin moves; None cancels one. What was refused, and why."""
    from moldau.client.connection import BrokerError
    from moldau.wire.messages import AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse

    request = AlterPartitionReassignmentsRequest
    by_topic: dict[str, list[Any]] = {}
    for (topic, index), replicas in sorted(placement.items()):
        row = request.ReassignablePartition(partition_index=index, replicas=replicas)
        by_topic.setdefault(topic, []).append(row)
    topics = [request.ReassignableTopic(name=name, partitions=rows) for name, rows in by_topic.items()]
    answer = admin.ask(request(topics=topics), AlterPartitionReassignmentsResponse)
    if answer.error_code:
        raise BrokerError(answer.error_code, "reassignments")
    return [
        f"{topic.name}-{row.partition_index}: {row.error_message or BrokerError(row.error_code, 'refused')}"
        for topic in answer.responses
        for row in topic.partitions
        if row.error_code
    ]
