"""A console over a broker, as tests use it: a real server on loopback, and a client with a browser's manners."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn
from confluent_kafka import Consumer, Producer, TopicPartition

from moldau.console.app import create_app
from moldau.console.house import House
from moldau.console.settings import ConsoleSettings

HTMX = {"hx-request": "true"}
# Screens that show any cluster; topics, groups and messages have theirs besides.
SCREENS = (
    "/",
    "/topics",
    "/topics/orders",
    "/topics/orders/settings",
    "/topics/orders/messages",
    "/groups",
    "/brokers",
    "/brokers/1",
    "/reassignments",
    "/transactions",
    "/acls",
    "/users",
    "/quotas",
    "/dead-letters",
    "/dead-letters/orders-dlt",
    "/delays",
    "/traces",
    "/pipelines",
    "/schemas",
    "/audit",
    "/happened",
    "/api",
)


def send_letters(
    producer: Producer, reasons: Sequence[bytes], message: bytes, key: bytes | None = None, topic: str = "orders"
) -> None:
    """Orders that died, one for each reason."""
    for number, reason in enumerate(reasons):
        headers: list[tuple[str, str | bytes | None]] = [
            ("kafka_dlt-original-topic", topic),
            ("kafka_dlt-original-partition", bytes(4)),
            ("kafka_dlt-original-offset", number.to_bytes(8, "big")),
            ("kafka_dlt-exception-fqcn", reason),
            ("kafka_dlt-exception-message", message),
        ]
        producer.produce(f"{topic}-dlt", b'{"id": %d}' % number, key, headers=headers)


def commit_orders(address: str, group: str, offset: int, topic: str = "orders", partitions: int = 3) -> None:
    """As somebody who has read so far of each of the partitions, and left."""
    settings = {"bootstrap.servers": address, "group.id": group, "log_level": 0, "enable.auto.commit": False}
    reader = Consumer(settings)
    reader.commit(offsets=[TopicPartition(topic, index, offset) for index in range(partitions)], asynchronous=False)
    reader.close()


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
