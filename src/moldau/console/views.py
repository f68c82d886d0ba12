"""Pages from templates. Everything is escaped; what is markup is written in the templates and nowhere else."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from moldau.console.cluster.model import Snapshot
from moldau.console.gate.roles import Role
from moldau.console.gate.sessions import Person, Session
from moldau.console.messages.registry import RegistryReader
from moldau.console.messages.text import visible
from moldau.console.settings import ConsoleSettings
from moldau.console.wording import counted, in_words, noun

_HERE = Path(__file__).parent
_LIVE = "live"
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def size(value: float | None) -> str:
    if value is None or value < 0:
        return "–"
    unit = 0
    while value >= 1_024 and unit < len(_UNITS) - 1:
        value /= 1_024
        unit += 1
    return f"{value:,.0f} {_UNITS[unit]}" if unit == 0 or value >= 100 else f"{value:,.1f} {_UNITS[unit]}"


def rate(value: float | None) -> str:
    if value is None:
        return "–"
    if value >= 100_000:
        return f"{value / 1_000:,.0f}k"
    return f"{value:,.0f}" if value >= 10 or value < 0.05 else f"{value:,.1f}"


def short(value: float | None) -> str:
    """A large number that fits anywhere."""
    if value is None:
        return "–"
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            shown = value / {"T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3}[unit]
            return f"{shown:,.1f}{unit}" if abs(shown) < 100 else f"{shown:,.0f}{unit}"
    return f"{value:,.0f}"


def duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1_000:.0f} ms" if seconds >= 0.01 else f"{seconds * 1_000:.1f} ms"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.1f} h"


def spark(values: Sequence[float | None], width: int = 96, height: int = 22) -> str:
    """The points of a polyline for the last values; empty where there is nothing to draw."""
    known = [(place, value) for place, value in enumerate(values) if value is not None]
    if len(known) < 2:
        return ""
    top = max(value for _, value in known) or 1.0
    step = width / max(1, len(values) - 1)
    return " ".join(f"{place * step:.1f},{height - 1 - (height - 3) * value / top:.1f}" for place, value in known)


def share(part: float, whole: float) -> int:
    return round(100 * part / whole) if whole > 0 else 0


class Known(Protocol):
    """What every page shows of the console itself."""

    @property
    def snapshot(self) -> Snapshot: ...

    @property
    def settings(self) -> ConsoleSettings: ...

    @property
    def registry(self) -> RegistryReader | None: ...


class Seen(Protocol):
    """What pages need of a request and of who made it."""

    @property
    def request(self) -> Request: ...

    @property
    def house(self) -> Known: ...

    @property
    def session(self) -> Session: ...

    @property
    def person(self) -> Person: ...

    @property
    def is_fragment(self) -> bool: ...


class Views:
    def __init__(self) -> None:
        self._environment = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        filters = self._environment.filters
        filters.update(
            n=number,
            size=size,
            rate=rate,
            short=short,
            duration=duration,
            spark=spark,
            visible=visible,
            q=_quoted,
            noun=noun,
            counted=counted,
            in_words=in_words,
        )
        self._environment.globals.update(Role=Role, static=self._static, share=share, min=min, max=max)
        self._stamps: dict[str, str] = {}
        self._environment.globals["ui"] = self._environment.get_template("macros.html").module

    def _static(self, name: str) -> str:
        """Its address, with a stamp of its content: browsers keep it for as long as it stays the same."""
        stamp = self._stamps.get(name)
        if stamp is None:
            digest = hashlib.sha256((_HERE / "static" / name).read_bytes()).hexdigest()
            stamp = self._stamps[name] = digest[:12]
        return f"/static/{name}?v={stamp}"

    def prepare(self) -> None:
        """Compile all templates, so that nobody who comes first waits for it. Any thread."""
        for name in self._environment.list_templates():
            self._environment.get_template(name)

    def page(self, visit: Seen, template: str, status_code: int = 200, **data: Any) -> Response:
        """A page; only its live part, if that is what was asked for."""
        found = self._environment.get_template(template)
        request, house = visit.request, visit.house
        query = request.url.query
        shared = {
            "visit": visit,
            "person": visit.person,
            "csrf": visit.session.csrf,
            "snapshot": house.snapshot,
            "settings": house.settings,
            "has_registry": house.registry is not None,
            "path": request.url.path,
            "here": request.url.path + (f"?{query}" if query else ""),
            "flash": "",
            "bootstrap": house.settings.kafka["bootstrap.servers"],
            **data,
        }
        if visit.is_fragment and request.headers.get("hx-target") == _LIVE and _LIVE in found.blocks:
            context = found.new_context(shared)
            return HTMLResponse("".join(found.blocks[_LIVE](context)), status_code)
        shared["flash"] = visit.session.notes.pop("flash", "")
        return HTMLResponse(found.render(shared), status_code)

    def fragment(self, template: str, **data: Any) -> str:
        return self._environment.get_template(template).render(data)


def _quoted(text: object) -> str:
    return quote(str(text), safe="")
