"""`moldau group …`: list, describe, lag, members, reset, delete. Classic and new consumer groups, on any cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moldau.cli.completing import complete_groups
from moldau.cli.failure import ExitCode, counted, explain_code, fail, misused, one_of, tell
from moldau.cli.frame import Commands, Output, Target
from moldau.cli.places import Place, offsets_at
from moldau.cli.target import TIMEOUT_SECONDS

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ConsumerGroupDescription

    from moldau.client.admin import Admin

app = Commands(help="Consumer groups: who reads what, how far behind, and where from.")

_STATES = (
    *("stable", "empty", "dead", "preparing-rebalance", "completing-rebalance"),
    *("assigning", "reconciling", "not-ready", "unknown"),
)
_TYPES = ("classic", "consumer", "share", "streams", "unknown")
Group = Annotated[str, typer.Argument(metavar="GROUP", help="A group.", autocompletion=complete_groups)]
Groups = Annotated[list[str], typer.Argument(metavar="GROUP...", help="Groups.", autocompletion=complete_groups)]
SomeGroups = Annotated[
    list[str] | None,
    typer.Argument(metavar="GROUP...", help="All groups, if none are named.", autocompletion=complete_groups),
]


@app.command("list", watchable=True)
def list_groups(
    target: Target,
    output: Output,
    state: Annotated[
        str | None, typer.Option("--state", help="Only in this state: stable, empty, dead, preparing-rebalance…")
    ] = None,
    kind: Annotated[
        str | None, typer.Option("--type", help="Only of this type: classic, consumer, share, streams.")
    ] = None,
) -> None:
    """All groups, share groups and those of Streams among them."""
    one_of("--state", state, _STATES)
    one_of("--type", kind, _TYPES)
    with target.admin() as admin:
        rows = [
            {
                "group": each.group_id,
                "type": each.group_type.lower() or "unknown",
                "state": _state(each.group_state),
                "protocol": each.protocol_type or None,
            }
            for each in _all_groups(admin)
        ]
    rows = [
        row
        for row in sorted(rows, key=lambda row: row["group"])
        if (state is None or row["state"] == state.lower()) and (kind is None or row["type"] == kind.lower())
    ]
    output.show(rows, empty="no groups")


def _all_groups(admin: Admin) -> Iterator[Any]:
    from moldau.client.connection import BrokerError
    from moldau.wire.messages import ListGroupsRequest, ListGroupsResponse

    admin.metadata([])
    for broker in sorted(admin.brokers):
        answer = admin.ask_broker(broker, ListGroupsRequest(), ListGroupsResponse)
        if answer.error_code:
            raise BrokerError(answer.error_code, f"groups of broker {broker}")
        yield from answer.groups


def _state(name: str) -> str:
    """PreparingRebalance becomes preparing-rebalance."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower() or "unknown"


def _listed(admin: AdminClient) -> list[Any]:
    found = admin.list_consumer_groups(request_timeout=TIMEOUT_SECONDS).result(TIMEOUT_SECONDS)
    for error in found.errors or ():
        tell(f"not all brokers told their groups: {error}")
    return list(found.valid or ())


def _word(value: Any) -> str:
    """An enumeration's name as people write it."""
    return "unknown" if value is None else str(value.name).lower().replace("_", "-")


def described(target: Target, admin: AdminClient, groups: Sequence[str]) -> dict[str, ConsumerGroupDescription]:
    """Groups that exist; one that was named and does not is an error."""
    from confluent_kafka import KafkaException

    if not groups:
        return {}
    found = {}
    for name, future in admin.describe_consumer_groups(list(groups), request_timeout=TIMEOUT_SECONDS).items():
        try:
            description = future.result(TIMEOUT_SECONDS)
        except KafkaException as error:
            explained = explain_code(error.args[0], target.bootstrap_servers)
            fail(f"group {name}: {explained.message}", explained.code)
        if _word(description.state) == "dead":
            fail(f"there is no group {name} (`moldau group list` shows what there is)", ExitCode.NOT_FOUND)
        found[name] = description
    return found


def committed(admin: AdminClient, group: str) -> dict[Place, int]:
    from confluent_kafka import ConsumerGroupTopicPartitions

    (future,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    places = future.result(TIMEOUT_SECONDS).topic_partitions or ()
    return {(each.topic, each.partition): each.offset for each in places if each.offset >= 0}


def _assigned(member: Any) -> Any:
    return () if member.assignment is None else member.assignment.topic_partitions


def lag_rows(admin: AdminClient, description: ConsumerGroupDescription) -> list[dict[str, Any]]:
    """A row for each partition the group has committed or is assigned."""
    found = committed(admin, description.group_id)
    owners = {(place.topic, place.partition): member for member in description.members for place in _assigned(member)}
    places = sorted(set(found) | set(owners))
    known = admin.list_topics(timeout=TIMEOUT_SECONDS).topics
    there = [(topic, index) for topic, index in places if topic in known and index in known[topic].partitions]
    ends = offsets_at(admin, there, "latest")
    rows = []
    for place in places:
        offset, end, owner = found.get(place), ends.get(place), owners.get(place)
        rows.append(
            {
                "topic": place[0],
                "partition": place[1],
                "committed": offset,
                "end": end,
                "lag": None if offset is None or end is None else max(0, end - offset),
                "client": owner.client_id if owner else None,
                "host": owner.host.lstrip("/") if owner else None,
            }
        )
    return rows


@app.command(watchable=True)
def describe(target: Target, output: Output, groups: Groups) -> None:
    """State, coordinator, members, and the lag of each partition."""
    admin = target.admin_client()
    parts: list[tuple[str, list[dict[str, Any]]]] = []
    document: list[dict[str, Any]] = []
    for name, each in described(target, admin, groups).items():
        rows = lag_rows(admin, each)
        total = sum(row["lag"] or 0 for row in rows)
        at = f"{each.coordinator.id} ({each.coordinator.host}:{each.coordinator.port})"
        title = f"{name}: {_word(each.state)}, {_word(each.type)}, {len(each.members)} members, lag {total}, "
        title += f"assignor {each.partition_assignor or '-'}, coordinator {at}"
        parts.append((title, rows))
        document.append(
            {
                "group": name,
                "state": _word(each.state),
                "type": _word(each.type),
                "assignor": each.partition_assignor,
                "coordinator": each.coordinator.id,
                "members": len(each.members),
                "lag": total,
                "partitions": rows,
            }
        )
    flat = [{"group": each["group"], **row} for each in document for row in each["partitions"]]
    output.sections(parts, document=document, rows=flat)


@app.command(watchable=True)
def lag(
    target: Target,
    output: Output,
    groups: SomeGroups = None,
    most: Annotated[
        int | None, typer.Option("--max", metavar="N", min=0, help="Exit with 6 if a group is further behind.")
    ] = None,
) -> None:
    """How far behind groups are, a row for each group and topic. `moldau lag` also judges trends."""
    admin = target.admin_client()
    names = list(groups) if groups else sorted(each.group_id for each in _listed(admin))
    rows = []
    behind: dict[str, int] = {}
    for name, each in described(target, admin, names).items():
        by_topic: dict[str, list[dict[str, Any]]] = {}
        for row in lag_rows(admin, each):
            by_topic.setdefault(row["topic"], []).append(row)
        for topic, of_topic in sorted(by_topic.items()):
            total = sum(row["lag"] or 0 for row in of_topic)
            rows.append(
                {"group": name, "topic": topic, "partitions": len(of_topic), "members": len(each.members), "lag": total}
            )
            behind[name] = behind.get(name, 0) + total
    output.show(rows, empty="no group has committed an offset")
    late = {name: total for name, total in behind.items() if most is not None and total > most}
    if late:
        fail(
            f"behind by more than {most}: {', '.join(f'{name} {each}' for name, each in late.items())}",
            ExitCode.UNHEALTHY,
        )


@app.command(watchable=True)
def members(target: Target, output: Output, groups: Groups) -> None:
    """Who is in groups, and which partitions each member has."""
    admin = target.admin_client()
    rows = [
        {
            "group": name,
            "member": member.member_id,
            "client": member.client_id,
            "instance": member.group_instance_id,
            "host": member.host.lstrip("/"),
            "partitions": [f"{place.topic}-{place.partition}" for place in _assigned(member)],
        }
        for name, each in described(target, admin, groups).items()
        for member in sorted(each.members, key=lambda member: (member.client_id, member.member_id))
    ]
    output.show(rows, empty="nobody")


@app.command(changes=True)
def reset(
    target: Target,
    output: Output,
    group: Group,
    topics: Annotated[
        list[str] | None,
        typer.Option("--topic", "-t", metavar="TOPIC[:0,1]", help="A topic, or some of its partitions; repeatable."),
    ] = None,
    all_topics: Annotated[bool, typer.Option("--all-topics", help="Whatever the group has committed.")] = False,
    to: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="PLACE", help="earliest, latest, current, an offset, +N or -N from now, a time, -15m."
        ),
    ] = None,
    from_file: Annotated[
        Path | None, typer.Option("--from-file", metavar="FILE", help="The plan in this file: topic,partition,offset.")
    ] = None,
    plan: Annotated[
        Path | None, typer.Option("--plan", metavar="FILE", help="Write the plan there, for --from-file.")
    ] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Do it; without, only the plan is shown.")] = False,
) -> None:
    """Set where a group reads on. Shows the plan; --execute does it. The group must have no members meanwhile."""
    from moldau.cli.group_reset import apply, make_plan, read_plan, write_plan

    if (to is None) == (from_file is None):
        misused("say where to: --to PLACE, or --from-file FILE")
    if to is not None and bool(topics) == all_topics:
        misused("say which: --topic TOPIC, or --all-topics")
    admin = target.admin_client()
    before = committed(admin, group)
    if from_file is not None:
        wanted = read_plan(from_file)
    else:
        assert to is not None
        wanted = make_plan(admin, before, topics, to)
    rows = [
        {"topic": place[0], "partition": place[1], "from": before.get(place), "to": offset}
        for place, offset in sorted(wanted.items())
    ]
    output.show(rows, empty=f"{group} has committed nothing: name topics with --topic")
    if plan is not None:
        write_plan(plan, wanted)
    if not execute:
        tell("nothing was changed: add --execute to do it" + ("" if plan is None else f"; the plan is in {plan}"))
        return
    apply(target, admin, group, wanted)
    tell(f"set {counted(len(wanted), 'offset')} of {group}")


@app.command(changes=True)
def delete(target: Target, output: Output, groups: Groups) -> None:
    """Delete groups with their offsets. They must have no members."""
    from moldau.cli.topic import tell_each

    admin = target.admin_client()  # kept: a client that is gone takes its requests with it
    tell_each(target, output, admin.delete_consumer_groups(list(groups)), "deleted")


@app.command("delete-offsets", changes=True)
def delete_offsets(
    target: Target,
    output: Output,
    group: Group,
    topics: Annotated[list[str], typer.Option("--topic", "-t", metavar="TOPIC", help="A topic; may be repeated.")],
) -> None:
    """Forget a group's offsets for topics nobody of it reads any more."""
    from moldau.client.admin import GROUP
    from moldau.client.connection import BrokerError
    from moldau.wire.messages import OffsetDeleteRequest, OffsetDeleteResponse

    places = [place for place in sorted(committed(target.admin_client(), group)) if place[0] in topics]
    if not places:
        fail(f"group {group} has no offsets for {', '.join(topics)}", ExitCode.NOT_FOUND)
    request = OffsetDeleteRequest(
        group_id=group,
        topics=[
            OffsetDeleteRequest.OffsetDeleteRequestTopic(
                name=topic,
                partitions=[
                    OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=index)
                    for name, index in places
                    if name == topic
                ],
            )
            for topic in sorted({name for name, _ in places})
        ],
    )
    with target.admin() as admin:
        answer = admin.ask_coordinator(GROUP, group, request, OffsetDeleteResponse)
    if answer.error_code:
        raise BrokerError(answer.error_code, f"offsets of {group}")
    rows = []
    for each in answer.topics:
        for row in each.partitions:
            if row.error_code:
                raise BrokerError(row.error_code, f"offset of {group} for {each.name}-{row.partition_index}")
            rows.append({"topic": each.name, "partition": row.partition_index, "result": "deleted"})
    output.show(rows)
