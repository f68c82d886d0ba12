"""`moldau trace ID`: the story of one message, from its sending to its end."""

from __future__ import annotations

from typing import Annotated

import typer

from moldau.cli.failure import ExitCode, fail
from moldau.cli.frame import Commands, Output, Target
from moldau.cli.harmless import harmless_cell
from moldau.cli.places import show_time

app = Commands()


@app.command()
def trace(
    target: Target,
    output: Output,
    message: Annotated[str, typer.Argument(metavar="ID", help="The message's id: its header moldau-id.")],
    topic: Annotated[str, typer.Option(help="The trace topic of the apps.")] = "moldau-trace",
) -> None:
    """Where a message was produced, stored, consumed, by whom, and how often retried. Apps note it with trace=True."""
    from moldau.toolkit.errors import NotThere
    from moldau.toolkit.trace import story

    target.reach()
    try:
        steps = story(target.librdkafka(), message, topic)
    except NotThere as error:
        fail(f"{error}: start apps with App(…, trace=True)", ExitCode.NOT_FOUND)
    if not steps:
        fail(f"nothing is noted about {message}", ExitCode.NOT_FOUND)
    if output.is_for_scripts:
        output.show(
            [{"timestamp_ms": each.at_ms, "event": each.event, "details": dict(each.details)} for each in steps]
        )
        return
    for step in steps:
        at = show_time(step.at_ms) or step.at_ms
        details = " ".join(f"{name}={value}" for name, value in step.details.items())
        typer.echo(harmless_cell(f"{at}  {step.event:<13}  {details}"))
