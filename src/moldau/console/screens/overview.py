"""The first screen: whether all is well, what flows, what happened; and jumping to anything by name."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

from starlette.responses import Response, StreamingResponse

from moldau.console.cluster.changes import Change
from moldau.console.cluster.health import alerts
from moldau.console.listing import Listed, listed, searched
from moldau.console.screens import common
from moldau.console.visit import Visit

_BUSY = 8
_CHANGES = 12
_FOUND_MAX = 12
_HEARTBEAT_S = 15.0


async def overview(visit: Visit) -> Response:
    house = visit.house
    snapshot = house.snapshot
    topics = [topic for topic in snapshot.topics.values() if not topic.is_internal]
    history = house.watcher.history
    busiest = sorted(topics, key=lambda topic: (-topic.rate, -topic.records))[:_BUSY]
    behind = sorted((group for group in snapshot.groups.values() if group.lag), key=lambda each: -each.lag)[:_BUSY]
    return house.views.page(
        visit,
        "overview.html",
        title="Overview",
        alerts=alerts(snapshot),
        topics=len(topics),
        size=sum(broker.size_bytes for broker in snapshot.brokers.values()),
        busiest=busiest,
        behind=behind,
        changes=house.watcher.changes.in_brief(_CHANGES),
        sparks={topic.name: history.values(("topic", topic.name), 60) for topic in busiest},
        lags={group.name: history.values(("group", group.name), 60) for group in behind},
    )


async def happened(visit: Visit) -> Response:
    return visit.house.views.page(
        visit, "happened.html", title="What happened", list=change_list(visit), q=visit.query("q")
    )


def change_list(visit: Visit) -> Listed[Change]:
    return listed(visit, searched(visit.house.watcher.changes.everything(), visit.query("q"), lambda each: each.text))


async def search(visit: Visit) -> Response:
    """What the jump box shows: topics and groups whose names have the words, those that begin with them first."""
    words = visit.query("q").lower().split()
    snapshot = visit.house.snapshot

    def found(names: list[str]) -> list[str]:
        fitting = [name for name in names if all(word in name.lower() for word in words)]
        first = words[0] if words else ""
        return sorted(fitting, key=lambda name: (not name.lower().startswith(first), len(name), name))[:_FOUND_MAX]

    return common.fragment(
        visit,
        "palette.html",
        topics=found(list(snapshot.topics)),
        groups=found(list(snapshot.groups)),
        q=visit.query("q"),
    )


async def cluster_history(visit: Visit) -> Response:
    what = visit.query("show", "rate")
    if what == "lag":
        return common.plot(visit, {"lag": "lag"})
    if what == "isr":
        return common.plot(visit, {"partitions out of sync": "short", "without leader": "leaderless"})
    return common.plot(visit, {"records/s": "rate"})


async def events(visit: Visit) -> Response:
    """Server-sent events: a word for each new snapshot, so that pages know when to look again."""
    house = visit.house

    async def words() -> AsyncIterator[str]:
        number = house.snapshot.number
        yield f"retry: 3000\nevent: snapshot\ndata: {json.dumps({'number': number})}\n\n"
        stopping = asyncio.ensure_future(house.stopping.wait())
        try:
            while not house.stopping.is_set():
                news = asyncio.ensure_future(house.watcher.after(number, _HEARTBEAT_S))
                await asyncio.wait({news, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if not news.done():
                    news.cancel()
                    return
                if not news.result():
                    yield ": still here\n\n"
                    continue
                snapshot = house.snapshot
                number = snapshot.number
                said = {"number": number, "at_ms": snapshot.at_ms, "problems": len(snapshot.problems)}
                yield f"event: snapshot\nid: {number}\ndata: {json.dumps(said)}\n\n"
        finally:
            stopping.cancel()

    return StreamingResponse(words(), media_type="text/event-stream")
