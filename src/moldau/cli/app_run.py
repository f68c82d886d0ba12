"""`moldau app run MODULE:APP`: run an app; with --reload, again whenever its code changes."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Annotated, Any

import typer

from moldau.cli.failure import ExitCode, fail, misused
from moldau.cli.frame import Commands

app = Commands(help="Run apps made with moldau.toolkit.")

ModuleAndName = Annotated[str, typer.Argument(metavar="MODULE:APP", help="Where the app is, for example billing:app.")]


@app.command()
def run(
    target: ModuleAndName,
    bootstrap_server: Annotated[
        str | None,
        typer.Option("--bootstrap-server", "-b", metavar="HOST:PORT", help="Another cluster than the app's."),
    ] = None,
    reload: Annotated[bool, typer.Option("--reload", help="Start again when a file of this folder changes.")] = False,
) -> None:
    """Run an app until SIGTERM or Ctrl-C. Several processes are several members of its group."""
    if reload:
        sys.exit(_run_reloading([target, *(["-b", bootstrap_server] if bootstrap_server else [])]))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    found = load(target)
    if bootstrap_server is not None:
        found.bootstrap_servers = bootstrap_server
    found.run()


@app.command()
def asyncapi(target: ModuleAndName) -> None:
    """Print the app's AsyncAPI 3 document."""
    import json

    typer.echo(json.dumps(load(target).asyncapi(), indent=2))


def load(target: str) -> Any:
    """The app; what is wrong with the name is said in a line."""
    from moldau.toolkit import App

    module_name, colon, name = target.partition(":")
    if not colon or not module_name or not name:
        misused(f"{target}: write MODULE:APP, for example billing:app")
    sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module itself imports something that is not there
        fail(f"there is no module {module_name} here ({os.getcwd()})", ExitCode.NOT_FOUND)
    found = getattr(module, name, None)
    if not isinstance(found, App):
        fail(f"{module_name} has no App called {name}", ExitCode.NOT_FOUND)
    return found


def _run_reloading(arguments: list[str]) -> int:
    command = [sys.executable, "-m", "moldau", "app", "run", *arguments]
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    signal.signal(signal.SIGINT, lambda *_: stopping.set())
    while True:
        seen = _changed_at()
        process = subprocess.Popen(command, start_new_session=True)  # noqa: S603  this very program
        while process.poll() is None and not stopping.is_set() and _changed_at() == seen:
            stopping.wait(0.3)
        if process.poll() is None:
            process.terminate()
            process.wait()
        if stopping.is_set():
            return process.returncode
        typer.echo(
            "moldau: waiting for a change" if _changed_at() == seen else "moldau: changed, starting again", err=True
        )
        while _changed_at() == seen and not stopping.is_set():
            stopping.wait(0.3)
        if stopping.is_set():
            return process.returncode


def _changed_at() -> dict[str, int]:
    found = {}
    for path in Path.cwd().rglob("*.py"):
        if not any(part.startswith(".") for part in path.parts[1:]):
            try:
                found[str(path)] = path.stat().st_mtime_ns
            except OSError:
                continue  # deleted meanwhile
    return found
