"""One request of a client, as its quotas see it: made for each of a client that has a limit, and for none otherwise."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from moldau.broker.quotas.clients import Client
from moldau.controller.errors import ApiError
from moldau.wire import ErrorCode

if TYPE_CHECKING:
    from moldau.broker.calls import Call, Session
    from moldau.broker.quotas.clients import ClientQuotas
    from moldau.seams import Clock

_WAIT_MS_MAX = (1 << 31) - 1  # what an answer can say; a tiny limit and a large request would make it endless


def meter_of(quotas: ClientQuotas, clock: Clock, call: Call) -> Meter | None:
    """None for a client without any limit, which a connection remembers: quotas of others cost it next to nothing."""
    session: Session = call.connection.context
    known = session.has_quota
    if known is None or known[0] is not quotas.epoch or known[1] != call.client_id or known[2] is not session.principal:
        client = Client(session.principal.name, call.client_id or "")
        known = session.has_quota = (quotas.epoch, call.client_id, session.principal, quotas.concern(client))
    return Meter(quotas, clock, call) if known[3] else None


class Meter:
    """`throttle` comes last, with the answer: it says for how long the client should be silent, and sees to it."""

    __slots__ = ("_busy_ms", "_client", "_clock", "_is_forwarded", "_quotas", "_silent_until_ms", "_started_ms")

    def __init__(self, quotas: ClientQuotas, clock: Clock, call: Call, *, is_forwarded: bool = False) -> None:
        """`is_forwarded`: another broker holds the client's connection, and silences it by what the answer says."""
        self._quotas = quotas
        self._clock = clock
        self._client = Client(call.session.principal.name, call.client_id or "")
        self._is_forwarded = is_forwarded
        self._started_ms = clock.monotonic_ms()
        self._busy_ms: float | None = None
        self._silent_until_ms = 0.0

    def returned(self) -> None:
        """The handler has done its work; if it has not answered, it waits for something that costs no time."""
        if self._busy_ms is None:
            self._busy_ms = self._clock.monotonic_ms() - self._started_ms

    def produced(self, call: Call, size_bytes: int) -> None:
        """So much came. Who sends too much is silenced now, not when it is answered: more would come meanwhile."""
        now_ms = self._clock.monotonic_ms()
        self._silence(call, self._quotas.produced(self._client, size_bytes, now_ms), now_ms)

    def fetch_bytes_max(self) -> float | None:
        return self._quotas.fetch_bytes_max(self._client, self._clock.monotonic_ms())

    def fetched(self, call: Call, size_bytes: int) -> int:
        """So much would be sent. Milliseconds: then nothing is sent, and the client asks again after so long."""
        now_ms = self._clock.monotonic_ms()
        self._silence(call, self._quotas.fetched(self._client, size_bytes, now_ms), now_ms)
        return self.throttle(call)

    def rehearse(self, call: Call, *, is_strict: bool) -> RehearsedCharges:
        """For a command that makes or deletes partitions: it may be decided several times, on any thread, and is paid
        once. Strict: ApiError if the client had too many already."""
        left = self._quotas.mutations_left(self._client, self._clock.monotonic_ms())
        return RehearsedCharges(left, partial(self._pay, call), is_strict=is_strict)

    def _pay(self, call: Call, partitions: int, is_silenced: bool) -> None:
        now_ms = self._clock.monotonic_ms()
        self._quotas.mutated(self._client, partitions, now_ms)
        if is_silenced:
            self._silence(call, self._quotas.mutation_wait_ms(self._client, now_ms), now_ms)

    def _silence(self, call: Call, waits_ms: float, now_ms: float) -> None:
        if waits_ms >= 1:
            waits_ms = min(waits_ms, _WAIT_MS_MAX)
            self._silent_until_ms = max(self._silent_until_ms, now_ms + waits_ms)
            if not self._is_forwarded:
                call.connection.mute_until(self._silent_until_ms)

    def throttle(self, call: Call, response: Any = None) -> int:
        """The request is answered: its own time counts, too. `response` is told the milliseconds of silence."""
        now_ms = self._clock.monotonic_ms()
        if not self._is_forwarded:
            busy_ms = now_ms - self._started_ms if self._busy_ms is None else self._busy_ms
            self._silence(call, self._quotas.worked(self._client, busy_ms, now_ms), now_ms)
        left_ms = max(0, math.ceil(self._silent_until_ms - now_ms))
        if left_ms and hasattr(response, "throttle_time_ms"):
            response.throttle_time_ms = left_ms
        return left_ms


class RehearsedCharges:
    """Of a client with so much left. Nothing outside of this changes until `pay`."""

    __slots__ = ("_charged", "_is_refused", "_is_strict", "_left", "_pay")

    def __init__(self, left: float, pay: Callable[[int, bool], None], *, is_strict: bool) -> None:
        self._left = left
        self._pay = pay
        self._is_strict = is_strict
        self._is_refused = False
        self._charged = 0

    def charge(self, partitions: int) -> None:
        if self._is_strict and self._left < 0:
            self._is_refused = True
            code = ErrorCode.THROTTLING_QUOTA_EXCEEDED
            raise ApiError(code, code.meaning)
        self._left -= partitions
        self._charged += partitions

    def pay(self) -> None:
        self._pay(self._charged, self._is_refused or not self._is_strict)
