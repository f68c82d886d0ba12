"""`moldau context list|show|set|use|delete`: clusters by name, so that nobody types addresses and logins again."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from moldau.cli import contexts
from moldau.cli.client_settings import pairs, read_settings
from moldau.cli.frame import Commands, Output

app = Commands(help="Named clusters: addresses and logins to use by name.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="A context.")]
_SECRET = re.compile(r"password|secret|jaas|key\.pem|keystore\.key$|token", re.IGNORECASE)


@app.command("list")
def list_contexts(output: Output) -> None:
    """All contexts; the current one is used where nothing else is said."""
    current = contexts.current()
    rows = [
        {
            "name": name,
            "current": name == current,
            "bootstrap_servers": read_settings(str(contexts.file_of(name))).get("bootstrap.servers"),
        }
        for name in contexts.names()
    ]
    output.show(rows, empty="no contexts yet: moldau context set NAME -b HOST:PORT makes one")


@app.command()
def show(name: Name, output: Output) -> None:
    """The settings of a context; secrets are not shown."""
    settings = read_settings(str(contexts.require(name)))
    hidden = {key: "(hidden)" if _SECRET.search(key) else value for key, value in sorted(settings.items())}
    output.show([{"setting": key, "value": value} for key, value in hidden.items()], document=hidden)


@app.command(
    "set",
    examples=(
        "context set prod --config client.properties --use",
        "context set local -b 127.0.0.1:9092",
    ),
)
def set_context(
    output: Output,
    name: Name,
    bootstrap_server: Annotated[
        str | None, typer.Option("--bootstrap-server", "-b", metavar="HOST:PORT", help="Where the cluster is.")
    ] = None,
    config: Annotated[
        str | None, typer.Option("--config", metavar="FILE", help="Begin with this client.properties.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("-X", metavar="KEY=VALUE", help="A client setting; may be repeated.")
    ] = None,
    use: Annotated[bool, typer.Option("--use", help="Make it the current one.")] = False,
) -> None:
    """Make a context, or change one: what is given is added to what is there."""
    file = contexts.file_of(name)
    found = read_settings(str(file)) if file.is_file() else {}
    if config is not None:
        found |= read_settings(config)
    if bootstrap_server is not None:
        found["bootstrap.servers"] = bootstrap_server
    found |= pairs(settings or (), "-X")
    contexts.write(name, found)
    is_first = contexts.names() == [name]
    if use or is_first:
        contexts.use(name)
    current = contexts.current() == name
    output.done(f"saved {name}" + (f"\nusing {name}" if use or is_first else ""), {"name": name, "current": current})


@app.command()
def use(
    output: Output,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="A context; none to use no context.")] = None,
) -> None:
    """Make a context the current one."""
    contexts.use(name)
    output.done(f"using {name}" if name else "using no context", {"name": name, "current": name is not None})


@app.command()
def delete(name: Name, output: Output) -> None:
    """Forget a context."""
    contexts.require(name).unlink()
    if contexts.current() == name:
        contexts.use(None)
    output.done(f"deleted {name}", {"name": name, "result": "deleted"})
