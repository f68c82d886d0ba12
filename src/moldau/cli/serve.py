"""The `moldau serve` command: its arguments and its help."""

from __future__ import annotations

from typing import Annotated

import typer

from moldau.cli import serving
from moldau.cli.frame import Commands

app = Commands()


@app.command()
def serve(
    config: Annotated[
        str | None, typer.Option("--config", "-c", metavar="FILE", help="A server.properties file, as for Kafka.")
    ] = None,
    data_dir: Annotated[
        str | None,
        typer.Option(
            "--data-dir", "-d", metavar="DIR", help=f"Where data is kept; ./{serving.DEFAULT_DATA_DIR} if not said."
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen", "-l", metavar="HOST:PORT", help=f"Where clients connect; {serving.DEFAULT_LISTEN} if not said."
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            metavar="[HOST:]PORT",
            help="Where metrics and health are served over HTTP; nowhere if not said.",
        ),
    ] = None,
    console: Annotated[
        str | None,
        typer.Option("--console", metavar="[HOST:]PORT", help="Also run a console there, for the browser."),
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", "-s", metavar="KEY=VALUE", help="One more setting; may be repeated.")
    ] = None,
    audit_log: Annotated[
        str | None, typer.Option("--audit-log", metavar="FILE", help="Write logins, refusals and changes there.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say more about what happens.")] = False,
    until_stdin_closes: Annotated[
        bool, typer.Option("--until-stdin-closes", help="Stop when whoever started this is gone.")
    ] = False,
) -> None:
    """Run a broker. Prints `ready HOST:PORT` when clients may connect; stop it with Ctrl-C or SIGTERM."""
    arguments = serving.ServeArguments(
        config, data_dir, listen, metrics, overrides or [], verbose, until_stdin_closes, audit_log, console
    )
    raise typer.Exit(serving.serve(arguments))
