"""A very small HTTP server for looking at a node: one GET per connection, answered and closed.

Everything is bounded: connections at a time, bytes of a request, and how long a client may take to send it or to read
the answer. No method changes anything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import NamedTuple

_log = logging.getLogger(__name__)
_CONNECTIONS_MAX = 32
_REQUEST_BYTES_MAX = 16 * 1024
_REQUEST_SECONDS_MAX = 5.0
_ANSWER_SECONDS_MAX = 30.0
_FLUSH_SECONDS_MAX = 10.0
_TEXT = "text/plain; charset=utf-8"


class HttpAnswer(NamedTuple):
    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = _TEXT


Page = Callable[[Mapping[str, str]], Awaitable[HttpAnswer]]
"""What answers a path. It is given the request's headers, by their names in lower case."""


class HttpEndpoint:
    """Lives on one running loop."""

    def __init__(self, pages: Mapping[str, Page]) -> None:
        self._pages = pages
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self._silent: dict[asyncio.StreamWriter, None] = {}  # who has not sent its request yet; the oldest first
        self.host, self.port = "", 0

    async def start(self, host: str, port: int) -> None:
        """OSError says which address could not be had."""
        try:
            self._server = await asyncio.start_server(self._connected, host, port, limit=_REQUEST_BYTES_MAX)
        except OSError as error:
            raise OSError(error.errno, f"cannot listen on {host}:{port} for HTTP: {error.strerror}") from error
        bound: tuple[str, int] = self._server.sockets[0].getsockname()[:2]
        self.host, self.port = bound

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            for task in self._open:
                task.cancel()
            await asyncio.gather(*self._open, return_exceptions=True)
            self._server = None

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if len(self._open) > _CONNECTIONS_MAX and not self._makes_room():
                return
            self._silent[writer] = None
            async with asyncio.timeout(_REQUEST_SECONDS_MAX):
                head = await reader.readuntil(b"\r\n\r\n")
            self._silent.pop(writer, None)
            async with asyncio.timeout(_ANSWER_SECONDS_MAX):
                is_head, answer = await self._answer(head)
                writer.write(_written(answer, without_body=is_head))
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, OSError):
            pass  # whoever it was has gone, sends too much, or nothing
        finally:
            self._silent.pop(writer, None)
            writer.close()
            try:
                async with asyncio.timeout(_FLUSH_SECONDS_MAX):
                    await writer.wait_closed()
            except (OSError, asyncio.CancelledError):
                writer.transport.abort()  # a client that does not read its answer must not keep others out

    def _makes_room(self) -> bool:
        """Who only holds a place goes first: an orchestrator that cannot ask whether a node lives would end it."""
        longest = next(iter(self._silent), None)
        if longest is None:
            return False
        del self._silent[longest]
        longest.transport.abort()
        return True

    async def _answer(self, head: bytes) -> tuple[bool, HttpAnswer]:
        first, *rest = head.decode("latin-1").split("\r\n")
        words = first.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return False, _plain(HTTPStatus.BAD_REQUEST)
        method, target, _ = words
        if method not in ("GET", "HEAD"):
            return False, _plain(HTTPStatus.METHOD_NOT_ALLOWED)
        page = self._pages.get(target.partition("?")[0])
        if page is None:
            return method == "HEAD", HttpAnswer(f"there is {', '.join(self._pages)}\n".encode(), HTTPStatus.NOT_FOUND)
        split = (line.partition(":") for line in rest if line)
        headers = {name.strip().lower(): value.strip() for name, _, value in split}
        try:
            return method == "HEAD", await page(headers)
        except Exception:
            _log.exception("%r failed", target)
            return method == "HEAD", _plain(HTTPStatus.INTERNAL_SERVER_ERROR)


def _plain(status: HTTPStatus) -> HttpAnswer:
    return HttpAnswer(f"{status.phrase}\n".encode(), status)


def _written(answer: HttpAnswer, *, without_body: bool) -> bytes:
    lines = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(answer.body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
        "",
        "",
    )
    return "\r\n".join(lines).encode() + (b"" if without_body else answer.body)
