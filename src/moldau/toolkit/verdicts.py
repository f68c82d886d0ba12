"""What becomes of a record that failed: it is tried again now or later, dies, or ends the app.

Invariant: a record leaves for a retry topic or the dead letters only with the cluster's acknowledgement, and counts as
finished after it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moldau.toolkit import letters
from moldau.toolkit.delays.retries import Later, retry_id
from moldau.toolkit.errors import CircuitOpen, HandlerFailed, Undecodable
from moldau.toolkit.message import Message
from moldau.toolkit.policy import BreakerState, Die, RetryLater, RetryNow, after_failure
from moldau.toolkit.scheduler import Entry, Where
from moldau.toolkit.timekeeping import Time

if TYPE_CHECKING:
    from moldau.toolkit.registry import Registry
    from moldau.toolkit.sending import Producer
    from moldau.toolkit.spec import HandlerSpec
    from moldau.toolkit.transactional import Outputs

log = logging.getLogger("moldau.toolkit")

NEVER = float("inf")  # an entry that stays as it is, because the app stops or the partition is gone


HandOver = Callable[[Entry, str, str, Callable[[bool], Sequence[letters.Header]], Later | None], Awaitable[bool]]
"""Send an entry on as it came, to a topic made like another one, with headers built brief or not; now, or by a relay.
False: not done."""


@dataclass(slots=True)
class Counts:
    """What happened to the records of one handler since the app started."""

    handled: int = 0
    failed: int = 0
    retried: int = 0
    dead: int = 0
    dropped: int = 0  # ended after their partition was gone


@dataclass(slots=True, frozen=True)
class Surroundings:
    """What a handler's runtime needs of the app."""

    group: str
    time: Time
    producer: Producer
    registry: Registry | None
    hand_over: HandOver
    fail: Callable[[BaseException], None]
    commit_now: Callable[[Where], Awaitable[None]]
    note: Callable[[str, Message, dict[str, Any]], None] | None  # for the trace, where there is one
    outputs: Outputs | None = None  # of transactional handlers


class Verdicts:
    """Of one handler."""

    def __init__(self, spec: HandlerSpec, around: Surroundings, counts: Counts, breaker: BreakerState | None) -> None:
        self._spec = spec
        self._options = spec.options
        self._around = around
        self._counts = counts
        self._breaker = breaker

    async def decide(self, lane_level: int | None, entry: Entry, error: BaseException) -> float | None:
        """What becomes of a record that failed: None when it is finished here, or when to call the handler again."""
        attempted = repr(Message(entry))
        entry.attempts += 1
        entry.failure = type(error)
        entry.parked = False
        self._counts.failed += 1
        message = Message(entry)
        now = self._around.time.monotonic_ms()
        decision = after_failure(self._options.retry, entry.attempts, lane_level, error)
        log.warning("%s failed: %r; %s", attempted, error, decision.in_words)
        match decision:
            case RetryNow(delay_ms, parked):
                entry.parked = parked
                self._counts.retried += 1
                self._note("retried", message, {"after_ms": delay_ms, "error": repr(error)[:500]})
                return now + delay_ms
            case RetryLater(level, delay_ms):
                return await self._retry_later(entry, message, level, delay_ms, error)
            case Die():
                return await self._die(entry, message, error, now)

    async def _retry_later(
        self, entry: Entry, message: Message, level: int, delay_ms: int, error: BaseException
    ) -> float | None:
        origin = message.origin
        topic = letters.retry_topic(origin.topic, level)
        due = self._around.time.wall_ms() + delay_ms
        attempts = message.attempt
        headers = message.headers

        def build(brief: bool) -> Sequence[letters.Header]:
            return letters.for_retry(headers, origin, self._around.group, error, attempts, due, brief=brief)

        is_relayed = self._options.retry.by == "relay"
        later = Later(retry_id(self._around.group, origin, level), due) if is_relayed else None
        if not await self._around.hand_over(entry, topic, origin.topic, build, later):
            return NEVER
        self._counts.retried += 1
        self._note("retried", message, {"to": topic, "after_ms": delay_ms, "error": repr(error)[:500]})
        return None

    def _note(self, what: str, message: Message, details: dict[str, Any]) -> None:
        if self._around.note is not None:
            self._around.note(what, message, details)

    async def _die(self, entry: Entry, message: Message, error: BaseException, now: float) -> float | None:
        if self._breaker is not None and not self._breaker.allows_death(now):
            if self._breaker.settings.action == "stop":
                self._around.fail(
                    CircuitOpen(
                        f"{self._spec.name}: too many records died ({error!r} was the last): mend the handler or what "
                        "it depends on, then start the app again; nothing is lost"
                    )
                )
                return NEVER
            log.error("%s: too many records died; pausing", self._spec.name)
            entry.attempts -= 1
            assert self._breaker.open_until_ms is not None
            return self._breaker.open_until_ms
        origin = message.origin
        if self._options.dead_letter is False:
            kind = "cannot be decoded" if isinstance(error, Undecodable) else f"failed {message.attempt - 1} times"
            failure = HandlerFailed(
                f"{self._spec.name}: {origin.topic}-{origin.partition} offset {origin.offset} {kind}: {error!r}. It "
                "stays unfinished. Give the handler dead_letter=True to set such records aside and go on"
            )
            failure.__cause__ = error
            self._around.fail(failure)
            return NEVER
        own = self._options.dead_letter
        topic = own if isinstance(own, str) else letters.dead_letter_topic(origin.topic)
        headers, attempts = message.headers, message.attempt - 1

        def build(brief: bool) -> Sequence[letters.Header]:
            return letters.for_dead_letter(headers, origin, self._around.group, error, attempts, brief=brief)

        if not await self._around.hand_over(entry, topic, origin.topic, build, None):
            return NEVER
        self._counts.dead += 1
        self._note("dead-lettered", message, {"to": topic, "error": repr(error)[:500]})
        return None
