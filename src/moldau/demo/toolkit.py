"""The toolkit's part of the demo: an order service that is killed in the middle, and whose counts are right."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, insert

from moldau.demo.shop import Order
from moldau.demo.summary import DemoFailed, Summary
from moldau.toolkit.db import Outbox
from moldau.toolkit.dead_letters import letters_in, redrive
from moldau.toolkit.errors import ToolkitError
from moldau.toolkit.reading import read_topic

ORDERS = 3_000
_PATIENCE_S = 300.0  # with a busy machine


def orders() -> list[Order]:
    """One in fifty fails at first, one in a hundred until there is stock again; a third is paid at once."""
    items = {0: "soap", 1: "unicorn"}
    return [
        Order(f"o-{n}", items.get(n % 100, "soap" if n % 100 == 50 else "rope"), 1 + n % 90, n % 3 == 0)
        for n in range(ORDERS)
    ]


@contextmanager
def process(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    command, nowhere = [sys.executable, "-m", *words], subprocess.DEVNULL
    with subprocess.Popen(command, stdout=nowhere, stderr=nowhere) as running:  # noqa: S603 - our own command
        try:
            yield running
        finally:
            running.kill()


class Shop:
    """What happens in it, seen from outside."""

    def __init__(self, address: str) -> None:
        self.config: dict[str, Any] = {"bootstrap.servers": address, "log_level": 0}

    def values(self, topic: str) -> list[bytes]:
        try:
            return [message.value() or b"" for message in read_topic(self.config, topic)]
        except ToolkitError:
            return []  # not there yet

    def until(self, topic: str, count: int) -> list[bytes]:
        """The records of a topic, once there are so many; more than that would be a lie."""
        found: list[bytes] = []

        def is_there() -> bool:
            nonlocal found
            found = self.values(topic)
            return len(found) >= count

        _wait(is_there, lambda: f"{topic} has {len(found)} records and not {count}")
        if len(found) != count or len(set(found)) != count:
            raise DemoFailed(f"{topic} has {len(found)} records, {len(set(found))} different ones, and not {count}")
        return found


def _wait(condition: Callable[[], bool], otherwise: Callable[[], str]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise DemoFailed(otherwise())
        time.sleep(0.1)  # other processes do the work: they can only be looked at


def show(address: str, folder: Path, console: Console, summary: Summary) -> None:
    """Orders in, bills and reminders out; a crash, retries, dead letters and their way back."""
    folder.mkdir(parents=True, exist_ok=True)
    shop, stock, sent = Shop(address), folder / "stock", orders()
    unicorns = sum(order.item == "unicorn" for order in sent)
    unpaid = sum(not order.is_paid for order in sent)
    admin = AdminClient(shop.config)
    for made in admin.create_topics([NewTopic(name, 4, 1) for name in ("orders", "bills", "reminders")]).values():
        made.result(15)
    till = Till(f"sqlite:///{folder / 'orders.db'}")
    with process("moldau", "relay", "-b", address, "--outbox", till.url, "--http", "-"):
        with process("moldau.demo.shop", address, str(stock)):
            till.take(sent[: ORDERS // 2])
            till.take(sent, is_failing=True)
            _wait(lambda: len(shop.values("bills")) > ORDERS // 10, lambda: "the shop bills nothing")
            till.take(sent[ORDERS // 2 :])
        console.print(
            f"[bold]Toolkit[/]: {ORDERS:,} orders written to a database with their messages (and as many rolled back); "
            "the shop was killed in the middle of billing them"
        )
        with process("moldau.demo.shop", address, str(stock)):
            summary.expect("toolkit", "orders set aside", len(shop.until("orders-dlt", unicorns)), unicorns)
            billed = len(shop.until("bills", ORDERS - unicorns))
            summary.expect("toolkit", "orders billed once, over a crash", billed, ORDERS - unicorns)
            console.print(f"Started again, it has billed each once, and set {unicorns} aside: {_reasons(shop)}")
            stock.touch()
            done = redrive(shop.config, "orders-dlt")
            summary.expect("toolkit", "dead letters sent back", done.sent, unicorns)
            summary.expect("toolkit", "orders billed once, in the end", len(shop.until("bills", ORDERS)), ORDERS)
            console.print(
                f"{done.sent} were sent back when there was stock: all {ORDERS:,} bills are there, none twice"
            )
            summary.expect("toolkit", "reminders of unpaid bills", len(shop.until("reminders", unpaid)), unpaid)
            console.print(
                f"The relay has reminded {unpaid:,} customers, and none of the {ORDERS - unpaid:,} who had paid."
            )
    till.close()


class _NoMoney(Exception):
    """What makes a transaction of the demo fail."""


class Till:
    """Takes orders: each is in the database with the message about it, or neither is."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._engine = create_engine(url)
        self._outbox = Outbox(self._engine)
        self._outbox.metadata.create_all(self._engine)
        self._orders = Table("orders", MetaData(), Column("id", String(40)), Column("amount", Integer))
        self._orders.metadata.create_all(self._engine)

    def take(self, wanted: list[Order], *, is_failing: bool = False) -> None:
        with contextlib.suppress(_NoMoney), self._engine.begin() as transaction:
            for order in wanted:
                transaction.execute(insert(self._orders).values(id=order.id, amount=order.amount))
                self._outbox.send(transaction, "orders", order.id, asdict(order))
            if is_failing:
                raise _NoMoney

    def close(self) -> None:
        self._engine.dispose()


def _reasons(shop: Shop) -> str:
    return ", ".join(sorted({letter.error for letter in letters_in(shop.config, "orders-dlt")}))
