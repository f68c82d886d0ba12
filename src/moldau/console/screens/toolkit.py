"""What the toolkit leaves in topics: delayed messages that are pending, and the traces of single messages."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from moldau.console.gate.refusal import Refusal
from moldau.console.house import House
from moldau.console.listing import Listed, listed
from moldau.console.messages import reading
from moldau.console.messages.decoding import decode
from moldau.console.messages.reading import Budget, Page, Placed
from moldau.console.messages.text import one_line, visible
from moldau.console.screens import common
from moldau.console.visit import Visit
from moldau.toolkit import letters
from moldau.toolkit.delays import entry
from moldau.toolkit.delays.topics import POSITION, DelayTopics
from moldau.toolkit.errors import Undecodable
from moldau.toolkit.partitioners import by_key
from moldau.toolkit.trace import TRACE_TOPIC

_BUDGET = Budget(rows=500_000, seconds=10.0)
_STEPS_MAX = 500


@dataclass(slots=True, frozen=True)
class Pending:
    due_ms: int
    id: str
    topic: str
    key: str
    value: str
    cron: str


# ---- delays ---------------------------------------------------------------------------------------------------------


async def delays(visit: Visit) -> Response:
    house = visit.house
    topics = DelayTopics()
    there = topics.commands in house.snapshot.topics
    if not visit.is_fragment or visit.request.headers.get("hx-target") != "pending" or not there:
        return house.views.page(
            visit, "delays.html", title="Delayed messages", there=there, topics=topics, q=visit.query("q")
        )
    found, is_cut = await pending_list(visit)
    group = house.snapshot.groups.get(topics.group)
    return common.fragment(
        visit,
        "delay_rows.html",
        list=found,
        is_cut=is_cut,
        q=visit.query("q"),
        has_relay=bool(group and group.members),
        now_ms=time.time_ns() // 1_000_000,
    )


async def pending_list(visit: Visit) -> tuple[Listed[Pending], bool]:
    found, is_cut = await visit.house.ask(read_pending, visit.house, DelayTopics(), visit.query("q").strip())
    return listed(visit, found), is_cut


def read_pending(house: House, topics: DelayTopics, text: str) -> tuple[list[Pending], bool]:
    """What is pending, by when it is due, and whether the budget cut it short. Blocks."""
    if topics.pending not in house.snapshot.topics:
        return [], False
    last: dict[bytes, bytes | None] = {}

    def accept(message: Any) -> None:
        key = message.key() or b""
        if message.value() is None:
            last.pop(key, None)
        elif key != POSITION:
            last[key] = message.value()

    reader = reading.consumer(house.client)
    try:
        bounds = reading.bounds(reader, topics.pending, None)
        page: Page[TraceStep] = reading.read_forward(reader, topics.pending, bounds, 1, accept, _BUDGET)
    finally:
        reader.close()
    found = []
    for key, data in last.items():
        try:
            delayed = entry.decode(data or b"")
        except Undecodable:
            continue
        id_ = key.decode(errors="replace")
        if text and text.lower() not in f"{id_} {delayed.topic}".lower():
            continue
        shown_key = house.masks.apply(delayed.topic, "key", decode(delayed.key)).text
        shown = house.masks.apply(delayed.topic, "value", decode(delayed.value, registry=house.registry)).text
        found.append(
            Pending(
                delayed.due_ms,
                visible(id_),
                delayed.topic,
                one_line(shown_key, 80),
                one_line(shown, 160),
                delayed.cron or "",
            )
        )
    return sorted(found, key=lambda each: each.due_ms), page.is_cut


async def cancel_delay(visit: Visit) -> Response:
    house, id_ = visit.house, visit.form.get("id", "")
    topics = DelayTopics()
    commands = house.snapshot.topics.get(topics.commands)
    if commands is None or not id_ or id_.startswith("\0"):
        raise Refusal(404, f"There is nothing pending under {id_!r}.")
    common.confirmed(visit, id_)
    name = id_.encode()
    partition = by_key(topics.commands, name, len(commands.partitions))
    await house.ask(house.send, topics.commands, None, name, [(letters.ID, name)], partition)
    return common.done(visit, "/delays", f"{id_} was cancelled; if it was due already, it may have been sent.")


# ---- traces ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class TraceStep(Placed):
    partition: int
    offset: int
    timestamp_ms: int
    id: str
    event: str
    app: str
    where: str
    link: str
    more: str


def _step(message: Any) -> TraceStep | None:
    try:
        told = json.loads(message.value() or b"")
        at_ms, event = int(told.pop("at_ms")), str(told.pop("event"))
    except (ValueError, KeyError, AttributeError, TypeError, OverflowError, RecursionError):
        return None  # not one of ours
    topic, index, offset = told.pop("topic", ""), told.pop("partition", None), told.pop("offset", None)
    where = str(topic) + (f"-{index} @ {offset}" if index is not None else "")
    link = ""
    if isinstance(index, int) and isinstance(offset, int):
        link = f"/topics/{topic}/messages/{index}/{offset}"
    app = f"{told.pop('app', '')} {told.pop('by', '')}"
    more = ", ".join(f"{name} {value}" for name, value in told.items())
    id_ = (message.key() or b"").decode(errors="replace")
    return TraceStep(
        message.partition(), message.offset(), at_ms, visible(id_), one_line(event, 60), one_line(app, 120),
        one_line(where, 200), link if "/../" not in link else "", one_line(more, 400),
    )  # fmt: skip


def read_traces(house: House, id_: str) -> tuple[list[TraceStep], bool]:
    """The story of one message, or the newest steps of all. Blocks."""
    reader = reading.consumer(house.client)
    try:
        wanted = None
        key = id_.encode()
        if id_:
            count = len(house.snapshot.topics[TRACE_TOPIC].partitions)
            wanted = {by_key(TRACE_TOPIC, key, count) or 0}
        bounds = reading.bounds(reader, TRACE_TOPIC, wanted)
        accept = (lambda message: _step(message) if message.key() == key else None) if id_ else _step
        limit = _STEPS_MAX if id_ else 100
        page = reading.read_newest(reader, TRACE_TOPIC, bounds, limit, accept, _BUDGET)
    finally:
        reader.close()
    rows = sorted(page.records, key=lambda each: each.timestamp_ms) if id_ else page.records
    return rows, page.is_cut


async def trace_list(visit: Visit) -> tuple[list[TraceStep], bool]:
    house = visit.house
    if TRACE_TOPIC not in house.snapshot.topics:
        return [], False
    return await house.ask(read_traces, house, visit.query("id").strip())


async def traces(visit: Visit) -> Response:
    house, id_ = visit.house, visit.query("id").strip()
    there = TRACE_TOPIC in house.snapshot.topics
    if not visit.is_fragment or visit.request.headers.get("hx-target") != "steps" or not there:
        return house.views.page(visit, "traces.html", title="Traces", there=there, id=id_)
    rows, is_cut = await trace_list(visit)
    return common.fragment(visit, "trace_rows.html", rows=rows, id=id_, is_cut=is_cut)
