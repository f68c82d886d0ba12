"""Sessions, kept in memory: a cookie names one and carries nothing else, so logging out ends it for good."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from moldau.console.gate.roles import Role

COOKIE = "moldau-console"
_SESSIONS_MAX = 10_000
_IDLE_S = 12 * 3_600.0
_LIFE_S = 24 * 3_600.0  # an open page asks all the time, and a provider tells us of nobody who had to go


@dataclass(slots=True)
class Person:
    """Who asks. Nobody has logged in where the name is empty."""

    name: str
    role: Role


@dataclass(slots=True)
class Session:
    id: str
    person: Person
    csrf: str
    begun_at: float
    used_at: float
    notes: dict[str, str] = field(default_factory=dict)  # what a login through a provider must remember


class Sessions:
    """Belongs to the loop."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._people: OrderedDict[str, Session] = OrderedDict()
        self._strangers: OrderedDict[str, Session] = OrderedDict()  # apart: however many come, nobody is logged out

    def find(self, id_: str | None) -> Session | None:
        kept = self._people if id_ in self._people else self._strangers
        session = kept.get(id_ or "")
        if session is None:
            return None
        if self._now() - session.used_at > _IDLE_S or self._now() - session.begun_at > _LIFE_S:
            del kept[session.id]
            return None
        session.used_at = self._now()
        kept.move_to_end(session.id)
        return session

    def is_open(self, session: Session) -> bool:
        """Without using it: what runs on its own keeps no session alive."""
        return session.id in self._people or session.id in self._strangers

    def begin(self, person: Person) -> Session:
        """A new one, also for who had one before: an id that was known before a login is worth nothing after it."""
        now = self._now()
        session = Session(secrets.token_urlsafe(32), person, secrets.token_urlsafe(32), now, now)
        kept = self._people if person.name else self._strangers
        kept[session.id] = session
        while len(kept) > _SESSIONS_MAX:
            kept.popitem(last=False)
        return session

    def end(self, session: Session) -> None:
        self._people.pop(session.id, None)
        self._strangers.pop(session.id, None)
