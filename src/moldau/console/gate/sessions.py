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
    used_at: float
    notes: dict[str, str] = field(default_factory=dict)  # what a login through a provider must remember


class Sessions:
    """Belongs to the loop."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def find(self, id_: str | None) -> Session | None:
        session = self._sessions.get(id_ or "")
        if session is None:
            return None
        if self._now() - session.used_at > _IDLE_S:
            del self._sessions[session.id]
            return None
        session.used_at = self._now()
        self._sessions.move_to_end(session.id)
        return session

    def begin(self, person: Person) -> Session:
        """A new one, also for who had one before: an id that was known before a login is worth nothing after it."""
        session = Session(secrets.token_urlsafe(32), person, secrets.token_urlsafe(32), self._now())
        self._sessions[session.id] = session
        while len(self._sessions) > _SESSIONS_MAX:
            self._sessions.popitem(last=False)
        return session

    def end(self, session: Session) -> None:
        self._sessions.pop(session.id, None)
