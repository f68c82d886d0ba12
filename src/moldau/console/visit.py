"""One request by somebody who may make it, and the route it comes through: what every screen is given."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response

from moldau.console.gate.refusal import Refusal
from moldau.console.gate.roles import Role
from moldau.console.gate.sessions import Person, Session
from moldau.console.house import House


@dataclass(slots=True)
class Visit:
    """One request, by somebody who may make it."""

    request: Request
    house: House
    session: Session
    form: Mapping[str, str] = field(default_factory=dict)

    @property
    def person(self) -> Person:
        return self.session.person

    @property
    def is_fragment(self) -> bool:
        """A part of the page is wanted, not a page."""
        headers = self.request.headers
        return headers.get("hx-request") == "true" and "hx-history-restore-request" not in headers

    def may(self, role: Role, *, change: bool = False) -> bool:
        """Whether a button is worth showing."""
        return self.person.role >= role and not (change and self.house.settings.is_read_only)

    def query(self, name: str, default: str = "") -> str:
        return self.request.query_params.get(name, default)

    def number(self, name: str, default: int, least: int, most: int) -> int:
        text = self.query(name)
        if not text:
            return default
        if not text.removeprefix("-").isdecimal() or len(text) > 20:
            raise Refusal(400, f"{name} is {text[:40]!r}: write a whole number")
        return max(least, min(most, int(text)))


Handler = Callable[[Visit], Awaitable[Response]]


@dataclass(slots=True, frozen=True)
class Door:
    """One route, and who may pass."""

    method: str
    path: str
    handler: Handler
    role: Role
    about: str
    changes: bool = False
    parameters: Mapping[str, str] = field(default_factory=dict)  # of the query or form, for the OpenAPI document
    answers: str = ""  # what kind, where programs may want it and it is neither a page nor of the API

    @property
    def name(self) -> str:
        return self.handler.__name__

    @property
    def is_api(self) -> bool:
        return self.path.startswith("/api/")
