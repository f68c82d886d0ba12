"""A console over a broker, as tests use it: a real server on loopback, and a client with a browser's manners."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn

from moldau.console.app import create_app
from moldau.console.house import House
from moldau.console.settings import ConsoleSettings

HTMX = {"hx-request": "true"}


class Client(httpx.Client):
    """Also knows the house behind it, and its routes."""

    house: House
    routes: list[Any]
    origin: str


@contextmanager
def console(address: str, **settings: Any) -> Iterator[Client]:
    settings.setdefault("refresh_s", 0.2)
    app = create_app(ConsoleSettings(kafka={"bootstrap.servers": address}, **settings))
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1, loop="asyncio", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])), name="console under test")
    thread.start()
    base = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        with Client(base_url=base, timeout=30) as client:
            client.house, client.routes, client.origin = app.state.house, app.routes, base
            yield client
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def eventually(condition: Callable[[], Any], what: str, seconds: float = 20.0) -> Any:
    """What a condition is, once it holds."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"never happened: {what}")
        time.sleep(0.02)
    return found


def post(client: Client, path: str, **fields: str) -> Any:
    """With the session's token, as a page of the console would."""
    token = client.get("/api/session").json()["csrf"]
    return client.post(path, data={**fields, "csrf": token}, headers={"origin": client.origin})


def fragment(client: Client, path: str, target: str = "rows") -> str:
    answer = client.get(path, headers={**HTMX, "hx-target": target})
    assert answer.status_code == 200, answer.text
    text: str = answer.text
    return text
