"""`moldau cluster`: several nodes on this machine, each a process of its own, started and stopped together.

Each node is `moldau serve` with a server.properties beside its data, so any of them can be looked at, killed and run
by hand. If one ends by itself, the others go on: that is what a cluster is for.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from moldau.cli.frame import Commands

app = Commands()

_HOST = "127.0.0.1"
_CONTROLLERS_AT = 100  # their ports, that far above the brokers'
_NODES_MAX = 100
_STOP_SECONDS_MAX = 60


@app.command()
def cluster(
    nodes: Annotated[int, typer.Option("--nodes", "-n", min=1, max=_NODES_MAX, help="How many nodes.")] = 3,
    data_dir: Annotated[
        Path, typer.Option("--data-dir", "-d", metavar="DIR", help="Where data is kept, a folder per node.")
    ] = Path("moldau-cluster"),
    base_port: Annotated[
        int,
        typer.Option(
            "--base-port",
            "-p",
            min=1,
            max=65_535 - _CONTROLLERS_AT - _NODES_MAX,
            help=f"The first node's port; the others follow, and their controllers {_CONTROLLERS_AT} above.",
        ),
    ] = 9092,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="KEY=VALUE", help="One more setting for every node; may be repeated."),
    ] = None,
    secure: Annotated[
        bool, typer.Option("--secure", help="TLS and logins: makes certificates, users and a client.properties.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say more about what happens.")] = False,
) -> None:
    """Run a cluster. Prints `ready HOST:PORT,…` when all nodes serve; stop it with Ctrl-C or SIGTERM."""
    from moldau.broker.config import InvalidConfig, load_broker_config, parse_overrides
    from moldau.broker.config.cluster import NodePorts, cluster_settings
    from moldau.broker.node.identity import WrongDirectory
    from moldau.cli.secure_folder import SecureFolder
    from moldau.security.certificates import CertificatesUnavailable, write_secret

    refusal = _other_size(data_dir, nodes)
    if refusal is not None:
        typer.echo(f"moldau: {refusal}", err=True)
        raise typer.Exit(2)
    ports = [NodePorts(base_port + place, base_port + _CONTROLLERS_AT + place) for place in range(nodes)]
    files = []
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        folder = data_dir.resolve()
        security = SecureFolder(folder) if secure else None
        listener = security.listener if security is not None else "PLAINTEXT"
        for number, settings in enumerate(cluster_settings(_HOST, ports, str(folder), listener=listener), start=1):
            more = security.settings() if security is not None else {}
            complete = settings | more | parse_overrides(overrides or [])
            loaded = load_broker_config(complete)
            if security is not None:
                security.format(loaded)
            file = data_dir / f"node-{number}.properties"
            write_secret(file, "".join(f"{key}={value}\n" for key, value in complete.items()))
            files.append(file)
        if security is not None:
            servers = ",".join(f"{_HOST}:{each.broker}" for each in ports)
            typer.echo(f"log in with {security.write_client_properties(servers)}", err=True)
    except (InvalidConfig, WrongDirectory, CertificatesUnavailable, OSError, ValueError) as error:
        typer.echo(f"moldau: {error}", err=True)
        raise typer.Exit(2) from error
    raise typer.Exit(asyncio.run(_run(files, verbose)))


def _other_size(data_dir: Path, nodes: int) -> str | None:
    """Why the cluster that is there already cannot be run with so many nodes: its voters are fixed."""
    there = [each for each in data_dir.glob("node-*") if each.is_dir() and each.name.removeprefix("node-").isdigit()]
    if not there or len(there) == nodes:
        return None
    return (
        f"{data_dir} holds a cluster of {len(there)} nodes, all of them voters, and voters cannot be added or left out "
        f"like that: use --nodes {len(there)}, or another --data-dir. More brokers join with moldau serve, a node.id "
        "of their own, process.roles=broker and the same controller.quorum.voters"
    )


class _NodeProcess:
    """One node. Its standard input is a pipe nobody writes to: when this process is gone, the node sees its end."""

    def __init__(self, number: int, file: Path, verbose: bool) -> None:
        self.number = number
        self._command = [sys.executable, "-m", "moldau", "serve", "--until-stdin-closes", "--config", str(file)]
        if verbose:
            self._command.append("--verbose")
        self.process: asyncio.subprocess.Process

    async def start(self) -> str | None:
        """The address clients use; None if the node ended instead."""
        # A session of its own: Ctrl-C reaches only this process, which then tells all nodes, once.
        self.process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        word, _, address = (await self.process.stdout.readline()).decode().strip().partition(" ")
        return address if word == "ready" else None

    async def ended(self) -> str:
        status = await self.process.wait()
        return f"node {self.number} ended " + (f"by signal {-status}" if status < 0 else f"with status {status}")

    async def stop(self) -> int:
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        try:
            async with asyncio.timeout(_STOP_SECONDS_MAX):
                return await self.process.wait()
        except TimeoutError:
            self.process.kill()
            return await self.process.wait()


async def _run(files: list[Path], verbose: bool) -> int:
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, asked.set)
    nodes = [_NodeProcess(number, file, verbose) for number, file in enumerate(files, start=1)]
    starting = asyncio.gather(*(node.start() for node in nodes))
    stopping: asyncio.Future[bool] = asyncio.ensure_future(_until(asked))
    try:
        await _first_of(starting, stopping)
        if starting.done():
            addresses = starting.result()
            if None in addresses:
                typer.echo("moldau: not all nodes started; what they said is above", err=True)
                return 1
            typer.echo(f"ready {','.join(each for each in addresses if each)}")
            sys.stdout.flush()
            await _watch(nodes, stopping)
    finally:
        stopping.cancel()
        starting.cancel()
        await asyncio.gather(starting, stopping, return_exceptions=True)
        statuses = await asyncio.gather(*(node.stop() for node in nodes if hasattr(node, "process")))
    return 0 if asked.is_set() and all(status <= 0 for status in statuses) else 1


async def _until(event: asyncio.Event) -> bool:
    return await event.wait()


async def _first_of(*futures: asyncio.Future[Any]) -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


async def _watch(nodes: list[_NodeProcess], stopping: asyncio.Future[bool]) -> None:
    """Until asked to stop, or nobody is left."""
    running = {asyncio.ensure_future(node.ended()) for node in nodes}
    while running and not stopping.done():
        await _first_of(*running, stopping)
        over = {each for each in running if each.done()}
        running -= over
        if not stopping.done():
            for each in over:
                typer.echo(f"moldau: {each.result()}; {len(running)} of {len(nodes)} go on", err=True)
    for each in running:
        each.cancel()
    await asyncio.gather(*running, return_exceptions=True)
