"""The console over the demo's shop, every screen with something on it; and pictures of all that.

    python -m tests.interop.console_pictures FOLDER      # every screen, two widths, both colours; a minute or two

The pictures that docs/console.md shows are among them: `python -m tests.interop.console_pictures --docs` renews them.
"""

from __future__ import annotations

import io
import json
import os
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import fastavro
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from playwright.sync_api import Browser, Page, expect
from rich.console import Console

from moldau.demo import toolkit
from moldau.demo.summary import Summary
from moldau.testing import Cluster
from moldau.toolkit.delays import entry
from moldau.toolkit.delays.topics import DelayTopics
from moldau.toolkit.trace import TRACE_TOPIC
from tests.console.registry import NEW, serving
from tests.console.support import Client, console, eventually, post
from tests.interop.peers.chromium import chromium

WIDE, PHONE = {"width": 1360, "height": 850}, {"width": 390, "height": 844}
SIZES = {"wide": WIDE, "phone": PHONE}
COLOURS = ("light", "dark")
SCREENS = {
    "overview": "/",
    "topics": "/topics",
    "topic": "/topics/orders",
    "messages": "/topics/orders/messages",
    "message": "/topics/orders/messages/0/1",
    "settings": "/topics/orders/settings",
    "groups": "/groups",
    "group": "/group?name=billing",
    "brokers": "/brokers",
    "broker": "/brokers/1",
    "reassignments": "/reassignments",
    "transactions": "/transactions",
    "acls": "/acls",
    "users": "/users",
    "quotas": "/quotas",
    "dead-letters": "/dead-letters",
    "letters": "/dead-letters/orders-dlt",
    "delays": "/delays",
    "traces": "/traces",
    "trace": "/traces?id=o-17",
    "pipelines": "/pipelines",
    "pipeline": "/pipeline?name=revenue",
    "schemas": "/schemas",
    "schema": "/schema?subject=orders-value",
    "audit": "/audit",
    "happened": "/happened",
    "api": "/api",
    "nothing": "/topics/nope",
}
DOCS = (
    ("overview", "wide", "light"),
    ("messages", "wide", "dark"),
    ("group", "wide", "light"),
    ("brokers", "wide", "dark"),
    ("overview", "phone", "dark"),
    ("group", "phone", "light"),
)
_PATIENCE_MS = 30_000


@contextmanager
def furnished() -> Iterator[tuple[Client, Cluster]]:
    """A console on a cluster of three in which the demo's shop has run, and goes on a little."""
    settings = {
        "default.replication.factor": "3",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="console-pictures-")))
        cluster = stack.enter_context(Cluster(nodes=3, settings=settings))
        address = cluster.bootstrap_servers
        toolkit.show(address, folder / "shop", Console(file=io.StringIO()), Summary())
        _pipeline(folder / "pipelines")
        _toolkits_topics(address)
        _group_that_is_behind(address)
        registry, _ = stack.enter_context(serving())
        client = stack.enter_context(
            console(address, refresh_s=0.5, registry_url=registry, pipeline_folders=(folder / "pipelines",))
        )
        _access(client)
        stack.enter_context(_traffic(address))
        eventually(lambda: "billing" in client.house.snapshot.groups, "the console sees the group")
        yield client, cluster


def _pipeline(folder: Path) -> None:
    def query(name: str, **more: Any) -> dict[str, Any]:
        known = {"name": name, "state": "running", "batch_id": 41, "rows_total": 92_341, "rows_per_second": 530.5}
        return known | {"lag_records": 12, "batch_ms": 812.0, "error": ""} | more

    failed = query("late-orders", state="failed", rows_per_second=0.0, error="ValueError: 'amount' is no number")
    told = {"pipeline": "revenue", "running": True, "pid": os.getpid(), "time": time.time()}
    (folder / "revenue").mkdir(parents=True)
    (folder / "revenue" / "status.json").write_text(json.dumps(told | {"queries": [query("by-minute"), failed]}))


def _toolkits_topics(address: str) -> None:
    """What waits to be delivered, what became of a message, a value that names its schema, an open transaction."""
    failures: list[KafkaError] = []
    producer = Producer(
        {
            "bootstrap.servers": address,
            "log_level": 0,
            "on_delivery": lambda error, _: failures.append(error) if error else None,
        }
    )
    due = time.time_ns() // 1_000_000 + 3_600_000
    for number in range(12):
        delayed = entry.Delayed(due + number * 60_000, "reminders", b"k", b'{"pay": true}', [])
        producer.produce(DelayTopics().pending, entry.encode(delayed), f"invoice-{number}")
    for at, event in enumerate(("produced", "stored", "failed", "stored", "handled")):
        note = {"at_ms": int(time.time() * 1_000) + 40 * at, "event": event, "app": "shop", "topic": "orders"}
        producer.produce(TRACE_TOPIC, json.dumps(note | {"partition": 0, "offset": 3}), b"o-17", 0)
    body = io.BytesIO()
    fastavro.schemaless_writer(body, NEW, {"id": 42, "note": "by sea"})
    producer.produce("with-schemas", struct.pack(">bI", 0, 2) + body.getvalue(), b"42")
    assert producer.flush(30) == 0
    assert not failures


def _group_that_is_behind(address: str) -> None:
    reader = Consumer({"bootstrap.servers": address, "group.id": "billing", "enable.auto.commit": False})
    reader.commit(offsets=[TopicPartition("orders", index, 200) for index in range(4)], asynchronous=False)
    reader.close()


def _access(client: Client) -> None:
    """Through the console itself: it is in the audit trail then."""
    rule = {"resource": "topic", "resource_name": "orders", "pattern": "literal", "host": "*"}
    done = [
        post(client, "/acls", **rule, principal="User:alice", operation="read", permission="allow"),
        post(client, "/acls", **rule, principal="User:eve", operation="all", permission="deny"),
        post(client, "/users", name="alice", password="a long secret", mechanism="2"),
        post(client, "/quotas", is_user="on", name_user="alice", quota="producer_byte_rate", limit="1048576"),
    ]
    assert [answer.status_code for answer in done] == [303] * 4, [answer.text for answer in done]


@contextmanager
def _traffic(address: str) -> Iterator[None]:
    """So that plots have lines."""
    is_over = threading.Event()

    def send() -> None:
        producer = Producer({"bootstrap.servers": address, "log_level": 0})
        number = 0
        while not is_over.wait(0.05):
            for _ in range(3 + number % 40 // 4):
                order = {"id": f"o-{number}", "item": "rope", "amount": number % 90, "is_paid": number % 3 == 0}
                producer.produce("orders", json.dumps(order), f"c-{number % 10}")
                number += 1
            producer.poll(0)
        producer.flush(10)

    thread = threading.Thread(target=send, name="traffic")
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@contextmanager
def opened(browser: Browser, client: Client, size: str, colours: str) -> Iterator[Page]:
    context = browser.new_context(
        viewport=SIZES[size],  # type: ignore[arg-type]  # a TypedDict of the same keys
        color_scheme=colours,  # type: ignore[arg-type]  # light or dark
        base_url=client.origin,
        timezone_id="Europe/Prague",
        locale="en-GB",
    )
    context.set_default_timeout(_PATIENCE_MS)
    yield context.new_page()
    context.close()


def shown(page: Page, path: str) -> None:
    """A screen, with all that it asks for later."""
    page.goto(path)
    expect(page.locator(".asking")).to_have_count(0, timeout=_PATIENCE_MS)


def main() -> None:
    to_docs = sys.argv[1] == "--docs"
    folder = Path("docs/images") if to_docs else Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    with furnished() as (client, _), chromium() as browser:
        since = time.monotonic()
        eventually(lambda: time.monotonic() > since + 30, "half a minute of numbers", 60)
        for size in SIZES:
            for colours in COLOURS:
                with opened(browser, client, size, colours) as page:
                    for name, path in SCREENS.items():
                        if to_docs and (name, size, colours) not in DOCS:
                            continue
                        shown(page, path)
                        page.screenshot(path=folder / f"console-{name}-{size}-{colours}.png")


if __name__ == "__main__":
    main()
