"""The frame every command stands in: common options, errors as one line, `--watch`.

A module makes its commands with `Commands`. A parameter of type `Target` becomes `-b`, `-X`, `--config` and
`--context`; one of type `RegistryTarget` the same with `--registry` for `-b`; one of type `Output` becomes `--json` and
`--format`; `watchable=True` adds `--watch`; `changes=True` says that an answer which does not come leaves it open
whether something was done; `raw` names the parameters that may be bytes and no text; `examples` are lines that its
help shows, without `moldau`:

    app = Commands(help="Users.")

    @app.command("list")
    def list_users(target: Target, output: Output) -> None:
        output.show([{"name": …}])
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from typing import Annotated, Any, get_args, get_origin

import typer
from typer.models import ArgumentInfo

from moldau.cli.failure import ExitCode, explain, fail, in_doubt, misused, tell
from moldau.cli.harmless import is_text
from moldau.cli.output import Output
from moldau.cli.registry_target import RegistryTarget
from moldau.cli.target import Target, resolve

_PANEL = "The cluster"
_REGISTRY_PANEL = "The registry"
_SHOWN = "Output"
_EVERY_SECONDS_MIN = 0.1

_TARGET_OPTIONS: dict[str, Any] = {
    "bootstrap_server": Annotated[
        str | None,
        typer.Option(
            "--bootstrap-server",
            "-b",
            envvar="MOLDAU_BOOTSTRAP_SERVER",
            metavar="HOST:PORT",
            help="Where the cluster is, Moldau or Apache Kafka; 127.0.0.1:9092 if not said.",
            rich_help_panel=_PANEL,
        ),
    ],
    "client_settings": Annotated[
        list[str] | None,
        typer.Option("-X", metavar="KEY=VALUE", help="A client setting; may be repeated.", rich_help_panel=_PANEL),
    ],
    "client_config": Annotated[
        str | None,
        typer.Option(
            "--config",
            "--command-config",
            envvar="MOLDAU_CONFIG",
            metavar="FILE",
            help="A client.properties file, as Java's clients use.",
            rich_help_panel=_PANEL,
        ),
    ],
    "context": Annotated[
        str | None,
        typer.Option(
            "--context",
            envvar="MOLDAU_CONTEXT",
            metavar="NAME",
            help="A named cluster; see `moldau context`.",
            rich_help_panel=_PANEL,
        ),
    ],
}
_REGISTRY_OPTIONS: dict[str, Any] = {
    "registry_url": Annotated[
        str | None,
        typer.Option(
            "--registry",
            envvar="MOLDAU_REGISTRY",
            metavar="URL",
            help="Confluent's schema registry: http://[USER:PASSWORD@]HOST:PORT.",
            rich_help_panel=_REGISTRY_PANEL,
        ),
    ],
    **{name: each for name, each in _TARGET_OPTIONS.items() if name != "bootstrap_server"},
}
_OUTPUT_OPTIONS: dict[str, Any] = {
    "as_json": Annotated[bool, typer.Option("--json", help="JSON.", rich_help_panel=_SHOWN)],
    "template": Annotated[
        str | None,
        typer.Option("--format", metavar="TEXT", help="A line per row, with {names} in it.", rich_help_panel=_SHOWN),
    ],
}
_WATCH_OPTION = Annotated[
    float | None,
    typer.Option("--watch", "-w", metavar="SECONDS", help="Again and again, until Ctrl-C.", rich_help_panel=_SHOWN),
]


_MADE_HERE = (Target, RegistryTarget, Output)


class Commands(typer.Typer):
    """A group of commands, or one alone, in the frame."""

    def __init__(self, help: str | None = None, **settings: Any) -> None:  # noqa: A002  Typer's own name
        alone = settings.get("invoke_without_command", False)
        super().__init__(help=help, no_args_is_help=not alone, add_completion=False, **settings)

    def command(  # type: ignore[override]  # fewer options than Typer's: the frame decides the rest
        self,
        name: str | None = None,
        *,
        watchable: bool = False,
        changes: bool = False,
        raw: Collection[str] = (),
        hidden: bool = False,
        no_args_is_help: bool = False,
        examples: Sequence[str] = (),
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        epilog = "\n\n".join(["For example:", *(f"moldau {each}" for each in examples)]) if examples else None
        add = super().command(name, hidden=hidden, no_args_is_help=no_args_is_help, epilog=epilog)

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            add(_framed(function, watchable=watchable, changes=changes, raw=raw))
            return function

        return decorate


def with_target(function: Callable[..., Any]) -> Callable[..., Any]:
    """For a command of an app that is no `Commands`: where its cluster is, said as everywhere."""
    return _framed(function, watchable=False, changes=False)


def _framed(
    function: Callable[..., Any], *, watchable: bool, changes: bool, raw: Collection[str] = ()
) -> Callable[..., Any]:
    signature = inspect.signature(function, eval_str=True)
    given = signature.parameters.values()
    names = {each.annotation: each.name for each in given if each.annotation in _MADE_HERE}
    kept = [each for each in given if each.annotation not in _MADE_HERE]
    named = [each.name for each in kept if _takes_names(each.annotation)]
    added: dict[str, Any] = {}
    if Output in names:
        added |= _OUTPUT_OPTIONS
    if watchable:
        added["watch_seconds"] = _WATCH_OPTION
    if Target in names:
        added |= _TARGET_OPTIONS
    if RegistryTarget in names:
        added |= _REGISTRY_OPTIONS
    extra = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=False if name == "as_json" else None, annotation=kind
        )
        for name, kind in added.items()
    ]

    @wraps(function)
    def framed(**arguments: Any) -> Any:
        _require_text(arguments, {*raw, "client_config"})
        watch = arguments.pop("watch_seconds", None)
        as_json, template = arguments.pop("as_json", False), arguments.pop("template", None)
        target: Target | None = None
        for name in named:  # who names a topic twice means it once; librdkafka 2.16 may crash on it
            if arguments.get(name):
                arguments[name] = list(dict.fromkeys(arguments[name]))
        try:
            if Target in names:
                options = [arguments.pop(name) for name in _TARGET_OPTIONS]
                target = Target(resolve(options[0], options[1] or (), options[2], options[3]))
                arguments[names[Target]] = target
            if RegistryTarget in names:
                url, *rest = [arguments.pop(name) for name in _REGISTRY_OPTIONS]
                arguments[names[RegistryTarget]] = RegistryTarget(url, resolve(None, rest[0] or (), rest[1], rest[2]))
            if Output in names:
                arguments[names[Output]] = Output(as_json=as_json, template=template)
            if watch is None:
                return function(**arguments)
            return _watch(function, arguments, names[Output], watch)
        except BrokenPipeError:
            raise ReaderGone from None
        except Exception as error:
            servers = "" if target is None else target.bootstrap_servers
            explained = explain(error, servers)
            if explained is None or is_debugging():
                raise
            if changes and target is not None and target.was_reached:
                explained = in_doubt(explained, servers)
            fail(explained.message, explained.code)

    framed.__signature__ = inspect.Signature([*kept, *extra])  # type: ignore[attr-defined]  # what Typer reads
    framed.__annotations__ = {each.name: each.annotation for each in [*kept, *extra]}
    del framed.__wrapped__  # or Typer would look at the function behind it
    return framed


def _require_text(arguments: Mapping[str, Any], raw: Collection[str]) -> None:
    """Names that are no UTF-8 are nobody's, and librdkafka's client (2.16) crashes the process on some. Those of `raw`
    may be any bytes: keys, headers, files."""
    for name, value in arguments.items():
        for each in value if isinstance(value, list) else [value]:
            if name not in raw and isinstance(each, str) and not is_text(each):
                misused(f"{each!r} is no text: bytes that are no UTF-8 name nothing here")


def _takes_names(annotation: Any) -> bool:
    """Whether it is an argument like TOPIC...: names, not files, of which one may be meant twice."""
    if get_origin(annotation) is not Annotated:
        return False
    kind, *metadata = get_args(annotation)
    is_argument = any(isinstance(each, ArgumentInfo) for each in metadata)
    return is_argument and kind in (list[str], list[str] | None)


class ReaderGone(Exception):
    """Whoever read our output has closed it."""


def is_debugging() -> bool:
    import os

    return bool(os.environ.get("MOLDAU_DEBUG"))


def _watch(function: Callable[..., Any], arguments: dict[str, Any], output_name: str, every: float) -> None:
    """In place on a terminal, one after the other elsewhere. A cluster that is away is waited for."""
    if every < _EVERY_SECONDS_MIN:
        misused(f"--watch {every:g}: at least {_EVERY_SECONDS_MIN} seconds")
    output: Output = arguments[output_name]
    if not output.is_for_people:
        while True:
            _once(function, arguments)
            sys.stdout.flush()
            time.sleep(every)  # what --watch says
    import io

    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    screen = Console()
    with Live(console=screen, auto_refresh=False, screen=True, vertical_overflow="crop") as live:
        while True:
            page = io.StringIO()
            console = Console(file=page, force_terminal=True, width=screen.width, color_system="standard")
            arguments[output_name] = Output(console=console)
            trouble = _once(function, arguments)
            if trouble:
                console.print(trouble, style="red")
            live.update(Text.from_ansi(page.getvalue()), refresh=True)
            time.sleep(every)  # what --watch says


def _once(function: Callable[..., Any], arguments: dict[str, Any]) -> str:
    """What is wrong now, if the cluster is away for the moment."""
    try:
        function(**arguments)
    except typer.Exit as ended:
        if ended.exit_code != ExitCode.UNREACHABLE:
            raise
    except Exception as error:
        targets = (each for each in arguments.values() if isinstance(each, Target))
        explained = explain(error, next((each.bootstrap_servers for each in targets), "the cluster"))
        if explained is None or explained.code != ExitCode.UNREACHABLE:
            raise
        tell(explained.message)
        return explained.message
    return ""


__all__ = ["Commands", "Output", "ReaderGone", "RegistryTarget", "Target", "is_debugging"]
