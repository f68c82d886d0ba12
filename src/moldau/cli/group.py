"""`moldau group …`: list, describe, lag, members, reset, delete. On any cluster, and groups of every type it has."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moldau.cli.completing import complete_groups
from moldau.cli.failure import ExitCode, counted, fail, misused, one_of, tell
from moldau.cli.frame import Commands, Output, Target
from moldau.cli.group_views import SHARE, GroupView, all_groups, committed, lag_rows, seen, seen_if_there, spelled
from moldau.cli.places import Place
from moldau.cli.share_groups import forget, set_starts, starts_and_lags
from moldau.cli.target import TIMEOUT_SECONDS

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

app = Commands(help="Consumer groups: who reads what, how far behind, and where from.")

_STATES = (
    *("stable", "empty", "dead", "preparing-rebalance", "completing-rebalance"),
    *("assigning", "reconciling", "not-ready", "unknown"),
)
_READING = ("consumer", "", "share", "streams")  # protocols; of a group that only commits there is none
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
                "state": spelled(each.group_state) or "unknown",
                "protocol": each.protocol_type or None,
            }
            for _, each in all_groups(admin)
        ]
    rows = [
        row
        for row in sorted(rows, key=lambda row: str(row["group"]))
        if (state is None or row["state"] == state.lower()) and (kind is None or row["type"] == kind.lower())
    ]
    output.show(rows, empty="no groups")


def _with_offsets(target: Target) -> list[str]:
    """All groups that read topics: not those of Kafka Connect's workers."""
    with target.admin() as admin:
        return sorted(each.group_id for _, each in all_groups(admin) if each.protocol_type in _READING)


@app.command(watchable=True)
def describe(target: Target, output: Output, groups: Groups) -> None:
    """State, coordinator, members, and the lag of each partition."""
    admin = target.admin_client()
    parts: list[tuple[str, list[dict[str, Any]]]] = []
    document: list[dict[str, Any]] = []
    for name, each in seen(target, admin, groups).items():
        rows = lag_rows(target, admin, each)
        total = sum(row["lag"] or 0 for row in rows)
        broker, host, port = each.coordinator
        title = f"{name}: {each.state}, {each.type}, {counted(len(each.members), 'member')}, lag {total}, "
        title += f"assignor {each.assignor or '-'}, coordinator {broker} ({host}:{port})"
        parts.append((title, rows))
        document.append(
            {
                "group": name,
                "state": each.state,
                "type": each.type,
                "assignor": each.assignor,
                "coordinator": broker,
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
    names = list(groups) if groups else _with_offsets(target)
    rows = []
    behind: dict[str, int] = {}
    # One that goes while it is looked at is no mistake of who asked for all.
    look = seen if groups else seen_if_there
    for name, each in look(target, admin, names).items():
        by_topic: dict[str, list[dict[str, Any]]] = {}
        for row in lag_rows(target, admin, each):
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
            "member": member.id,
            "client": member.client,
            "instance": member.instance,
            "host": member.host,
            "partitions": [f"{topic}-{index}" for topic, index in member.places],
        }
        for name, each in seen(target, admin, groups).items()
        for member in sorted(each.members, key=lambda member: (member.client, member.id))
    ]
    output.show(rows, empty="nobody")


@app.command(
    changes=True,
    examples=(
        "group reset workers -t orders --to -1h --plan back.csv",
        "group reset workers --from-file back.csv --execute",
    ),
)
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
    from moldau.cli.group_reset import apply, held_to_the_log, make_plan, read_plan, write_plan

    if (to is None) == (from_file is None):
        misused("say where to: --to PLACE, or --from-file FILE")
    if to is not None and bool(topics) == all_topics:
        misused("say which: --topic TOPIC, or --all-topics")
    admin = target.admin_client()
    shared = _shared(target, admin, group)
    before = committed(admin, group) if shared is None else _starts(target, shared)
    if from_file is not None:
        wanted = held_to_the_log(admin, read_plan(from_file))
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
    if shared is None:
        apply(target, admin, group, wanted)
    elif wanted:
        with target.admin() as asking:
            set_starts(asking, shared.coordinator[0], group, wanted)
    tell(f"set {counted(len(wanted), 'offset')} of {group}")


def _shared(target: Target, admin: AdminClient, group: str) -> GroupView | None:
    """If it is a share group."""
    found = seen_if_there(target, admin, [group]).get(group)
    return found if found is not None and found.type == SHARE else None


def _starts(target: Target, shared: GroupView) -> dict[Place, int]:
    with target.admin() as asking:
        return starts_and_lags(asking, shared.coordinator[0], shared.name)[0]


@app.command("reset-streams", changes=True)
def reset_streams(
    target: Target,
    output: Output,
    application: Annotated[
        str, typer.Argument(metavar="APPLICATION", help="Its application.id.", autocompletion=complete_groups)
    ],
    topics: Annotated[
        list[str] | None,
        typer.Option("--topic", "-t", metavar="TOPIC[:0,1]", help="An input topic, read anew; may be repeated."),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="PLACE", help="Where input topics are read from; earliest, if not said."),
    ] = None,
    from_file: Annotated[
        Path | None,
        typer.Option("--from-file", metavar="FILE", help="Input topics in a file: topic,partition,offset."),
    ] = None,
    internal: Annotated[
        list[str] | None,
        typer.Option("--internal-topic", metavar="TOPIC", help="Delete only this one; may be repeated."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Remove members that are left over from processes that died.")
    ] = False,
    execute: Annotated[bool, typer.Option("--execute", help="Do it; without, only the plan is shown.")] = False,
) -> None:
    """Set a Kafka Streams application back: its offsets, and its internal topics, which are deleted. Stop it first.

    What it keeps on disk where it runs stays there: delete its state.dir, or let it call cleanUp().
    """
    from moldau.cli.group_reset import apply, held_to_the_log, make_plan, read_plan
    from moldau.cli.streams_reset import delete_topics, internal_topics, of_others, remove_members, require, rows_of

    if from_file is not None and topics:
        misused("--topic and --from-file: choose one")
    if to is not None and not topics:
        misused("--to says where the topics given with --topic are read from: name some")
    wanted = {} if from_file is None else read_plan(from_file)
    admin = target.admin_client()
    wanted = held_to_the_log(admin, wanted)
    found = seen_if_there(target, admin, [application]).get(application)
    before = {} if found is None else committed(admin, application)
    if topics:
        wanted = make_plan(admin, before, topics, to or "earliest")
    known = admin.list_topics(timeout=TIMEOUT_SECONDS).topics
    its_own = internal_topics(application, known, {name for name, _ in wanted})
    if internal:
        its_own = require(internal, its_own, application)
    else:
        with target.admin() as asking:
            others = of_others(application, its_own, [each.group_id for _, each in all_groups(asking)])
        for topic, group in others.items():
            tell(f"{topic} stays: it may be {group}'s; --internal-topic deletes it all the same")
        its_own = [each for each in its_own if each not in others]
    if found is None and not its_own and not wanted:
        fail(f"there is no group {application}, and no internal topic of it", ExitCode.NOT_FOUND)
    members = () if found is None else found.members
    output.show(
        rows_of(members if force else (), before, wanted, its_own), empty="nothing to reset: --topic names inputs"
    )
    if members and not force:
        running = ", ".join(sorted({f"{each.client} at {each.host}" for each in members}))
        advice = "stop it, or wait for its session timeout; --force removes what is left over of processes that died"
        if execute:
            fail(f"{application} has {counted(len(members), 'member')} ({running}): {advice}")
        tell(f"no reset is possible now: {counted(len(members), 'member')} ({running}): {advice}")
    if not execute:
        tell("nothing was changed: add --execute to do it")
        return
    if members:
        remove_members(target, application, members)
    apply(target, admin, application, wanted)
    delete_topics(target, admin, its_own)
    tell(f"set {counted(len(wanted), 'offset')} of {application}, deleted {counted(len(its_own), 'topic')}")


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

    client = target.admin_client()
    shared = _shared(target, client, group)
    offsets = committed(client, group) if shared is None else _starts(target, shared)
    places = [place for place in sorted(offsets) if place[0] in topics]
    if not places:
        fail(f"group {group} has no offsets for {', '.join(topics)}", ExitCode.NOT_FOUND)
    if shared is not None:
        with target.admin() as admin:
            forget(admin, shared.coordinator[0], group, sorted({topic for topic, _ in places}))
        output.show([{"topic": topic, "partition": index, "result": "deleted"} for topic, index in places])
        return
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
