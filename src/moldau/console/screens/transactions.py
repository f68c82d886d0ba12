"""Transactions: which are open, for how long, on which partitions; and ending one whose producer is gone."""

from __future__ import annotations

import time

from confluent_kafka import Producer
from starlette.responses import Response

from moldau.console.cluster import admin
from moldau.console.cluster.admin import Listing, Transaction
from moldau.console.gate.refusal import Refusal
from moldau.console.listing import Listed, listed
from moldau.console.screens import common
from moldau.console.visit import Visit

_CALL_S = 15.0


async def transactions(visit: Visit) -> Response:
    house = visit.house
    if not visit.is_fragment or visit.request.headers.get("hx-target") != "rows":
        return house.views.page(visit, "transactions.html", title="Transactions", q=visit.query("q"))
    found, rows = await house.ask(transaction_list, visit)
    return common.fragment(
        visit, "transaction_rows.html", list=found, rows=rows, now_ms=time.time_ns() // 1_000_000, q=visit.query("q")
    )


def transaction_list(visit: Visit) -> tuple[Listed[Listing], list[Transaction]]:
    """A page of them, and what is known of each. Blocks."""
    asker = visit.house.asker
    found = listed(visit, admin.transactions(asker, visit.query("q").strip()))
    return found, admin.described(asker, found.rows)


def _end(client: dict[str, object], transactional_id: str) -> None:
    """Begin with its id: the cluster aborts what is open and fences whoever had it."""
    producer = Producer({**client, "transactional.id": transactional_id})
    producer.init_transactions(_CALL_S)


async def end_transaction(visit: Visit) -> Response:
    name = visit.form.get("transaction", "")
    if not name:
        raise Refusal(400, "Say which transaction.")
    common.confirmed(visit, name)
    await visit.house.ask(_end, visit.house.client, name)
    return common.done(visit, "/transactions", f"The transaction of {name} was aborted, and its producer fenced.")
