"""`moldau cluster`: several nodes on this machine, each a process of its own, started, changed and stopped together.

Each node is `moldau serve` with a server.properties beside its data, so any of them can be looked at, killed and run
by hand. One that dies is started again; meanwhile the others go on: that is what a cluster is for.
"""

from __future__ import annotations

import asyncio
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from moldau.cli import cluster_folder as folders
from moldau.cli.client_settings import read_settings
from moldau.cli.cluster_control import ask, is_running
from moldau.cli.data_folder import trouble
from moldau.cli.failure import ExitCode, counted, fail, misused, tell
from moldau.cli.frame import Commands, Output
from moldau.cli.os_errors import reason
from moldau.cli.target import Target, addresses, hangs

app = Commands(help="Run a cluster on this machine, and change it.", invoke_without_command=True)

DataDir = Annotated[
    Path, typer.Option("--data-dir", "-d", metavar="DIR", help="Where the cluster is, a folder per node.")
]
Nodes = Annotated[
    int | None, typer.Option("--nodes", "-n", min=1, max=folders.NODES_MAX, help="How many nodes; 3 if not said.")
]
BasePort = Annotated[
    int,
    typer.Option(
        "--base-port",
        "-p",
        min=1,
        max=65_535 - folders.CONTROLLERS_AT - folders.NODES_MAX,
        help=f"The first node's port; the others follow, and their controllers {folders.CONTROLLERS_AT} above.",
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="KEY=VALUE", help="One more setting for every node; may be repeated."),
]
Secure = Annotated[
    bool, typer.Option("--secure", help="TLS and logins: makes certificates, users and a client.properties.")
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say more about what happens.")]
Console = Annotated[
    str | None, typer.Option("--console", metavar="[HOST:]PORT", help="Also run a console there, for the browser.")
]
Metrics = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="[HOST:]PORT",
        help="Where the first node serves metrics and health over HTTP; the others on the ports that follow.",
    ),
]
NoRestart = Annotated[bool, typer.Option("--no-restart", help="Leave a node that died as it is.")]
_IN_SYNC_SECONDS = 120.0
_GLANCE_SECONDS = 2.0  # a node that needs longer to say which versions it speaks is told to hang
_PATIENCE_SECONDS = 10.0  # and is killed for it


@app.callback()
def _cluster(
    ctx: typer.Context,
    nodes: Nodes = None,
    data_dir: DataDir = folders.DEFAULT,
    base_port: BasePort = folders.DEFAULT_PORT,
    overrides: Overrides = None,
    secure: Secure = False,
    verbose: Verbose = False,
    no_restart: NoRestart = False,
    console: Console = None,
    metrics: Metrics = None,
) -> None:
    """Run a cluster on this machine, and change it. Without a command: `start`."""
    if ctx.invoked_subcommand is None:
        start(nodes, data_dir, base_port, overrides, secure, verbose, no_restart, console, metrics)


@app.command()
def start(
    nodes: Nodes = None,
    data_dir: DataDir = folders.DEFAULT,
    base_port: BasePort = folders.DEFAULT_PORT,
    overrides: Overrides = None,
    secure: Secure = False,
    verbose: Verbose = False,
    no_restart: NoRestart = False,
    console: Console = None,
    metrics: Metrics = None,
) -> None:
    """Run a cluster. Prints `ready HOST:PORT,…` when all nodes serve; stop it with Ctrl-C or SIGTERM."""
    from moldau.broker.config import InvalidConfig, parse_overrides
    from moldau.broker.node.identity import WrongDirectory
    from moldau.cli.cluster_running import Supervisor
    from moldau.security.certificates import CertificatesUnavailable

    if is_running(data_dir):
        fail(f"the cluster in {data_dir} is running already: moldau cluster status -d {data_dir}")
    unusable = trouble(str(data_dir))
    if unusable is not None:
        misused(unusable)
    voters = folders.voters_to_run(data_dir, nodes)
    try:
        given = parse_overrides(overrides or [])
        if metrics is not None:
            given["moldau.http.listener"] = metrics
        files = folders.make_settings(data_dir, voters, base_port, given, secure=secure)
        if folders.is_secure(data_dir):
            tell(f"log in with --config {folders.client_properties(data_dir)}")
    except (InvalidConfig, WrongDirectory, CertificatesUnavailable, OSError, ValueError) as error:
        misused(reason(error))
    supervisor = Supervisor(data_dir, files, base_port, verbose, restarts=not no_restart)
    supervisor.console = console
    raise typer.Exit(asyncio.run(supervisor.run()))


@app.command(watchable=True)
def status(output: Output, data_dir: DataDir = folders.DEFAULT) -> None:
    """The nodes: where they are, whether they run, how often they were started again."""
    if not folders.node_numbers(data_dir):
        fail(f"there is no cluster in {data_dir}", ExitCode.NOT_FOUND)
    if is_running(data_dir):
        rows = _looked_at(data_dir)
    else:
        rows = [
            {
                "node": number,
                "roles": "voter, broker" if folders.is_voter(data_dir, number) else "broker",
                "address": folders.address_of(data_dir, number),
                "state": "stopped",
                "pid": None,
                "restarts": None,
                "uptime_seconds": None,
            }
            for number in folders.node_numbers(data_dir)
        ]
    output.show(rows)


def _looked_at(data_dir: Path, patience: float = _GLANCE_SECONDS) -> list[dict[str, Any]]:
    """The nodes, as who runs them sees their processes; one that serves and says nothing to clients hangs."""
    rows: list[dict[str, Any]] = ask(data_dir, {"do": "status"})["nodes"]
    with ThreadPoolExecutor(len(rows)) as at_once:
        served = [row for row in rows if row["state"] == "online"]
        answers = at_once.map(lambda each: _hangs(each["address"], patience), served)
        for row, is_hanging in zip(served, answers, strict=True):
            row["state"] = "hangs" if is_hanging else "online"
    return rows


def _hangs(address: str, patience: float) -> bool:
    return bool(address) and all(hangs(host, port, patience) for host, port in addresses(address))


@app.command()
def add(output: Output, data_dir: DataDir = folders.DEFAULT) -> None:
    """One more broker. `moldau reassign plan` then spreads partitions to it."""
    added = ask(data_dir, {"do": "add"})
    row = {"node": added["node"], "address": added["address"], "result": "added"}
    output.done(f"node {added['node']} serves at {added['address']}", row)


@app.command()
def remove(
    output: Output,
    node: Annotated[int, typer.Argument(metavar="NODE", min=1, help="A node that was added.")],
    data_dir: DataDir = folders.DEFAULT,
    throttle: Annotated[
        int | None,
        typer.Option("--throttle", metavar="BYTES", min=1, help="At most so many bytes a second and broker."),
    ] = None,
) -> None:
    """Take a broker away: its partitions move to the others first, then it is stopped and forgotten."""
    from moldau.cli import broker, reassign

    rows = ask(data_dir, {"do": "status"})["nodes"]
    if node not in [row["node"] for row in rows]:
        fail(f"there is no node {node}; there are {', '.join(str(row['node']) for row in rows)}", ExitCode.NOT_FOUND)
    if folders.is_voter(data_dir, node):
        fail(f"node {node} is a voter, and those are fixed: only added brokers can be removed")
    target = _target(data_dir)
    with _aside(output):
        reassign.drain(target, Output(), node, execute=True, throttle=throttle, wait=True)
    kept = ask(data_dir, {"do": "remove", "node": node})["kept"]
    with _aside(output):
        broker.unregister(target, Output(), node)
    row = {"node": node, "result": "removed", "kept": str(kept)}
    output.done(f"removed node {node}; its folder is kept as {kept}", row)


@app.command()
def restart(
    output: Output,
    numbers: Annotated[
        list[int] | None, typer.Argument(metavar="NODE...", help="All, one by one, if none named.")
    ] = None,
    data_dir: DataDir = folders.DEFAULT,
) -> None:
    """Restart nodes one by one; the next one only when all replicas are in sync again. Clients go on."""
    known = [row["node"] for row in ask(data_dir, {"do": "status"})["nodes"]]
    missing = sorted(set(numbers or ()) - set(known))
    if missing:
        fail(f"there is no node {missing[0]}; there are {', '.join(map(str, known))}", ExitCode.NOT_FOUND)
    target = _target(data_dir)
    for number in numbers or known:
        _until_in_sync(target, f"before node {number} is stopped")
        ask(data_dir, {"do": "restart", "node": number})
        output.done(f"restarted node {number}", {"node": number, "result": "restarted"})
    _until_in_sync(target, "at the end")


@app.command()
def heal(output: Output, data_dir: DataDir = folders.DEFAULT) -> None:
    """Start nodes that are down or hang, wait until all replicas are in sync, and give leaderships back."""
    from moldau.cli import broker

    for row in _looked_at(data_dir, _PATIENCE_SECONDS):
        if row["state"] == "hangs":  # it would not stop by itself either
            ask(data_dir, {"do": "restart", "node": row["node"], "kill": True})
            output.done(f"restarted node {row['node']}, which hung", {"node": row["node"], "result": "restarted"})
        elif row["state"] in ("dead", "stopped"):
            ask(data_dir, {"do": "start", "node": row["node"]})
            output.done(f"started node {row['node']}", {"node": row["node"], "result": "started"})
    target = _target(data_dir)
    _until_in_sync(target, "")
    with _aside(output):
        broker.elect_leaders(target, Output())
        typer.echo("all replicas are in sync")


@app.command()
def stop(output: Output, data_dir: DataDir = folders.DEFAULT) -> None:
    """Stop the cluster, as Ctrl-C does where it runs, and wait until all nodes have ended."""
    ask(data_dir, {"do": "stop"})
    deadline = time.monotonic() + _IN_SYNC_SECONDS
    while is_running(data_dir) and time.monotonic() < deadline:
        time.sleep(0.1)  # another process stops: it can only be looked at
    if is_running(data_dir):
        fail(f"the cluster in {data_dir} is still stopping: moldau cluster status -d {data_dir}")
    output.done("stopped", {"data_dir": str(data_dir), "result": "stopped"})


def _aside(output: Output) -> AbstractContextManager[Any]:
    """What happens on the way: for a script, whose output is the result, it is told beside that."""
    return redirect_stdout(sys.stderr) if output.is_for_scripts else nullcontext()


def _target(data_dir: Path) -> Target:
    servers = {"bootstrap.servers": folders.bootstrap_servers(data_dir)}
    if folders.is_secure(data_dir):
        return Target(read_settings(str(folders.client_properties(data_dir))) | servers)
    return Target(servers)


def _until_in_sync(target: Target, when: str) -> None:
    deadline = time.monotonic() + _IN_SYNC_SECONDS
    said = False
    while True:
        late = _late(target)
        if not late:
            return
        if time.monotonic() > deadline:
            fail(f"{counted(len(late), 'partition')} still not in sync, {late[0]} for one: moldau doctor says more")
        if not said:
            said = True
            tell(f"waiting for {counted(len(late), 'partition')} to be in sync {when}".rstrip())
        time.sleep(0.2)  # brokers tell nobody that replicas have caught up; they can only be asked


def _late(target: Target) -> list[str]:
    from moldau.client.connection import ClientError

    try:
        with target.admin() as admin:
            topics = admin.metadata().topics
    except ClientError as error:
        return [f"(nobody answers: {error})"]
    return [
        f"{topic.name}-{row.partition_index}"
        for topic in topics
        for row in topic.partitions
        if len(row.isr_nodes) < len(row.replica_nodes) or row.leader_id < 0
    ]
