"""All commands in one table. A command's module is loaded when it runs, so that help and completion come at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption


class Entry(NamedTuple):
    """`module` is in this package and has an `app`, or the function that is named."""

    module: str
    help: str
    function: str = ""


RUNNING = "Run brokers"
RECORDS = "Topics and records"
OPERATING = "Look after a cluster"
CONSOLE = "The console"
SECURITY = "Security"
BUILDING = "Apps and pipelines"
HERE = "This command line"

COMMANDS: dict[str, dict[str, Entry]] = {
    RUNNING: {
        "serve": Entry("serve", "Run a broker."),
        "cluster": Entry("cluster", "Run and change a cluster on this machine."),
        "format": Entry("format", "Give a new cluster its first users, or let a voter that lost its disk begin anew."),
    },
    RECORDS: {
        "topic": Entry("topic", "Create, show, change and delete topics."),
        "produce": Entry("produce", "Write records from standard input or a file."),
        "consume": Entry("consume", "Show records of topics."),
        "registry": Entry("registry", "Schemas of a registry: list, show, register, check, compatibility, delete."),
    },
    OPERATING: {
        "group": Entry("group", "Consumer groups: who reads what, how far behind, and where from."),
        "config": Entry("config", "List, show and change settings of topics, brokers, groups and client metrics."),
        "broker": Entry("broker", "Brokers: list, disks, versions, features; elect leaders, unregister."),
        "quorum": Entry("quorum", "The controllers' quorum: status, replicas, voters."),
        "reassign": Entry("reassign", "Move replicas between brokers: plan, run, status, cancel, drain."),
        "txn": Entry("txn", "Transactions: list, describe, producers, hanging ones, abort."),
        "top": Entry("top", "Live view: traffic, lag, brokers, what is wrong."),
        "bench": Entry("bench", "Measure a cluster: throughput, latency percentiles, end to end."),
        "health": Entry("health", "Whether a cluster is well, now."),
        "doctor": Entry("doctor", "Why it does not work: this machine, the way there, risky settings."),
        "log": Entry("log", "A node's files, offline: dump, verify, recover."),
        "lag": Entry("lag", "Whether groups keep up, with a judgement."),
    },
    CONSOLE: {
        "console": Entry("console", "A cluster in the browser.", "console"),
        "console-user": Entry("console", "A line for the console's users.", "console_user"),
    },
    SECURITY: {
        "user": Entry("user", "Users that log in with SCRAM: add, list, remove."),
        "token": Entry("token", "Delegation tokens, to log in without a password: create, list, renew, expire."),
        "acl": Entry("acl", "Rules about who may do what: add, list, remove."),
        "quota": Entry("quota", "Limits of users, clients and addresses: set, list, remove."),
        "certs": Entry("certs", "Make certificates for trying things out."),
    },
    BUILDING: {
        "app": Entry("app_run", "Run apps made with moldau.toolkit."),
        "pipeline": Entry("pipelines", "Run, check and watch data pipelines on Spark."),
        "spark": Entry("spark", "Prepare Spark clusters: the archive that executors need."),
        "dlq": Entry("dlq", "Look into dead letters, and send them back."),
        "trace": Entry("trace", "The story of one message."),
        "relay": Entry("relay", "Send what is due and what outboxes hold."),
    },
    HERE: {
        "context": Entry("context", "Named clusters: addresses and logins to use by name."),
    },
}

_HELP = ["--help", "-h"]
_COMPLETION = ("--show-completion", "--install-completion")
_SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")
_PLAIN: dict[Any, str] = {int: "NUMBER", float: "NUMBER", str: "TEXT", Path: "FILE"}


class LazyGroup(TyperGroup):
    """Finds a command by name and loads it then; who only lists them gets names and help from the table."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._is_listing = False
        self.commands = {
            name: TyperCommand(name, help=entry.help, rich_help_panel=panel)
            for panel, entries in COMMANDS.items()
            for name, entry in entries.items()
        }

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            _complete_for(ctx, args)
        return super().parse_args(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if self._is_listing:
            return self.commands.get(cmd_name)
        for entries in COMMANDS.values():
            if cmd_name in entries:
                return load(cmd_name, entries[cmd_name])
        return None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        for each in self.params:
            if isinstance(each, TyperOption) and each.opts[0] in _COMPLETION:
                each.metavar = "[SHELL]"
        speak_plainly(self)
        with self._listing():
            super().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        with self._listing():
            return super().shell_complete(ctx, incomplete)

    @contextmanager
    def _listing(self) -> Iterator[None]:
        self._is_listing = True
        try:
            yield
        finally:
            self._is_listing = False


def _complete_for(ctx: Any, args: list[str]) -> None:
    """Completion for the shell that is named, and the end. Typer has switches for it, and passes over a name."""
    option, equals, shell = args[0].partition("=") if args else ("", "", "")
    names = [shell, *args[1:]] if equals else args[1:]
    if option not in _COMPLETION or not names or names[0] in _HELP:
        return
    if names[0] not in _SHELLS or len(names) > 1:
        raise typer.BadParameter(f"{option} {' '.join(names)}: choose one of {', '.join(_SHELLS)}", ctx)
    from typer import completion

    act = completion.show_callback if option == _COMPLETION[0] else completion.install_callback
    act(ctx, cast("Any", None), names[0])


@cache
def load(name: str, entry: Entry) -> Any:
    from importlib import import_module

    module = import_module(f"moldau.cli.{entry.module}")
    if entry.function:
        from moldau.cli.frame import Commands

        alone = Commands()
        alone.command()(getattr(module, entry.function))
    else:
        alone = module.app
    found = typer.main.get_command(alone)
    found.name = name
    speak_plainly(found)
    return found


def speak_plainly(command: Any) -> None:
    """In its help, a switch takes nothing, a number is a NUMBER, a TOPIC... is no `<list[str]>`."""
    for each in getattr(command, "commands", {}).values():
        speak_plainly(each)
    for parameter in command.get_params(typer.Context(command, help_option_names=_HELP)):
        if isinstance(parameter, TyperArgument):
            _name_plainly(parameter)
        if not isinstance(parameter, TyperOption) or parameter.metavar is not None:
            continue
        if parameter.is_flag:
            parameter.metavar = ""
        else:
            described = getattr(parameter, "type_descriptor", None)  # older versions of Typer name types as we do
            annotation = getattr(described, "annotation", None)
            (kind,) = get_args(annotation)[:1] or (annotation,)  # of one that may be repeated
            parameter.metavar = _PLAIN.get(kind)


def _name_plainly(argument: TyperArgument) -> None:
    """`TOPIC...` if it must be there, `[TOPIC...]` if not, in the usage; its name says what it is, not a type."""
    bare = (argument.metavar or (argument.name or "").upper()).removesuffix("...").strip("[]")
    shown = bare if argument.nargs == 1 else f"{bare}..."
    argument.metavar = shown
    argument.get_usage_pieces = lambda ctx: [  # type: ignore[method-assign]
        shown if argument.required else f"[{shown}]"
    ]
    argument.display_type_rich = lambda ctx: None  # type: ignore[method-assign]


app = typer.Typer(
    name="moldau",
    cls=LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": _HELP},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from moldau import __version__

        typer.echo(f"moldau {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Show the version."),
    debug: bool = typer.Option(False, "--debug", help="Show where an error came from; may stand anywhere."),
) -> None:
    """Apache Kafka's design in Python: a broker for stock Kafka clients, and tools for any Kafka cluster."""
