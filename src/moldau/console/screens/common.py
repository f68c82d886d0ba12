"""What several screens do: going back with a note, confirmations, plots."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from moldau.console.cluster.admin import Setting
from moldau.console.cluster.model import Group, Topic
from moldau.console.gate.refusal import Refusal
from moldau.console.listing import searched
from moldau.console.visit import Visit
from moldau.console.wording import as_number


def done(visit: Visit, where: str, text: str) -> Response:
    """After a change: back to a page, which says what was done. Programs get JSON."""
    if _is_program(visit):
        return JSONResponse({"done": text})
    visit.session.notes["flash"] = text
    if visit.is_fragment:
        return Response(headers={"hx-redirect": where})
    return RedirectResponse(where, 303)


def _is_program(visit: Visit) -> bool:
    headers = visit.request.headers
    return "json" in headers.get("accept", "") or "json" in headers.get("content-type", "")


def preview(visit: Visit, template: str, plain: Any, **data: Any) -> Response:
    """A page that shows what would be done; `plain` for programs. Nothing was, so nothing is noted."""
    response = JSONResponse({"would": plain}) if _is_program(visit) else visit.house.views.page(visit, template, **data)
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


def setting_value(visit: Visit, name: str) -> str | None:
    """What a setting is to be: None for its default. Times may be written `7d`, sizes `10GiB`; brokers know neither."""
    if visit.form.get("reset"):
        return None
    return as_number(name, visit.form.get("setting_value", "").strip())


def settings_table(visit: Visit, rows: list[Setting], action: str, about: str) -> Response:
    found = searched(rows, visit.query("q"), lambda each: f"{each.name} {each.value or ''} {each.set_by}")
    return fragment(visit, "settings_table.html", rows=found, action=action, about=about, q=visit.query("q"))


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
