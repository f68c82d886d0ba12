"""`moldau pipeline run|test|validate|list|status|explain|keys|show`: data pipelines on Spark, from a YAML file.

Only `run`, `test` and `explain --plan` start Spark; the rest answers at once. `run` stops gracefully on Ctrl-C and
SIGTERM. What is done beside running (init, replay, backfill, redrive) is in `pipeline_tools.py`.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from moldau.cli.failure import ExitCode, fail, misused
from moldau.cli.spark_start import starting_spark

if TYPE_CHECKING:
    from rich.table import Table

    from moldau.spark.pipelines.errors import PipelineError
    from moldau.spark.pipelines.model import Pipeline
    from moldau.spark.pipelines.progress import QueryProgress
    from moldau.spark.pipelines.runner import Running

app = typer.Typer(help="Run, check and watch data pipelines on Spark.", no_args_is_help=True, add_completion=False)


@app.callback()
def _needs_spark() -> None:
    """Run, check and watch data pipelines on Spark."""
    from importlib.util import find_spec

    missing = [name for name in ("pyspark", "yaml", "pyarrow") if find_spec(name) is None]
    if missing:
        misused(f"pipelines need {', '.join(missing)}: pip install 'moldau[spark]'")


Target = Annotated[str, typer.Argument(metavar="FILE_OR_NAME", help="A pipeline file, or the name of a ready one.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", "-s", metavar="NAME=VALUE", help="Fill ${NAME}; may be repeated.")
]
Bootstrap = Annotated[
    str | None,
    typer.Option("--bootstrap-server", "-b", metavar="HOST:PORT", help="The cluster, instead of the file's."),
]
Environment = Annotated[
    str, typer.Option("--env", envvar="MOLDAU_ENV", metavar="NAME", help="One of the file's `environments:`.")
]
Checkpoint = Annotated[str | None, typer.Option("--checkpoint", help="Another folder than the file's.")]
_PLAIN_LINE_SECONDS = 5.0
_BETWEEN_COLUMNS = 2  # characters, in rich's tables


def _load(
    target: str,
    settings: list[str] | None,
    bootstrap: str | None = None,
    checkpoint: str | None = None,
    environment: str = "",
) -> Pipeline:
    """Read a file, or end with every mistake in it."""
    try:
        from moldau.spark.pipelines import PipelineError
        from moldau.spark.pipelines.ready import find, names
    except ImportError as error:
        misused(f"pipelines need PySpark and PyYAML: pip install 'moldau[spark]' ({error})")
    variables = {}
    for pair in settings or ():
        name, equals, value = pair.partition("=")
        if not equals:
            misused(f"--set {pair}: give NAME=VALUE")
        variables[name] = value
    if bootstrap:
        variables.setdefault("bootstrap", bootstrap)
    if not os.path.exists(target) and target not in names():
        told = f"there is no file {target!r}, and no ready pipeline of that name: {', '.join(names())}"
        fail(told, ExitCode.NOT_FOUND)
    try:
        pipeline = find(target, variables, environment=environment)
    except PipelineError as error:
        _fail_with(error)
    for pair in settings or ():
        _require_use(pair.partition("=")[0], target, pipeline)
    if bootstrap:
        pipeline = replace(pipeline, bootstrap_servers=bootstrap)
    return replace(pipeline, checkpoint=_absolute(checkpoint)) if checkpoint else pipeline


def _require_use(name: str, target: str, pipeline: Pipeline) -> None:
    """Whoever mistypes a name means not to run without it."""
    from moldau.spark.pipelines.document import variables_of
    from moldau.spark.pipelines.ready import text
    from moldau.spark.suggestions import did_you_mean

    file = Path(target)
    known = {*variables_of(file.read_text(encoding="utf-8") if file.exists() else text(target)), *pipeline.parameters}
    if name not in known:
        fix = did_you_mean(name, known) or "it has no variables"
        misused(f"--set {name}: nothing in {target} asks for ${{{name}}}; {fix}")


def _absolute(folder: str) -> str:
    return folder if "://" in folder else os.path.abspath(folder)


_CODES = {"cluster": ExitCode.UNREACHABLE, "login": ExitCode.DENIED, "topics": ExitCode.NOT_FOUND}


def _fail_with(error: PipelineError) -> NoReturn:
    _show(error)
    raise typer.Exit(_CODES.get(error.concerns, ExitCode.USAGE))


def _show(error: PipelineError) -> None:
    for problem in error.problems:
        typer.echo(str(problem), err=True)


@app.command()
def validate(
    targets: Annotated[list[str], typer.Argument(metavar="FILE_OR_NAME...", help="Pipeline files or ready names.")],
    settings: Settings = None,
    env: Environment = "",
) -> None:
    """Check pipelines without starting Spark: every mistake with its line and its fix."""
    from moldau.spark.pipelines import PipelineError
    from moldau.spark.pipelines import validate as check

    worst = 0
    for target in targets:
        try:
            check(_load(target, settings, environment=env))
        except PipelineError as error:
            _show(error)
            worst = ExitCode.USAGE
        except typer.Exit as ended:  # told already; the others are looked at all the same
            worst = worst or ended.exit_code
        else:
            typer.echo(f"{target}: valid")
    if worst:
        raise typer.Exit(worst)


@app.command("list")
def list_pipelines(
    folder: Annotated[Path, typer.Argument(help="Also the pipeline files in this folder.")] = Path(),
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """The ready pipelines, and those in a folder."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    found = list(_pipelines(folder))
    if as_json:
        typer.echo(json.dumps(found, indent=1))
        return
    table = Table("pipeline", "about", box=None, pad_edge=False)
    for each in found:
        about = Text(each["about"]) if each["is_valid"] else Text.assemble(("not valid:", "red"), f" {each['about']}")
        table.add_row(Text(each["pipeline"]), about)
    Console().print(table)


def _pipelines(folder: Path) -> Iterator[dict[str, Any]]:
    """Of a file that is not valid, `about` says what is wrong."""
    from moldau.spark.pipelines import PipelineError, load
    from moldau.spark.pipelines.ready import find, names

    for name in names():
        yield {"pipeline": name, "is_valid": True, "about": find(name).about}
    for file in sorted((*folder.glob("*.yaml"), *folder.glob("*.yml"))):
        if "sinks:" not in file.read_text(encoding="utf-8", errors="replace"):
            continue
        try:
            is_valid, about = True, load(file).about
        except PipelineError as error:
            is_valid, about = False, str(error.problems[0])
        yield {"pipeline": str(file), "is_valid": is_valid, "about": about}


@app.command()
def show(name: Annotated[str, typer.Argument(help="A ready pipeline.")]) -> None:
    """Print a ready pipeline's file: a good way to begin one's own."""
    from moldau.spark.pipelines.ready import names, text

    if name not in names():
        fail(f"no ready pipeline is called {name!r}: {', '.join(names())}", ExitCode.NOT_FOUND)
    typer.echo(text(name), nl=False)


@app.command()
def keys() -> None:
    """Every key a pipeline file may have, and what it is for."""
    from rich.console import Console

    from moldau.spark.pipelines import model
    from moldau.spark.pipelines.load import TOP_KEYS

    console = Console(soft_wrap=True, highlight=False)
    console.print("[bold]pipeline[/]")
    for key, about in TOP_KEYS.items():
        console.print(f"  {key}: [dim]{about}[/]")
    sections = (("source", model.SOURCES), ("parse", model.PARSES), ("step", model.STEPS), ("sink", model.SINKS))
    for section, classes in sections:
        for cls in classes:
            own = [each for each in fields(cls) if each.metadata["kind"] != "where"]
            title = getattr(cls, "FORMAT", own[0].name.rstrip("_"))
            console.print(f"\n[bold]{section} {title}[/]")
            for each in own:
                known = f" ({', '.join(each.metadata['known'])})" if "known" in each.metadata else ""
                console.print(f"  {each.name.rstrip('_')}: [dim]{each.metadata['about']}{known}[/]")


@app.command()
def explain(
    target: Target,
    plan: Annotated[bool, typer.Option("--plan", help="Also Spark's plan of each query; starts Spark.")] = False,
    settings: Settings = None,
    bootstrap_server: Bootstrap = None,
    env: Environment = "",
) -> None:
    """Tell what a pipeline does: what each query reads, does and writes, and how often a row can arrive."""
    from moldau.spark.pipelines import PipelineError
    from moldau.spark.pipelines.explain import explained

    pipeline = _load(target, settings, bootstrap_server, environment=env)
    try:
        typer.echo(explained(pipeline))
        if plan:
            from moldau.spark.pipelines.explain import plans

            with starting_spark():
                found = plans(pipeline)
            for name, text in found.items():
                typer.echo(f"\n{name}\n{text}")
    except PipelineError as error:
        _fail_with(error)


@app.command()
def status(
    target: Target,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    settings: Settings = None,
    checkpoint: Checkpoint = None,
    bootstrap_server: Bootstrap = None,
    env: Environment = "",
) -> None:
    """How a pipeline is doing, or was when it ended; reads a file beside its checkpoint; lag is asked for."""
    from rich.console import Console

    from moldau.cli.harmless import harmless_cell
    from moldau.metrics.whereabouts import is_elsewhere, is_running
    from moldau.spark.pipelines.lag import LagMeter
    from moldau.spark.pipelines.progress import STATUS_FILE, query_progress, read_status

    pipeline = _load(target, settings, bootstrap_server, checkpoint, env)
    try:
        found = read_status(pipeline.checkpoint_folder)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        fail(f"{pipeline.checkpoint_folder}/{STATUS_FILE} cannot be read: {reason}")
    if found is None:
        fail(f"{pipeline.name} has not run yet: nothing in {pipeline.checkpoint_folder}", ExitCode.NOT_FOUND)
    age_s = max(0.0, time.time() - float(found["time"]))
    alive = bool(found["running"]) and is_running(found, age_s)
    what = "running" if alive else "not running" if not found["running"] else "ended without saying so (killed?)"
    what += f" on {harmless_cell(str(found['host']))}" if is_elsewhere(found) else ""
    queries = [query_progress(each) for each in found["queries"]]
    meter = LagMeter(pipeline)
    lags = {each.name: meter.measure(each.name, {}) for each in queries}
    is_old = any(lags[each.name] is None and each.lag_records is not None for each in queries)
    queries = [each if (lag := lags[each.name]) is None else replace(each, lag_records=lag) for each in queries]
    if as_json:
        content = {**found, "running": alive, "age_s": round(age_s, 1), "lag_is_old": is_old}
        typer.echo(json.dumps({**content, "queries": [asdict(each) for each in queries]}, indent=1))
        return
    lag_told = "lag too: no broker answers now" if is_old else "lag as of now"
    typer.echo(f"{pipeline.name}: {what}, as of {age_s:.0f} s ago; {lag_told}")
    Console().print(_table(queries))


@app.command("test")
def try_out(
    target: Target,
    file: Annotated[
        Path | None, typer.Option("--file", help="The trials; without it, X.test.yaml beside X.yaml.")
    ] = None,
    settings: Settings = None,
    env: Environment = "",
) -> None:
    """Try a pipeline on sample rows and compare what comes out; needs no broker. Exits with 6 if anything differs."""
    from moldau.spark.pipelines import PipelineError
    from moldau.spark.pipelines import validate as check
    from moldau.spark.pipelines.secrecy import redacted, spark_settings
    from moldau.spark.pipelines.trial import file_of, read_trials, run_trials

    pipeline = _load(target, settings, "127.0.0.1:9", environment=env)  # nobody is asked
    try:
        trials = read_trials(file or file_of(target), pipeline, check(pipeline))
        from moldau.spark.pipelines.sinks import prepared
        from moldau.spark.session import session

        with starting_spark():
            spark = session(f"moldau-test-{pipeline.name}", master="local[2]", config=spark_settings(pipeline))
        spark = prepared(spark, pipeline)
        outcomes = run_trials(spark, pipeline, trials)
    except PipelineError as error:
        _fail_with(error)
    for outcome in outcomes:
        typer.echo(f"{'differs' if outcome.differences else 'as expected'}: {outcome.name}")
        for difference in outcome.differences:
            typer.echo(redacted(f"  {difference}", pipeline))
    if any(outcome.differences for outcome in outcomes):
        raise typer.Exit(ExitCode.UNHEALTHY)


@app.command()
def run(
    target: Target,
    once: Annotated[bool, typer.Option("--once", help="Take what is there now, then end.")] = False,
    generate: Annotated[int, typer.Option("--generate", metavar="N", help="First make N records to try it with.")] = 0,
    master: Annotated[
        str | None, typer.Option("--master", help="Where Spark runs: local[*], spark://HOST:PORT…")
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option("--metrics-port", help="Serve Prometheus' /metrics on 127.0.0.1.")
    ] = None,
    checkpoint: Checkpoint = None,
    settings: Settings = None,
    bootstrap_server: Bootstrap = None,
    env: Environment = "",
) -> None:
    """Run a pipeline until it is stopped (Ctrl-C, SIGTERM), showing its progress."""
    from moldau.spark.pipelines import PipelineError
    from moldau.spark.pipelines import validate as check

    pipeline = _load(target, settings, bootstrap_server, checkpoint, env)
    try:
        check(pipeline)
        if generate:
            _generate(pipeline, generate, settings, bootstrap_server)
    except PipelineError as error:
        _fail_with(error)
    run_pipeline(pipeline, once=once, master=master, metrics_port=metrics_port)


def run_pipeline(pipeline: Pipeline, *, once: bool, master: str | None = None, metrics_port: int | None = None) -> None:
    """Start it, show its progress, and end when it does."""
    from py4j.protocol import Py4JError, Py4JNetworkError
    from pyspark.errors import PySparkException

    from moldau.spark.pipelines import PipelineError
    from moldau.spark.pipelines.reach import require_cluster
    from moldau.spark.pipelines.runner import PipelineFailed, start
    from moldau.spark.pipelines.secrecy import redacted

    _leave_out_chatter()
    _require_alone(pipeline)
    running: Running | None = None
    try:
        require_cluster(pipeline)
        told = f"{pipeline.name}: starting Spark, checkpoint in {pipeline.checkpoint_folder}"
        typer.echo(redacted(told, pipeline), err=True)
        with ExitStack() as stack:
            with starting_spark():
                running = stack.enter_context(start(pipeline, once=once, master=master))
            stack.enter_context(_stopping(running))
            on_progress = stack.enter_context(_shown())
            if metrics_port is not None:
                on_progress = stack.enter_context(_metrics(pipeline.name, metrics_port, on_progress))
            running.wait(on_progress=on_progress)
    except PipelineError as error:
        _fail_with(error)
    except (PipelineFailed, Py4JError, PySparkException, ConnectionError) as error:
        # A service manager may send SIGTERM to all processes of a service at once.
        if running is None or not running.was_ended_with_spark():
            if isinstance(error, PipelineFailed):
                fail(str(error))
            if isinstance(error, Py4JNetworkError | ConnectionError):
                died = f"Spark's Java process has died ({error})"
                fail(f"{pipeline.name}: {died}; out of memory? A new run goes on from here")
            raise
        typer.echo(f"{pipeline.name}: Spark was ended too; the next run repeats the batch in work", err=True)
    typer.echo(f"{pipeline.name}: stopped", err=True)


def _require_alone(pipeline: Pipeline) -> None:
    """Two runs of one checkpoint would end each other, batches later, with words about a log of Spark's."""
    from moldau.metrics.whereabouts import is_elsewhere, is_running
    from moldau.spark.pipelines.progress import read_status

    try:
        found = read_status(pipeline.checkpoint_folder)
    except (OSError, ValueError):
        return  # who cannot read it is told by what writes it
    # Another machine may be gone: whoever takes its place need not wait. And without the time of its start, a process
    # may be any that has the number by now.
    if not found or not found["running"] or is_elsewhere(found) or not found.get("started"):
        return
    if int(found["pid"]) != os.getpid() and is_running(found, 0.0):
        fix = "stop it first (Ctrl-C, SIGTERM), or give this one another --checkpoint"
        fail(f"{pipeline.name} is running already, as process {found['pid']}: {fix}")


def _leave_out_chatter() -> None:
    """Every thread of Py4J's and PySpark's that Java's end or Ctrl-C surprises tells a traceback, and we a sentence."""
    from pyspark.accumulators import AccumulatorTCPServer

    def ignore(server: object, request: Any, client_address: Any) -> None:
        """Instead of what a socketserver prints."""

    AccumulatorTCPServer.handle_error = ignore  # type: ignore[method-assign,assignment]  # there is no setting for it
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(lambda record: not str(record.msg).endswith("while sending command."))


def _generate(pipeline: Pipeline, count: int, settings: list[str] | None, bootstrap: str | None) -> None:
    from moldau.spark.pipelines.functions import find as function

    if not pipeline.generator:
        misused(f"{pipeline.name} has no generator: add `generator: module:function`")
    made = function(pipeline.generator, pipeline.folder)(pipeline.bootstrap_servers, pipeline.parameters, count)
    shown = ", ".join(f"{key}: {value}" for key, value in made.items() if isinstance(value, int | str))
    typer.echo(f"{pipeline.name}: generated {shown}", err=True)


@contextmanager
def _stopping(running: Running) -> Iterator[None]:
    """Ctrl-C and SIGTERM ask for a graceful stop; a second Ctrl-C does what it always does."""

    def stop(number: int, _: object) -> None:
        running.request_stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        typer.echo("stopping after the current batch…", err=True)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _metrics(pipeline: str, port: int, shown: Any) -> Iterator[Any]:
    """Keep what was last told for whoever scrapes."""
    from moldau.spark.pipelines.metrics import exposition, served

    last: list[list[QueryProgress]] = [[]]

    def keep(found: list[QueryProgress]) -> None:
        last[0] = found
        shown(found)

    try:
        with served(port, lambda: exposition(pipeline, last[0])) as chosen:
            typer.echo(f"{pipeline}: metrics at http://127.0.0.1:{chosen}/metrics", err=True)
            yield keep
    except OSError as error:
        fail(f"--metrics-port {port}: {error.strerror}")


@contextmanager
def _shown() -> Iterator[Any]:
    """A live table in a terminal; a line now and then elsewhere."""
    from rich.console import Console
    from rich.live import Live

    console = Console()
    if console.is_terminal:
        with Live(console=console, refresh_per_second=4) as live:
            yield lambda found: live.update(_table(found))
        return
    last: dict[str, tuple[int, float]] = {}

    def line(found: list[QueryProgress]) -> None:
        now = time.monotonic()
        for each in found:
            batch, at = last.get(each.name, (-1, 0.0))
            if each.batch_id > batch and (now - at >= _PLAIN_LINE_SECONDS or each.state in ("stopped", "failed")):
                last[each.name] = (each.batch_id, now)
                typer.echo(
                    f"{each.name}: batch {each.batch_id}, {each.rows_total:,} rows, "
                    f"{each.rows_per_second:,.0f} rows/s, {each.batch_ms} ms, "
                    f"lag {_or_dash(each.lag_records)}, state {each.state_rows:,} rows"
                )

    yield line


def _table(found: list[QueryProgress], width: int | None = None) -> Table:
    """What fits: at 80 columns the seldom ones are left out unless they have something to say."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from moldau.cli.harmless import harmless_cell

    width = Console().width if width is None else width
    columns: list[tuple[str, bool, Callable[[QueryProgress], str]]] = [
        ("batch", True, lambda q: _or_dash(q.batch_id if q.batch_id >= 0 else None)),
        ("rows", True, lambda q: _short(q.rows_total)),
        ("rows/s", True, lambda q: _short(q.rows_per_second)),
        ("ms", True, lambda q: _short(q.batch_ms)),
        ("lag", True, lambda q: "-" if q.lag_records is None else _short(q.lag_records)),
        ("late", any(q.late_rows for q in found), lambda q: _short(q.late_rows)),
        ("no template", any(q.unmatched_lines for q in found), lambda q: _short(q.unmatched_lines)),
        ("state rows", any(q.state_rows for q in found) or width >= 110, lambda q: _short(q.state_rows)),
        ("state MB", width >= 110, lambda q: f"{q.state_bytes / 1e6:,.1f}"),
    ]
    kept = [(name, [read(each) for each in found]) for name, wanted, read in columns if wanted]
    table = Table(box=None, pad_edge=False)
    taken = max((len(each.state) for each in found), default=0) + _BETWEEN_COLUMNS
    taken += sum(max(map(len, (name, *cells))) + _BETWEEN_COLUMNS for name, cells in kept)
    table.add_column("query", overflow="ellipsis", no_wrap=True, max_width=max(width - taken, 12))
    table.add_column("", no_wrap=True)
    for name, _ in kept:
        table.add_column(name, justify="right", no_wrap=True)
    colours = {"running": "green", "waiting": "green", "failed": "red"}
    for number, each in enumerate(found):
        state = Text(each.state, colours.get(each.state, "dim"))
        table.add_row(Text(each.name), state, *(cells[number] for _, cells in kept))
    for each in found:
        if each.error:  # text, in which brackets are no markup
            table.caption = Text(harmless_cell(f"{each.name}: {each.error}"))
            table.caption_style, table.caption_justify = "red", "left"
    return table


def _short(number: float) -> str:
    """At most six characters."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if number >= size:
            return f"{number / (1e3 if unit == 'k' else size):,.1f}{unit}"
    return f"{number:,.0f}"


def _or_dash(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"
