"""`moldau reassign …`: move replicas between brokers: plan, run with a throttle, watch, cancel, drain a broker."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moldau.cli.failure import ExitCode, code_of, counted, fail, misused, tell
from moldau.cli.frame import Commands, Output, Target
from moldau.cli.output import size
from moldau.cli.reassigning import (
    Ongoing,
    Place,
    Placement,
    as_json,
    current_placement,
    differing,
    ongoing,
    read_plan,
    spread,
    submit,
    write_plan,
)

if TYPE_CHECKING:
    from moldau.client.admin import Admin

app = Commands(help="Move replicas between brokers: plan, run, status, cancel, drain.")

Throttle = Annotated[
    int | None, typer.Option("--throttle", metavar="BYTES", min=1, help="At most so many bytes a second and broker.")
]
Wait = Annotated[bool, typer.Option("--wait", help="Until all is done; takes the throttle off afterwards.")]
_RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
_REPLICAS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
_BROKER, _TOPIC = 4, 2
_POLL_SECONDS = 0.5


def _brokers(text: str) -> list[int]:
    try:
        return sorted({int(each) for each in text.split(",")})
    except ValueError:
        misused(f"--brokers {text}: write ids with commas, as 1,2,3")


def _alive(admin: Admin, wanted: Iterable[int] | None) -> tuple[list[int], dict[int, str | None]]:
    racks = {each.node_id: each.rack for each in admin.metadata([]).brokers}
    missing = sorted(set(wanted or ()) - set(racks))
    if missing:
        fail(f"there is no broker {missing[0]} now; there are {', '.join(map(str, sorted(racks)))}", ExitCode.NOT_FOUND)
    return sorted(wanted or racks), racks


@app.command(
    examples=(
        "reassign plan orders --brokers 2,3 --plan go.json --rollback back.json",
        "reassign run go.json --throttle 10000000 --wait",
    ),
)
def plan(
    target: Target,
    output: Output,
    topics: Annotated[list[str] | None, typer.Argument(metavar="TOPIC...", help="All topics, if none named.")] = None,
    brokers: Annotated[
        str | None, typer.Option("--brokers", metavar="1,2,3", help="On these; on all, if not said.")
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option("--replication-factor", "-r", min=1, help="So many replicas, instead of as many as now."),
    ] = None,
    file: Annotated[Path | None, typer.Option("--plan", metavar="FILE", help="Write the plan there.")] = None,
    rollback: Annotated[
        Path | None, typer.Option("--rollback", metavar="FILE", help="Write there how it is now, to go back.")
    ] = None,
) -> None:
    """Spread partitions over brokers, moving little. Changes nothing; `reassign run FILE` carries it out."""
    if rollback is not None and (rollback.exists() or rollback == file):
        misused(f"--rollback {rollback} would be overwritten, and may be the only way back: choose another file")
    with target.admin() as admin:
        chosen, racks = _alive(admin, _brokers(brokers) if brokers else None)
        before = current_placement(admin, topics or None)
    moves = differing(before, spread(before, chosen, racks, replication_factor))
    if file is not None:
        write_plan(file, moves)
    if rollback is not None:
        write_plan(rollback, {place: before[place] for place in moves})
    _show_moves(output, before, moves)


def _show_moves(output: Output, before: Mapping[Place, list[int]], moves: Placement) -> None:
    rows = [
        {"topic": place[0], "partition": place[1], "from": before.get(place, []), "to": replicas}
        for place, replicas in sorted(moves.items())
    ]
    output.show(rows, document=as_json(moves), empty="nothing needs to move")


@app.command(changes=True)
def run(
    target: Target,
    output: Output,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A plan, as Kafka's tools write it too.")],
    throttle: Throttle = None,
    wait: Wait = False,
) -> None:
    """Carry out a plan. Data moves in the background; `reassign status` shows how far it is."""
    wanted = read_plan(file)
    with target.admin() as admin:
        _alive(admin, sorted({each for replicas in wanted.values() for each in replicas}) or None)
        before = current_placement(admin, sorted({topic for topic, _ in wanted}))
        missing = sorted(set(wanted) - set(before))
        if missing:
            fail(f"there is no partition {missing[0][0]}-{missing[0][1]}", ExitCode.NOT_FOUND)
        _run(admin, output, before, differing(before, wanted), throttle, wait=wait)


def _run(
    admin: Admin, output: Output, before: Placement, moves: Placement, throttle: int | None, *, wait: bool
) -> None:
    _show_moves(output, before, moves)
    if not moves:
        return
    if throttle is not None:
        _throttle(admin, before, moves, throttle)
    refused = submit(admin, moves)
    for each in refused:
        tell(each)
    tell(f"{len(moves) - len(refused)} of {len(moves)} moves are under way")
    if wait:
        _wait(admin, moves)
        if throttle is not None:
            _unthrottle(admin, {topic for topic, _ in moves})
    elif throttle is not None:
        tell("the throttle stays until `moldau reassign unthrottle`")
    if refused:
        raise typer.Exit(ExitCode.FAILED)


@app.command(changes=True)
def drain(
    target: Target,
    output: Output,
    broker: Annotated[int, typer.Argument(metavar="ID", min=0, help="The broker to empty.")],
    execute: Annotated[bool, typer.Option("--execute", help="Do it; without, only the plan is shown.")] = False,
    file: Annotated[Path | None, typer.Option("--plan", metavar="FILE", help="Write the plan there.")] = None,
    throttle: Throttle = None,
    wait: Wait = False,
) -> None:
    """Move every replica off a broker, so that it can be stopped for good."""
    with target.admin() as admin:
        everybody, racks = _alive(admin, None)
        rest = [each for each in everybody if each != broker]
        before = current_placement(admin, None)
        touched = {place: replicas for place, replicas in before.items() if broker in replicas}
        if not touched and broker not in everybody:
            fail(f"there is no broker {broker}", ExitCode.NOT_FOUND)
        if not touched:
            tell(f"no replica is on broker {broker}")
            return
        if not rest:
            fail(f"broker {broker} is the only one: there is nobody to take over")
        short = [place for place, replicas in touched.items() if len(replicas) > len(rest)]
        if short:
            fail(
                f"{short[0][0]}-{short[0][1]} has {len(touched[short[0]])} replicas, and {len(rest)} brokers would be "
                "left: add a broker, or lower its replication factor with `reassign plan -r`"
            )
        moves = _without(touched, broker, rest, racks, before)
        if file is not None:
            write_plan(file, moves)
        if not execute:
            _show_moves(output, before, moves)
            tell("nothing was changed: add --execute to do it")
            return
        _run(admin, output, before, moves, throttle, wait=wait)


def _without(
    touched: Placement, broker: int, rest: list[int], racks: Mapping[int, str | None], before: Placement
) -> Placement:
    """Only the replicas on that broker go elsewhere, each to whoever has least."""
    load = dict.fromkeys(rest, 0)
    for replicas in before.values():
        for each in replicas:
            if each in load:
                load[each] += 1
    moves = {}
    for place, replicas in sorted(touched.items()):
        others = [each for each in replicas if each != broker]
        used = {racks.get(each) for each in others}
        best = min(
            (each for each in rest if each not in others),
            key=lambda each: (racks.get(each) is not None and racks.get(each) in used, load[each], each),
        )
        load[best] += 1
        moves[place] = [best if each == broker else each for each in replicas]
    return moves


@app.command(watchable=True)
def status(target: Target, output: Output) -> None:
    """What is moving, and how much of it has arrived."""
    with target.admin() as admin:
        rows = _progress(admin, ongoing(admin))
    if output.is_for_people:
        rows = [row | {name: size(row[name]) for name in ("bytes", "arrived")} for row in rows]
    output.show(rows, empty="nothing is moving")


def _progress(admin: Admin, moving: Mapping[Place, Ongoing]) -> list[dict[str, Any]]:
    from moldau.cli.log_dirs import replica_sizes

    if not moving:
        return []
    sizes = {
        (each.topic, each.partition, each.broker): each.size_bytes
        for each in replica_sizes(admin)
        if not each.is_future
    }
    rows = []
    for (topic, index), each in sorted(moving.items()):
        stays = [broker for broker in each.replicas if broker not in each.adding]
        whole = max((sizes.get((topic, index, broker), 0) for broker in stays), default=0)
        arrived = sum(min(whole, sizes.get((topic, index, broker), 0)) for broker in each.adding)
        total = whole * len(each.adding)
        rows.append(
            {
                "topic": topic,
                "partition": index,
                "adding": each.adding,
                "removing": each.removing,
                "bytes": total,
                "arrived": arrived,
                "percent": 100.0 if not total else round(100 * arrived / total, 1),
            }
        )
    return rows


def _wait(admin: Admin, moves: Placement) -> None:
    """With a bar on a terminal; Ctrl-C stops the waiting, not the moves."""
    import sys

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    shown = Progress(
        TextColumn("moving"), BarColumn(), TextColumn("{task.completed:.0f} of {task.total:.0f} partitions"),
        TimeElapsedColumn(), console=console, disable=not sys.stderr.isatty(),
    )  # fmt: skip
    try:
        with shown:
            task = shown.add_task("", total=len(moves))
            while True:
                left = len(set(ongoing(admin)) & set(moves))
                shown.update(task, completed=len(moves) - left)
                if not left:
                    break
                time.sleep(_POLL_SECONDS)  # moves can only be asked about
    except KeyboardInterrupt:
        tell("the moves go on; `moldau reassign status` shows how far, `moldau reassign cancel` takes them back")
        raise
    tell("all moves are done")


@app.command(changes=True)
def cancel(
    target: Target,
    output: Output,
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="Only the moves of this plan.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All moves under way.")] = False,
) -> None:
    """Take moves back: replicas are where they were before."""
    if (file is None) != everything:
        misused("say which moves: a plan FILE, or --all")
    wanted = None if file is None else set(read_plan(file))
    with target.admin() as admin:
        moving = {place for place in ongoing(admin) if wanted is None or place in wanted}
        refused = submit(admin, dict.fromkeys(moving)) if moving else []
    for each in refused:
        tell(each)
    done = len(moving) - len(refused)
    output.done(f"cancelled {counted(done, 'move')}", {"cancelled": done, "refused": len(refused)})
    if refused:
        raise typer.Exit(ExitCode.FAILED)


@app.command(changes=True)
def unthrottle(
    target: Target,
    output: Output,
    topics: Annotated[list[str] | None, typer.Argument(metavar="TOPIC...", help="All topics, if none named.")] = None,
) -> None:
    """Take a reassignment's throttle off brokers and topics."""
    with target.admin() as admin:
        chosen = set(topics) if topics else {topic for topic, _ in current_placement(admin, None)}
        _unthrottle(admin, chosen)
    output.done("unthrottled", {"topics": sorted(chosen), "result": "unthrottled"})


def _throttle(admin: Admin, before: Placement, moves: Placement, rate: int) -> None:
    """As KIP-73 has it: who sends and who receives, by topic, and the rate of each broker concerned."""
    topics = {topic for topic, _ in moves}
    # A topic has one list: what moves there already stays in it. And what is just arriving has nothing to send.
    moving = {place: each for place, each in ongoing(admin).items() if place[0] in topics}
    there = {place: [each for each in was.replicas if each not in was.adding] for place, was in moving.items()}
    there |= {place: there.get(place, before[place]) for place in moves}
    wanted = {place: each.adding for place, each in moving.items()} | moves
    receivers = {place: [each for each in wanted[place] if each not in there[place]] for place in wanted}
    brokers = {each for place in wanted for each in (*there[place], *receivers[place])}
    resources: list[tuple[int, str, dict[str, str | None]]] = []
    resources += [(_BROKER, str(each), dict.fromkeys(_RATES, str(rate))) for each in sorted(brokers)]
    for topic in sorted(topics):
        lists = (_spelled(each, topic) for each in (there, receivers))
        resources.append((_TOPIC, topic, dict(zip(_REPLICAS, lists, strict=True))))
    _alter(admin, resources)


def _spelled(replicas: Mapping[Place, Sequence[int]], topic: str) -> str:
    """As `leader.replication.throttled.replicas` has them: `0:1,0:2`."""
    return ",".join(f"{place[1]}:{each}" for place in sorted(replicas) if place[0] == topic for each in replicas[place])


def _unthrottle(admin: Admin, topics: Iterable[str]) -> None:
    admin.metadata([])
    resources: list[tuple[int, str, dict[str, str | None]]] = []
    resources += [(_BROKER, str(each), dict.fromkeys(_RATES)) for each in sorted(admin.brokers)]
    resources += [(_TOPIC, topic, dict.fromkeys(_REPLICAS)) for topic in sorted(topics)]
    _alter(admin, resources)


def _alter(admin: Admin, resources: list[tuple[int, str, dict[str, str | None]]]) -> None:
    from moldau.client.connection import BrokerError
    from moldau.wire.messages import IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse

    request = IncrementalAlterConfigsRequest
    for kind, name, settings in resources:
        rows = [
            request.AlterableConfig(name=key, config_operation=0 if value is not None else 1, value=value)
            for key, value in settings.items()
        ]
        asked = request(resources=[request.AlterConfigsResource(resource_type=kind, resource_name=name, configs=rows)])
        if kind == _BROKER:  # only the broker itself takes its settings
            answer = admin.ask_broker(int(name), asked, IncrementalAlterConfigsResponse)
        else:
            answer = admin.ask(asked, IncrementalAlterConfigsResponse)
        for each in answer.responses:
            if each.error_code:
                reason = each.error_message or BrokerError(each.error_code, each.resource_name)
                fail(f"the throttle: {reason}", code_of(each.error_code))
