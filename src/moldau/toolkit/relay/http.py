"""/health and /metrics over HTTP, and nothing else: two answers do not need a framework."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

_SECONDS = 5.0
_LINES_MAX = 100
_BYTES_MAX = 8_192

Answers = dict[str, Callable[[], tuple[int, str, str]]]


def health_answers(health: Callable[[], dict[str, Any]], metrics: Callable[[], str]) -> Answers:
    """200 when all is well, 503 otherwise; and the numbers."""

    def healthy() -> tuple[int, str, str]:
        found = health()
        return (200 if found["ok"] else 503), "application/json", json.dumps(found, indent=1) + "\n"

    return {
        "/health": healthy,
        "/metrics": lambda: (200, "text/plain; version=0.0.4; charset=utf-8", metrics()),
    }


async def serve_answers(host: str, port: int, answers: Answers) -> asyncio.Server:
    """Answer until the server is closed."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_SECONDS):
                path = await _path(reader)
                found = answers.get(path) if path is not None else None
                if path is None:
                    reply = 400, "text/plain", "GET only\n"
                else:
                    reply = found() if found is not None else (404, "text/plain", " ".join(answers) + "\n")
                writer.write(_encoded(*reply))
                await writer.drain()
        except (TimeoutError, ConnectionError, ValueError):
            pass  # whoever asked is gone, or never asked
        finally:
            writer.close()

    return await asyncio.start_server(answer, host, port, limit=_BYTES_MAX)


async def _path(reader: asyncio.StreamReader) -> str | None:
    """What is asked for, once the whole request has been read."""
    words = (await reader.readline()).decode("latin-1").split()
    for _ in range(_LINES_MAX):
        if not (await reader.readline()).strip():
            break
    if len(words) < 2 or words[0] not in ("GET", "HEAD"):
        return None
    return words[1].partition("?")[0]


def _encoded(status: int, kind: str, text: str) -> bytes:
    reason = {200: "OK", 400: "Bad Request", 404: "Not Found", 503: "Service Unavailable"}[status]
    body = text.encode()
    lines = f"HTTP/1.1 {status} {reason}", f"Content-Type: {kind}", f"Content-Length: {len(body)}", "Connection: close"
    return "\r\n".join([*lines, "", ""]).encode() + body
