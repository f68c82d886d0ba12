"""The order service of the demo, as a process of its own: python -m moldau.demo.shop BOOTSTRAP STOCK

It bills orders, and has customers reminded unless they have paid; both in the transaction that commits the order. Some
orders fail at first, and unicorns are out of stock until the file STOCK exists.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from pathlib import Path

from moldau.toolkit import App, Message, Retry


@dataclass
class Order:
    id: str
    item: str
    amount: int
    is_paid: bool


@dataclass
class Bill:
    order: str
    amount: int


def make_app(bootstrap: str, stock: Path) -> App:
    app = App(
        "shop",
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        consumer={"group.instance.id": "till-1", "session.timeout.ms": 6_000, "heartbeat.interval.ms": 500},
    )

    def has_stock() -> bool:
        return stock.exists()

    @app.handler(
        "orders",
        transactional=True,
        to="bills",
        workers=16,
        retry=Retry(now=1, backoff="10ms", later=["1s"], by="relay"),
        dead_letter=True,
    )
    async def bill(order: Order, message: Message) -> Bill:
        if order.item == "soap" and message.attempt <= 2:
            raise ConnectionError("the payment service is away")
        if order.item == "unicorn" and not has_stock():
            raise LookupError("out of stock")
        await app.send("reminders", order.id, key=order.id, after="2s", id=f"remind-{order.id}")
        if order.is_paid:
            await app.cancel(f"remind-{order.id}")
        return Bill(order.id, order.amount)

    return app


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    make_app(sys.argv[1], Path(sys.argv[2])).run()
