"""The audit log: who logged in, who was refused, who changed what. One line of JSON each, on the logger `moldau.audit`.

    {"event": "authentication", "outcome": "failed", "principal": "User:eve", "address": "10.0.0.7", …}

Invariants
- Whatever a client sends stays inside its field: JSON escapes line breaks, quotes and everything beyond ASCII, and long
  values are cut.
- No secret is ever given to this module.
- Clients cannot fill the disk: beyond `RATE_PER_SECOND` lines of one kind, lines are counted instead, and the next one
  says how many there were.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from moldau.security.principal import Principal

_log = logging.getLogger("moldau.audit")
RATE_PER_SECOND = 100.0
BURST = 1_000.0
_VALUE_MAX = 256


@dataclass(slots=True)
class Logins:
    """Of one listener, since the start: what is told is all there was, however little of it was written."""

    succeeded: int = 0
    again: int = 0
    """Of sessions that had to prove it once more (`connections.max.reauth.ms`)."""
    failed: int = 0


class Audit:
    """Belongs to the event loop. `now_ms` is the monotonic clock."""

    def __init__(self, now_ms: Callable[[], float]) -> None:
        self._now_ms = now_ms
        self.logins: defaultdict[str, Logins] = defaultdict(Logins)
        """By listener."""
        self._buckets: dict[str, _Bucket] = {}

    def authenticated(
        self, principal: Principal, *, address: str, listener: str, mechanism: str, is_again: bool = False
    ) -> None:
        """Somebody proved who it is."""
        logins = self.logins[listener]
        if is_again:
            logins.again += 1
        else:
            logins.succeeded += 1
        if _log.isEnabledFor(logging.INFO):
            self._write("authentication", "ok", str(principal), address, listener=listener, mechanism=mechanism)

    def authentication_failed(self, user: str, *, address: str, listener: str, mechanism: str, reason: str) -> None:
        """Somebody did not. `user` is what it claimed to be."""
        self.logins[listener].failed += 1
        if _log.isEnabledFor(logging.WARNING):
            who = f"User:{user}" if user else ""
            self._write("authentication", "failed", who, address, listener=listener, mechanism=mechanism, reason=reason)

    def denied(self, principal: Principal, *, address: str, operation: str, resource: str, api: str) -> None:
        """The authorizer said no. `resource` as in `Topic:LITERAL:orders`."""
        if _log.isEnabledFor(logging.WARNING):
            self._write(
                "authorization", "denied", str(principal), address, operation=operation, resource=resource, api=api
            )

    @property
    def notes_changes(self) -> bool:
        """Whether `changed` would write anything."""
        return _log.isEnabledFor(logging.INFO)

    def changed(self, principal: Principal, *, address: str, api: str, target: str, outcome: str = "ok") -> None:
        """Somebody changed something of the cluster. `target` names it, never its secret."""
        if _log.isEnabledFor(logging.INFO):
            self._write("change", outcome, str(principal), address, api=api, target=target)

    def _write(self, event: str, outcome: str, principal: str, address: str, **more: str) -> None:
        bucket = self._buckets.get(event + outcome)
        if bucket is None:
            if len(self._buckets) >= 64:  # outcomes are few; this is for the mistake of making them many
                self._buckets.clear()
            bucket = self._buckets[event + outcome] = _Bucket(self._now_ms())
        if not bucket.take(self._now_ms()):
            return
        line: dict[str, object] = {
            "event": event,
            "outcome": outcome,
            "principal": principal,
            "address": address,
            **more,
        }
        line = {key: value[:_VALUE_MAX] if isinstance(value, str) else value for key, value in line.items()}
        if bucket.suppressed:
            line["suppressed_before"] = bucket.suppressed
            bucket.suppressed = 0
        import json  # most brokers never need it

        _log.log(logging.INFO if outcome == "ok" else logging.WARNING, "%s", json.dumps(line))


class _Bucket:
    __slots__ = ("_left", "_since_ms", "suppressed")

    def __init__(self, now_ms: float) -> None:
        self._left = BURST
        self._since_ms = now_ms
        self.suppressed = 0

    def take(self, now_ms: float) -> bool:
        self._left = min(BURST, self._left + (now_ms - self._since_ms) / 1000 * RATE_PER_SECOND)
        self._since_ms = now_ms
        if self._left < 1:
            self.suppressed += 1
            return False
        self._left -= 1
        return True
