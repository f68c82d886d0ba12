"""`moldau pipeline init|replay|backfill|redrive`: what is done to a pipeline beside running it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from moldau.cli.failure import ExitCode, counted, explain, fail, misused
from moldau.cli.frame import Target as Cluster
from moldau.cli.frame import with_target
from moldau.cli.harmless import harmless_cell
from moldau.cli.pipeline import Bootstrap, Environment, Settings, Target, _fail_with, _load, app, run_pipeline

From = Annotated[str, typer.Option("--from", metavar="TIME", help="Such as 2026-11-15T12:00:00Z, or earliest.")]
Until = Annotated[str, typer.Option("--until", metavar="TIME", help="Records of this time and later are left out.")]
Into = Annotated[str, typer.Option("--into", metavar="NAME", help="Sinks are called SINK-NAME, the pipeline too.")]
Master = Annotated[str | None, typer.Option("--master", help="Where Spark runs: local[*], spark://HOST:PORT…")]


@app.command()
@with_target
def init(
    cluster: Cluster,
    topic: Annotated[str, typer.Option("--topic", prompt="Which topic does it read?", help="A sample is looked at.")],
    name: Annotated[str, typer.Option("--name", prompt="What is the pipeline called?", help="Its name.")],
    file: Annotated[Path | None, typer.Option("--file", help="Without it, NAME.yaml.")] = None,
) -> None:
    """Write a new pipeline file from a sample of a topic: its schema as it is found."""
    from moldau.client.connection import ClientError
    from moldau.client.sasl import AuthenticationFailed
    from moldau.spark.options import OptionError
    from moldau.spark.pipelines import PipelineError, loads, validate
    from moldau.spark.pipelines.scaffold import pipeline_text, sample, secret_variables

    path = file or Path(f"{name}.yaml")
    if path.exists():
        misused(f"{path} is there already: remove it, or choose another --file")
    settings, bootstrap = dict(cluster.settings), cluster.bootstrap_servers
    try:
        values = sample(settings, topic)
    except OptionError as error:
        misused(str(error).replace("option 'kafka.", "setting '"))
    except (ClientError, AuthenticationFailed) as error:
        explained = explain(error, bootstrap)
        fail(f"topic {topic} cannot be sampled: {error}", explained.code if explained else ExitCode.FAILED)
    variables = secret_variables(settings)
    try:
        validate(loads(pipeline_text(name, settings, topic, values, {}), str(path)))
    except PipelineError as error:
        _fail_with(error)
    path.write_text(pipeline_text(name, settings, topic, values, variables), encoding="utf-8")
    typer.echo(
        f"{path}: written from {counted(len(values), 'record')}. Look at it, then: moldau pipeline run {path} --once"
    )
    if variables:
        typer.echo(f"It takes secrets from the environment: set {', '.join(sorted(variables.values()))}")


@app.command()
def replay(
    target: Target,
    start: From,
    into: Into = "replay",
    until: Until = "",
    master: Master = None,
    settings: Settings = None,
    bootstrap_server: Bootstrap = None,
    env: Environment = "",
) -> None:
    """Run a pipeline again from a time on, into sinks of their own beside the real ones, and end."""
    _run_shadow(target, start, until, into, master, settings, bootstrap_server, env)


@app.command()
def backfill(
    target: Target,
    start: From,
    until: Until,
    into: Into = "backfill",
    master: Master = None,
    settings: Settings = None,
    bootstrap_server: Bootstrap = None,
    env: Environment = "",
) -> None:
    """Run a pipeline over a stretch of time, into sinks of their own beside the real ones, and end."""
    _run_shadow(target, start, until, into, master, settings, bootstrap_server, env)


def _run_shadow(
    target: str,
    start: str,
    until: str,
    into: str,
    master: str | None,
    settings: list[str] | None,
    bootstrap: str | None,
    env: str,
) -> None:
    from moldau.spark.pipelines import PipelineError, validate
    from moldau.spark.pipelines.reach import require_cluster
    from moldau.spark.pipelines.shadow import outputs, shadow_of
    from moldau.spark.pipelines.stretch import keep_to

    pipeline = _load(target, settings, bootstrap, environment=env)
    try:
        shadow = shadow_of(pipeline, into, start=start, until=until)
        validate(shadow)
        require_cluster(shadow)
        goes_on = keep_to(shadow, start, until)
    except PipelineError as error:
        _fail_with(error)
    except ValueError as error:
        misused(str(error))
    told = " (begun before: goes on where it was)" if goes_on else ""
    typer.echo(f"{shadow.name}: into {', '.join(outputs(shadow))}{told}", err=True)
    run_pipeline(shadow, once=True, master=master)


@app.command()
def redrive(
    target: Target,
    reason: Annotated[str, typer.Option("--reason", help="Only those whose reason has this text.")] = "",
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most so many.")] = None,
    rehearse: Annotated[bool, typer.Option("--rehearse", help="Say what would be sent, and send nothing.")] = False,
    also: Annotated[
        list[str] | None,
        typer.Option("--also-to", metavar="TOPIC", help="May be sent to, although the pipeline does not read it."),
    ] = None,
    settings: Settings = None,
    bootstrap_server: Bootstrap = None,
    env: Environment = "",
) -> None:
    """Send a pipeline's dead letters back to the topics they came from, each once."""
    from moldau.spark.options import OptionError
    from moldau.spark.pipelines import PipelineError
    from moldau.spark.pipelines.redrive import RedriveFailed
    from moldau.spark.pipelines.redrive import redrive as send_back

    pipeline = _load(target, settings, bootstrap_server, environment=env)
    try:
        done = send_back(pipeline, reason=reason, limit=limit, rehearse=rehearse, also=also or ())
    except RedriveFailed as error:
        fail(str(error))
    except PipelineError as error:
        _fail_with(error)
    except OptionError as error:
        misused(str(error))
    verb = "would be sent" if rehearse else "sent"
    for topic, count in sorted(done.sent.items()):
        typer.echo(f"{count:,} {verb} to {topic}")
    for told, count in done.reasons.most_common(10):
        typer.echo(f"  {count:,} {harmless_cell(told[:200])}")
    if done.left_out:
        typer.echo(f"{done.left_out:,} left out: of others, with another reason, or without an origin")
    for topic, count in sorted(done.refused.items()):
        hint = "they stay where they are; --also-to allows a topic, --rehearse tells before"
        typer.echo(f"{count:,} not sent to {topic}, which the pipeline does not read ({hint})")
    if done.before:
        typer.echo(f"{done.before:,} were sent before")
    if not done.sent and not done.left_out and not done.refused:
        typer.echo("there is nothing to send")
