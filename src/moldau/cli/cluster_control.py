"""How `moldau cluster status|add|…` speaks with the `moldau cluster` that runs the nodes: a line of JSON each way.

Over a Unix socket in the cluster's folder (or, where that path is too long for one, in the temporary folder); the file
`control` says where. Only its owner may connect.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from moldau.cli.failure import fail

_PATH_BYTES_MAX = 100  # of 108 on Linux, 104 on macOS
_LINE_BYTES_MAX = 1 << 20
_CONNECT_SECONDS = 5.0

Handler = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


def _place_file(folder: Path) -> Path:
    return folder / "control"


def _socket_place(folder: Path) -> Path:
    return folder.resolve() / "control.sock"


@asynccontextmanager
async def serving(folder: Path, handler: Handler) -> AsyncIterator[None]:
    """Answer requests for as long as this lasts."""
    place = _socket_place(folder)
    temporary: str | None = None
    if len(os.fsencode(place)) > _PATH_BYTES_MAX:
        temporary = tempfile.mkdtemp(prefix="moldau-cluster-")
        place = Path(temporary) / "control.sock"
    place.unlink(missing_ok=True)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = await reader.readline()
            try:
                reply = await handler(json.loads(line))
            except Exception as error:  # whatever is wrong with a request, the cluster goes on
                reply = {"error": f"{type(error).__name__}: {error}"}
            writer.write(json.dumps(reply).encode() + b"\n")
            await writer.drain()
        except (ConnectionError, ValueError):
            pass  # who asked has gone
        finally:
            writer.close()

    before = os.umask(0o177)
    try:
        server = await asyncio.start_unix_server(answer, path=str(place), limit=_LINE_BYTES_MAX)
    finally:
        os.umask(before)
    _place_file(folder).write_text(str(place))
    try:
        yield
    finally:
        server.close()
        for each in (place, _place_file(folder)):
            each.unlink(missing_ok=True)
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.rmdir(temporary)


def is_running(folder: Path) -> bool:
    try:
        _connected(folder).close()
    except OSError:
        return False
    return True


def ask(folder: Path, request: dict[str, Any], seconds: float = 120.0) -> dict[str, Any]:
    """One request to whoever runs the cluster; ends with a word if nobody does."""
    try:
        connection = _connected(folder)
    except OSError:
        fail(f"no `moldau cluster` runs {folder}: start it with moldau cluster start -d {folder}")
    with connection:
        connection.settimeout(seconds)
        connection.sendall(json.dumps(request).encode() + b"\n")
        with connection.makefile("rb") as lines:
            line = lines.readline()
    if not line:
        fail(f"the `moldau cluster` that runs {folder} ended meanwhile")
    reply: dict[str, Any] = json.loads(line)
    if "error" in reply:
        fail(str(reply["error"]))
    return reply


def _connected(folder: Path) -> socket.socket:
    place = _place_file(folder).read_text().strip()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(_CONNECT_SECONDS)
    try:
        connection.connect(place)
    except OSError:
        connection.close()
        raise
    return connection
