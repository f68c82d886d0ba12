"""`moldau serve`: run a broker in this process until it is told to stop."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from moldau.broker.config import BrokerConfig

_DEFAULT_LISTEN = "127.0.0.1:9092"
_DEFAULT_DATA_DIR = "moldau-data"


def serve(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="A server.properties file, as for Kafka.")
    ] = None,
    data_dir: Annotated[
        str | None,
        typer.Option("--data-dir", "-d", metavar="DIR", help=f"Where data is kept [default: ./{_DEFAULT_DATA_DIR}]."),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen", "-l", metavar="HOST:PORT", help=f"Where clients connect [default: {_DEFAULT_LISTEN}]."
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", "-s", metavar="KEY=VALUE", help="One more setting; may be repeated.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say more about what happens.")] = False,
) -> None:
    """Run a broker. Prints `ready HOST:PORT` when clients may connect; stop it with Ctrl-C or SIGTERM."""
    from moldau.broker.config import InvalidConfig

    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    try:
        loaded = _load(config, data_dir, listen, overrides or [])
    except InvalidConfig as error:
        typer.echo(f"moldau: {error}", err=True)
        raise typer.Exit(2) from error
    except OSError as error:
        typer.echo(f"moldau: cannot read {config}: {error.strerror}", err=True)
        raise typer.Exit(2) from error
    raise typer.Exit(_run(loaded))


def _load(config: Path | None, data_dir: str | None, listen: str | None, overrides: list[str]) -> BrokerConfig:
    from moldau.broker.config import InvalidConfig, load_broker_config, read_properties

    settings = read_properties(str(config)) if config is not None else {}
    if listen is not None:
        host, _, port = listen.rpartition(":")
        if not host or not port.isdecimal():
            raise InvalidConfig(f"--listen {listen}: give HOST:PORT, for example {_DEFAULT_LISTEN}")
        settings["listeners"] = f"PLAINTEXT://{host}:{port}"
    elif config is None:
        settings["listeners"] = f"PLAINTEXT://{_DEFAULT_LISTEN}"
    if data_dir is not None or config is None:
        settings["log.dirs"] = data_dir or _DEFAULT_DATA_DIR
    return load_broker_config(settings, overrides)


def _run(config: BrokerConfig) -> int:
    from moldau.net import new_event_loop

    gc.disable()  # until the node is up, see below
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_serve(config))


async def _serve(config: BrokerConfig) -> int:
    from moldau.broker.config import InvalidConfig
    from moldau.broker.identity import WrongDirectory
    from moldau.broker.node import Node
    from moldau.log.errors import LogError

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set():  # asked twice: at once, and the next start recovers
            os._exit(1)
        stop.set()

    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, on_signal)
    node = Node(config)
    try:
        await node.start()
    except InvalidConfig as error:
        typer.echo(f"moldau: {error}", err=True)
        return 2
    except (WrongDirectory, LogError, OSError) as error:
        typer.echo(f"moldau: {error}", err=True)
        return 1
    for key in config.ignored:
        logging.getLogger("moldau").warning("%s is accepted and has no effect in Moldau", key)
    for host, port in node.addresses.values():
        typer.echo(f"ready {host}:{port}")
    sys.stdout.flush()
    # What exists now stays for the life of the broker: the collector need not look at it again.
    gc.freeze()
    gc.enable()
    await stop.wait()
    await node.stop()
    return 0
