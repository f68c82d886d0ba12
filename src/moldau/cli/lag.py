"""`moldau lag`: how far groups are behind, where they are going, and whether somebody should look."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from moldau.cli.failure import ExitCode, fail, misused
from moldau.cli.frame import Commands, Output, Target

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.table import Table

    from moldau.toolkit.lag import PartitionLag


app = Commands()


@app.command()
def lag(
    target: Target,
    output: Output,
    groups: Annotated[
        list[str] | None, typer.Argument(metavar="GROUP...", help="All groups, if none are named.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Measure again and again, until stopped.")] = False,
    every: Annotated[float, typer.Option(help="Seconds between two measurements.")] = 5.0,
    window: Annotated[int, typer.Option(help="Measurements the judgement is made over.")] = 10,
    command: Annotated[
        str | None, typer.Option("--alert-command", help="Run this when a judgement changes; JSON on its input.")
    ] = None,
    webhook: Annotated[
        str | None, typer.Option("--alert-webhook", metavar="URL", help="POST JSON there when a judgement changes.")
    ] = None,
) -> None:
    """Lag per partition in records and seconds, its trend, and a judgement: ok, slow, stalled, stopped.

    One measurement shows numbers; the judgement wants a few: use --watch.
    """
    import shlex

    if every <= 0 or window < 1:
        misused("--every is above zero, and --window at least 1")

    from moldau.toolkit.lag import LagMonitor, command_alert, webhook_alert

    alerts = [command_alert(shlex.split(command))] if command else []
    alerts += [webhook_alert(webhook)] if webhook else []
    target.reach()
    monitor = LagMonitor(target.librdkafka(), groups or (), window=window, alerts=alerts)
    if not watch:
        measured = monitor.measure()
        missing = sorted(set(groups or ()) - {each.group for each in measured})
        if measured or not missing:
            _show(output, measured)
        if missing:
            fail(f"{', '.join(missing)}: no such group has committed an offset", ExitCode.NOT_FOUND)
        return
    _watch(output, monitor.measure, every)


def _watch(output: Output, measure: Callable[[], list[PartitionLag]], every: float) -> None:
    """Until Ctrl-C. In place on a terminal, table after table elsewhere; a cluster that is away is waited for."""
    from rich.console import Console
    from rich.live import Live

    console = Console()
    try:
        if not output.is_for_people:
            while True:
                _try(lambda: _show(output, measure()))
                sys.stdout.flush()
                time.sleep(every)  # what --every says
        with Live(console=console, auto_refresh=False) as live:
            while True:
                _try(lambda: live.update(_table(measure()), refresh=True))
                time.sleep(every)  # what --every says
    except KeyboardInterrupt:
        return


def _try(look: Callable[[], None]) -> None:
    from moldau.client.connection import ClientError

    try:
        look()
    except ClientError as error:
        reason = str(error)
        typer.echo(f"moldau: {reason}; trying on", err=True)


def _show(output: Output, states: Sequence[PartitionLag]) -> None:
    rows = [
        {
            "group": state.group,
            "topic": state.topic,
            "partition": state.partition,
            "committed": state.committed,
            "end": state.end,
            "lag": state.lag,
            "seconds": None if state.seconds is None else round(state.seconds, 1),
            "trend_per_second": round(state.trend, 1),
            "members": state.members,
            "state": state.judgement,
        }
        for state in states
    ]
    output.show(rows, empty="no group has committed an offset")


def _table(states: Sequence[PartitionLag]) -> Table:
    from rich.table import Table

    table = Table()
    for column in ("group", "topic", "partition", "committed", "end", "lag", "seconds", "trend/s", "members", "is"):
        table.add_column(column, justify="left" if column in ("group", "topic", "is") else "right")
    for state in states:
        table.add_row(
            state.group,
            state.topic,
            str(state.partition),
            str(state.committed),
            str(state.end),
            str(state.lag),
            "?" if state.seconds is None else f"{state.seconds:.1f}",
            f"{state.trend:+.1f}",
            str(state.members),
            state.judgement,
        )
    return table
