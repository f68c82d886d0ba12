"""`moldau dlq list|show|redrive`: dead letters by reason, one from the inside, and the way back; on any cluster."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moldau.cli.failure import counted, misused
from moldau.cli.frame import Commands, Output, Target
from moldau.cli.harmless import harmless, harmless_cell

if TYPE_CHECKING:
    from moldau.toolkit.dead_letters import Letter, Reason

app = Commands(help="Look into dead letters, and send them back.")

Topic = Annotated[str, typer.Argument(help="The dead-letter topic, or the topic it belongs to.")]


def _name(topic: str) -> str:
    return topic if topic.endswith("-dlt") else f"{topic}-dlt"


@app.command("list")
def list_letters(target: Target, output: Output, topic: Topic) -> None:
    """The reasons, the most frequent first, each with a letter to look into."""
    from moldau.toolkit.dead_letters import by_reason, letters_in, redriven_ids

    target.reach()
    config = target.librdkafka()
    found = list(letters_in(config, _name(topic)))
    done = redriven_ids(config, _name(topic))
    back = sum(letter.id in done for letter in found)
    reasons = by_reason(found)
    if output.is_for_scripts:
        rows = [_summary(each) for each in reasons]
        output.show(rows, document={"topic": _name(topic), "letters": len(found), "sent_back": back, "reasons": rows})
        return
    typer.echo(f"{_name(topic)}: {counted(len(found), 'letter')}, {back} of them sent back")
    for reason in reasons:
        typer.echo(harmless_cell(f"{reason.count:>8}  {reason.name}: {reason.example.error[:120]}"))
        typer.echo(f"          moldau dlq show {_name(topic)} {reason.example.partition}:{reason.example.offset}")


def _summary(reason: Reason) -> dict[str, Any]:
    return {
        "reason": reason.name,
        "letters": reason.count,
        "error": reason.example.error,
        "example": f"{reason.example.partition}:{reason.example.offset}",
        "first_ms": reason.first_ms,
        "last_ms": reason.last_ms,
    }


@app.command()
def show(
    target: Target,
    output: Output,
    topic: Topic,
    letter: Annotated[str, typer.Argument(help="Its id, or partition:offset in the dead-letter topic.")],
    raw: Annotated[bool, typer.Option("--raw", help="Only the value, byte for byte.")] = False,
) -> None:
    """One letter: where it came from, why it died, what is in it."""
    from moldau.toolkit.dead_letters import find_letter

    target.reach()
    found = find_letter(target.librdkafka(), _name(topic), letter)
    if raw:
        sys.stdout.buffer.write(found.value or b"")
        return
    if output.is_for_scripts:
        output.done("", _document(found))
    else:
        _print(found)


def _document(letter: Letter) -> dict[str, Any]:
    """Bytes as `consume --json` shows them."""
    from moldau.cli.record_forms import as_json
    from moldau.toolkit import letters

    origin = letter.origin
    return {
        "id": letter.id,
        "topic": origin.topic,
        "partition": origin.partition,
        "offset": origin.offset,
        "group": letter.group or None,
        "attempts": letter.attempts,
        "reason": letter.reason,
        "error": letter.error,
        "key": as_json(letter.key),
        "value": as_json(letter.value),
        "headers": [[name, as_json(value)] for name, value in letters.foreign(letter.headers)],
        "stacktrace": letter.stacktrace or None,
    }


def _print(letter: Letter) -> None:
    from moldau.toolkit import letters

    origin = letter.origin
    typer.echo(harmless_cell(f"id        {letter.id}"))
    typer.echo(harmless_cell(f"from      {origin.topic}, partition {origin.partition}, offset {origin.offset}"))
    typer.echo(harmless_cell(f"group     {letter.group or '-'}"))
    typer.echo(f"attempts  {letter.attempts}")
    typer.echo(harmless(f"error     {letter.reason}: {letter.error}"))
    typer.echo(f"key       {letter.key!r}")
    typer.echo(f"value     {letter.value!r}")
    for name, value in letters.foreign(letter.headers):
        typer.echo(harmless_cell(f"header    {name}: {value!r}"))
    if letter.stacktrace:
        typer.echo(harmless(letter.stacktrace))


@app.command(changes=True)
def redrive(
    target: Target,
    output: Output,
    topic: Topic,
    ids: Annotated[list[str] | None, typer.Option("--id", help="A letter's id; may be repeated.")] = None,
    reason: Annotated[str | None, typer.Option(help="Letters whose error has this text.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All letters.")] = False,
    to: Annotated[str | None, typer.Option(help="Another topic than the one they came from.")] = None,
    rate: Annotated[float | None, typer.Option(help="At most so many a second.")] = None,
) -> None:
    """Send letters back, none of them twice; what was done is on the topic `…-dlt-redriven`."""
    from moldau.toolkit.dead_letters import redrive as send_back

    if sum((bool(ids), reason is not None, everything)) != 1:
        misused("say which letters: --id ID, --reason TEXT or --all")
    if rate is not None and rate <= 0:
        misused("--rate is above zero")
    wanted = set(ids or ())

    def choose(letter: Letter) -> bool:
        if reason is not None:
            return reason in f"{letter.reason}: {letter.error}"
        return everything or bool(wanted & {letter.id, letter.origin.id, f"{letter.partition}:{letter.offset}"})

    target.reach()
    done = send_back(target.librdkafka(), _name(topic), choose, to=to, rate=rate)
    output.done(
        f"{done.sent} sent back, {done.skipped} were before, {done.left} left",
        {"sent": done.sent, "sent_before": done.skipped, "left": done.left},
    )
