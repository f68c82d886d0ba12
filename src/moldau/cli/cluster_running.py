"""Running the nodes of a cluster on this machine, each a process of its own, and starting again whichever dies.

A node that ends by itself is started again, at once the first time and after longer and longer pauses if it goes on
dying. What people ask for (`moldau cluster restart|add|…`) comes in as requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from moldau.cli import cluster_control
from moldau.cli.cluster_folder import (
    address_of,
    broker_settings,
    client_properties,
    is_secure,
    is_voter,
    node_numbers,
    read_settings,
    write_settings,
)

if TYPE_CHECKING:
    from moldau.cli.console_beside import ConsoleBeside

_STOP_SECONDS_MAX = 60
_PAUSE_SECONDS_MAX = 30.0
_WELL_AFTER_SECONDS = 30.0  # so long a node must have run for its deaths to be forgotten


class NodeProcess:
    """One node. Its standard input is a pipe nobody writes to: when this process is gone, the node sees its end."""

    def __init__(self, number: int, file: Path, verbose: bool) -> None:
        self.number = number
        self._command = [sys.executable, "-m", "moldau", "serve", "--until-stdin-closes", "--config", str(file)]
        if verbose:
            self._command.append("--verbose")
        self.process: asyncio.subprocess.Process | None = None
        self.address: str | None = None
        self.started_at = 0.0
        self.restarts = 0
        self.deaths = 0  # in a row
        self.is_wanted = True
        self.change = asyncio.Event()  # somebody wants something else of it
        self.ready = asyncio.Event()
        self.failed = asyncio.Event()  # it ended before it was ready

    @property
    def state(self) -> str:
        if self.process is None or self.process.returncode is not None:
            return "stopped" if not self.is_wanted else "dead"
        return "online" if self.ready.is_set() else "starting"

    async def start(self) -> bool:
        """Whether it serves now; False if it ended instead."""
        # A session of its own: Ctrl-C reaches only this process, which then tells all nodes, once.
        self.process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        self.started_at = time.monotonic()
        assert self.process.stdout is not None
        word, _, address = (await self.process.stdout.readline()).decode().strip().partition(" ")
        if word != "ready":
            self.failed.set()
            return False
        self.address = address
        self.ready.set()
        return True

    async def stop(self) -> int:
        process = self.process
        if process is None:
            return 0
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(_STOP_SECONDS_MAX):
                return await process.wait()
        except TimeoutError:
            process.kill()
            return await process.wait()


class Supervisor:
    """All nodes, and what people ask about them."""

    def __init__(self, folder: Path, files: dict[int, Path], base_port: int, verbose: bool, *, restarts: bool) -> None:
        self._folder = folder
        self._base_port = base_port
        self._verbose = verbose
        self._restarts = restarts
        self.nodes = {number: NodeProcess(number, file, verbose) for number, file in files.items()}
        self._keeping: dict[int, asyncio.Task[None]] = {}
        self.stopping = asyncio.Event()
        self.is_up = False
        self.console: str | None = None  # where a console shall run beside the nodes

    async def run(self) -> int:
        """Until asked to stop. The exit status."""
        loop = asyncio.get_running_loop()
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(each, self.stopping.set)
        stopping = asyncio.ensure_future(self.stopping.wait())
        statuses: list[int] = []
        try:
            # Until the last node has ended: whoever asked to stop waits for that, and nobody starts it again before.
            async with cluster_control.serving(self._folder, self._handle):
                try:
                    if not await self._serve(stopping):
                        return 1
                finally:
                    self.stopping.set()
                    for task in self._keeping.values():
                        task.cancel()
                    await asyncio.gather(*self._keeping.values(), return_exceptions=True)
                    statuses = await asyncio.gather(*(node.stop() for node in self.nodes.values()))
        finally:
            stopping.cancel()
            await asyncio.gather(stopping, return_exceptions=True)
        return 0 if all(status <= 0 for status in statuses) else 1

    async def _serve(self, stopping: asyncio.Future[Any]) -> bool:
        """Start all nodes and wait until asked to stop. False if one does not come up."""
        for node in self.nodes.values():
            self._keep(node)
        came_up = asyncio.ensure_future(self._all_ready())
        await asyncio.wait([came_up, stopping], return_when=asyncio.FIRST_COMPLETED)
        if self.stopping.is_set():
            came_up.cancel()
            return True
        if not came_up.result():
            typer.echo("moldau: not all nodes started; what they said is above", err=True)
            return False
        self.is_up = True
        addresses = ",".join(node.address for _, node in sorted(self.nodes.items()) if node.address)
        typer.echo(f"ready {addresses}")
        sys.stdout.flush()
        beside = self._console_beside(addresses) if self.console is not None else None
        await stopping
        if beside is not None:
            await asyncio.to_thread(beside.stop)
        return True

    def _console_beside(self, addresses: str) -> ConsoleBeside:
        from moldau.cli.console_beside import ConsoleBeside

        login = ["--command-config", str(client_properties(self._folder))] if is_secure(self._folder) else []
        return ConsoleBeside(addresses, self.console or "", login)

    async def _all_ready(self) -> bool:
        async def one(node: NodeProcess) -> bool:
            waits = [asyncio.ensure_future(each.wait()) for each in (node.ready, node.failed)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for each in waits:
                each.cancel()
            return node.ready.is_set()

        return all(await asyncio.gather(*(one(node) for node in self.nodes.values())))

    def _keep(self, node: NodeProcess) -> None:
        self._keeping[node.number] = asyncio.ensure_future(self._keep_running(node))

    async def _keep_running(self, node: NodeProcess) -> None:
        while not self.stopping.is_set():
            if not node.is_wanted:
                node.change.clear()
                await node.change.wait()
                continue
            node.ready.clear()
            await node.start()
            assert node.process is not None
            status = await node.process.wait()
            node.ready.clear()
            if self.stopping.is_set() or not node.is_wanted:
                continue
            if not self.is_up and node.failed.is_set():
                return  # the first start: everybody stops, and what it said is above
            how = f"by signal {-status}" if status < 0 else f"with status {status}"
            if not self._restarts:
                left = sum(each.state == "online" for each in self.nodes.values())
                typer.echo(f"moldau: node {node.number} ended {how}; {left} of {len(self.nodes)} go on", err=True)
                node.is_wanted = False
                continue
            await self._pause(node, how)

    async def _pause(self, node: NodeProcess, how: str) -> None:
        """Before it is started again: nothing at first, then longer and longer."""
        if time.monotonic() - node.started_at > _WELL_AFTER_SECONDS:
            node.deaths = 0
        pause = 0.0 if node.deaths == 0 else min(_PAUSE_SECONDS_MAX, 2.0 ** (node.deaths - 1))
        node.deaths += 1
        node.restarts += 1
        when = "now" if not pause else f"in {pause:g} s"
        typer.echo(f"moldau: node {node.number} ended {how}; starting it again {when}", err=True)
        node.change.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await node.change.wait()

    # -- requests

    async def _handle(self, request: dict[str, Any]) -> dict[str, Any]:
        what = request.get("do")
        if what == "status":
            return {"nodes": [self._status(node) for _, node in sorted(self.nodes.items())], "ready": self.is_up}
        if what == "stop":
            self.stopping.set()
            return {}
        if self.stopping.is_set():
            return {"error": "the cluster is stopping"}
        if what == "add":
            return await self._add()
        node = self.nodes.get(int(request.get("node", 0)))
        if node is None:
            return {"error": f"there is no node {request.get('node')}; there are {', '.join(map(str, self.nodes))}"}
        if what == "restart":
            return await self._restart(node, kill=bool(request.get("kill")))
        if what == "start":
            return await self._start(node)
        if what == "remove":
            return await self._remove(node)
        return {"error": f"nobody knows how to {what}"}

    def _status(self, node: NodeProcess) -> dict[str, Any]:
        is_alive = node.process is not None and node.process.returncode is None
        return {
            "node": node.number,
            "roles": "voter, broker" if is_voter(self._folder, node.number) else "broker",
            "address": address_of(self._folder, node.number),
            "state": node.state,
            "pid": node.process.pid if is_alive and node.process else None,
            "restarts": node.restarts,
            "uptime_seconds": round(time.monotonic() - node.started_at) if is_alive else None,
        }

    async def _restart(self, node: NodeProcess, *, kill: bool) -> dict[str, Any]:
        node.is_wanted = False
        if kill and node.process is not None and node.process.returncode is None:
            node.process.kill()
        await node.stop()
        return await self._start(node)

    async def _start(self, node: NodeProcess) -> dict[str, Any]:
        if node.state in ("online", "starting") and node.is_wanted:
            return self._status(node)
        node.deaths = 0
        node.failed.clear()
        node.is_wanted = True
        node.change.set()
        ready = asyncio.ensure_future(node.ready.wait())
        failed = asyncio.ensure_future(node.failed.wait())
        await asyncio.wait([ready, failed], return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        failed.cancel()
        if not node.ready.is_set():
            return {"error": f"node {node.number} did not start; the `moldau cluster` that runs it says why"}
        return self._status(node)

    async def _add(self) -> dict[str, Any]:
        number = max(node_numbers(self._folder)) + 1
        settings = broker_settings(read_settings(self._folder, 1), self._folder, number, self._base_port)
        node = NodeProcess(number, write_settings(self._folder, number, settings), self._verbose)
        self.nodes[number] = node
        self._keep(node)
        return await self._start_new(node)

    async def _start_new(self, node: NodeProcess) -> dict[str, Any]:
        ready = asyncio.ensure_future(node.ready.wait())
        failed = asyncio.ensure_future(node.failed.wait())
        await asyncio.wait([ready, failed], return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        failed.cancel()
        if node.ready.is_set():
            return self._status(node)
        await self._forget(node)
        return {"error": f"node {node.number} did not start; the `moldau cluster` that runs it says why"}

    async def _forget(self, node: NodeProcess) -> None:
        node.is_wanted = False
        task = self._keeping.pop(node.number)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await node.stop()
        del self.nodes[node.number]

    async def _remove(self, node: NodeProcess) -> dict[str, Any]:
        if is_voter(self._folder, node.number):
            return {"error": f"node {node.number} is a voter, and those are fixed: only added brokers can be removed"}
        await self._forget(node)
        aside = self._folder / f"removed-{node.number}-{int(time.time())}"
        data = self._folder / f"node-{node.number}"
        if data.exists():
            data.rename(aside)
        (self._folder / f"node-{node.number}.properties").unlink(missing_ok=True)
        return {"kept": str(aside)}
