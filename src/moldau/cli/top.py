"""`moldau top`: a cluster at a glance, again and again: traffic by topic, lag by group, brokers, what is wrong."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moldau.cli.failure import ExitCode, counted, explain, misused
from moldau.cli.frame import Commands, Output, Target
from moldau.cli.group_views import committed
from moldau.cli.log_dirs import replica_sizes
from moldau.cli.output import size
from moldau.cli.places import Place, offsets_at
from moldau.cli.target import TIMEOUT_SECONDS

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from moldau.client.admin import Admin

app = Commands()
_EVERY_MIN = 0.2


@dataclass(slots=True, frozen=True)
class Sample:
    """What was seen at one time."""

    at: float
    ends: dict[Place, int]
    bytes: dict[str, int]
    committed: dict[str, dict[Place, int]]
    brokers: int
    partitions: int
    under_replicated: int
    offline: int


@app.command()
def top(
    target: Target,
    output: Output,
    every: Annotated[float, typer.Option("--every", "-i", metavar="SECONDS", help="Between two looks.")] = 2.0,
    count: Annotated[int | None, typer.Option("--count", "-c", min=1, help="So many looks, then end.")] = None,
    rows: Annotated[int, typer.Option("--rows", "-n", min=1, help="Topics and groups shown, the busiest first.")] = 12,
    internal: Annotated[bool, typer.Option("--internal", help="Also topics the cluster keeps for itself.")] = False,
) -> None:
    """Live view: records and bytes a second by topic, lag by group, brokers, and what is wrong. Ctrl-C ends it."""
    if every < _EVERY_MIN:
        misused(f"--every {every:g}: at least {_EVERY_MIN} seconds")
    admin = target.admin_client()
    with target.admin() as asking:
        before = _sample(admin, asking, internal=internal)
        if not output.is_for_people:
            seen = 0
            while count is None or seen < count:
                time.sleep(every)  # what --every says
                now = _sample(admin, asking, internal=internal)
                _show(output, before, now, rows)
                sys.stdout.flush()
                before, seen = now, seen + 1
            return
        _live(target, admin, asking, before, every, count, rows, internal=internal)


def _live(
    target: Target,
    admin: AdminClient,
    asking: Admin,
    before: Sample,
    every: float,
    count: int | None,
    rows: int,
    *,
    internal: bool,
) -> None:
    import io

    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    screen = Console()
    seen = 0
    with Live(console=screen, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        live.update(Text("looking…"), refresh=True)
        while count is None or seen < count:
            time.sleep(every)  # what --every says
            page = io.StringIO()
            console = Console(file=page, force_terminal=True, width=screen.width, color_system="standard")
            try:
                now = _sample(admin, asking, internal=internal)
                _show(Output(console=console), before, now, rows)
                before = now
            except Exception as error:
                explained = explain(error, target.bootstrap_servers)
                if explained is None or explained.code != ExitCode.UNREACHABLE:
                    raise
                asking.close()
                console.print(explained.message, style="red")
            live.update(Text.from_ansi(page.getvalue()), refresh=True)
            seen += 1


def _sample(admin: AdminClient, asking: Admin, *, internal: bool) -> Sample:
    found = admin.list_topics(timeout=TIMEOUT_SECONDS)
    names = [name for name in found.topics if internal or not name.startswith("__")]
    partitions = [each for topic in found.topics.values() for each in topic.partitions.values()]
    places = [
        (name, index) for name in names for index, row in found.topics[name].partitions.items() if row.leader >= 0
    ]
    sizes: dict[str, int] = {}
    for replica in replica_sizes(asking):
        sizes[replica.topic] = sizes.get(replica.topic, 0) + replica.size_bytes
    groups = admin.list_consumer_groups(request_timeout=TIMEOUT_SECONDS).result(TIMEOUT_SECONDS).valid or ()
    return Sample(
        time.monotonic(),
        dict(offsets_at(admin, places, "latest")),
        sizes,
        {each.group_id: committed(admin, each.group_id) for each in groups},
        len(found.brokers),
        len(partitions),
        sum(len(each.isrs) < len(each.replicas) for each in partitions),
        sum(each.leader < 0 for each in partitions),
    )


def topic_rows(before: Sample, now: Sample) -> list[dict[str, Any]]:
    seconds = max(0.001, now.at - before.at)
    totals: dict[str, float] = {}
    for place, end in now.ends.items():
        totals[place[0]] = totals.get(place[0], 0) + end - before.ends.get(place, end)
    return sorted(
        (
            {
                "topic": name,
                "records_per_second": round(count / seconds, 1),
                "bytes_per_second": round(max(0, now.bytes.get(name, 0) - before.bytes.get(name, 0)) / seconds),
                "bytes": now.bytes.get(name, 0),
            }
            for name, count in totals.items()
        ),
        key=lambda row: (-float(row["records_per_second"]), -int(row["bytes"]), str(row["topic"])),
    )


def group_rows(before: Sample, now: Sample) -> list[dict[str, Any]]:
    seconds = max(0.001, now.at - before.at)
    rows = []
    for group, offsets in now.committed.items():
        former = before.committed.get(group, {})
        read = sum(max(0, offset - former.get(place, offset)) for place, offset in offsets.items())
        lag = sum(max(0, now.ends[place] - offset) for place, offset in offsets.items() if place in now.ends)
        was = sum(max(0, before.ends[place] - offset) for place, offset in former.items() if place in before.ends)
        rows.append(
            {
                "group": group,
                "lag": lag,
                "lag_per_second": round((lag - was) / seconds, 1),
                "records_per_second": round(read / seconds, 1),
            }
        )
    return sorted(rows, key=lambda row: (-int(str(row["lag"])), str(row["group"])))


def _show(output: Output, before: Sample, now: Sample, most: int) -> None:
    topics, groups = topic_rows(before, now), group_rows(before, now)
    wrong = now.under_replicated or now.offline
    head = f"{time.strftime('%H:%M:%S')}  {counted(now.brokers, 'broker')}, {counted(now.partitions, 'partition')}, "
    head += f"{now.under_replicated} under-replicated, {now.offline} offline" + ("  !" if wrong else "")
    document = {
        "brokers": now.brokers,
        "partitions": now.partitions,
        "under_replicated": now.under_replicated,
        "offline": now.offline,
        "topics": topics,
        "groups": groups,
    }
    shown = topics[:most]
    if output.is_for_people:
        shown = [row | {name: size(row[name]) for name in ("bytes_per_second", "bytes")} for row in shown]
    if not output.as_json and output.template is None:
        output.line(head)
    output.sections([("", shown), *([("", groups[:most])] if groups else [])], document=document)
