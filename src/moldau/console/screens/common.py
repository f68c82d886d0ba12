"""What several screens do: going back with a note, confirmations, plots."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from moldau.console.cluster.model import Group, Topic
from moldau.console.gate.refusal import Refusal
from moldau.console.visit import Visit


def done(visit: Visit, where: str, text: str) -> Response:
    """After a change: back to a page, which says what was done. Programs get JSON."""
    if "json" in visit.request.headers.get("accept", "") or "json" in visit.request.headers.get("content-type", ""):
        return JSONResponse({"done": text})
    visit.session.notes["flash"] = text
    if visit.is_fragment:
        return Response(headers={"hx-redirect": where})
    return RedirectResponse(where, 303)


def preview(visit: Visit, template: str, **data: Any) -> Response:
    """A page that shows what would be done. Nothing was, so nothing is noted."""
    response = visit.house.views.page(visit, template, **data)
    response.headers["x-preview"] = "1"
    return response


def confirmed(visit: Visit, name: str) -> None:
    """What destroys wants its name typed."""
    if visit.form.get("confirm", "").strip() != name:
        raise Refusal(400, f"Type {name} to confirm: what is deleted does not come back.")


def topic_of(visit: Visit) -> Topic:
    name = str(visit.request.path_params["topic"])
    found = visit.house.snapshot.topics.get(name)
    if found is None:
        raise Refusal(404, f"There is no topic {name} (any more), or the console has not seen it yet.")
    return found


def group_of(visit: Visit, name: str) -> Group:
    found = visit.house.snapshot.groups.get(name)
    if found is None:
        raise Refusal(404, f"There is no group {name} (any more), or the console has not seen it yet.")
    return found


def whole(text: str, what: str, least: int, most: int) -> int:
    if not text.strip().removeprefix("-").isdecimal() or len(text) > 20 or not least <= int(text) <= most:
        raise Refusal(400, f"{what} is {text[:40]!r}: write a whole number from {least:,} to {most:,}.")
    return int(text)


def plot(visit: Visit, series: Mapping[str, Hashable]) -> Response:
    """Series over time, by their labels."""
    history = visit.house.watcher.history
    return JSONResponse(
        {
            "times": [at / 1_000 for at in history.times_ms()],
            "series": [{"label": label, "values": history.values(key)} for label, key in series.items()],
        }
    )


def fragment(visit: Visit, template: str, **data: Any) -> Response:
    """A part of a page that had to be asked for."""
    data.setdefault("visit", visit)
    data.setdefault("csrf", visit.session.csrf)
    return HTMLResponse(visit.house.views.fragment(template, **data))
