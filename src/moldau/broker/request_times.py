"""How often each API is asked, how long its answers take and where that time goes, and which errors they carry.

Reading a clock twice costs more than counting, and a Produce costs little more than that. So of the requests that are
read by hand (Produce and Fetch), and answered at once, one in 128 is measured and counts for all of them; those
that wait for something are all measured, as is every request of another API. The counts of requests are exact.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from moldau.metrics.histogram import Histogram
from moldau.wire import schema

if TYPE_CHECKING:
    from moldau.seams.network import Payload, ResponseSlot
    from moldau.wire import Message
    from moldau.wire.schema import StructSpec

_log = logging.getLogger(__name__)
SAMPLED_MASK = 127
_LOOKED_AT_MAX = 1_000  # elements of one list of an answer, when its errors are counted
# Whoever asks these waits for others, who may take their time: only what the node itself does is slow or not.
_WAITS_FOR_OTHERS = frozenset({"Fetch", "JoinGroup", "SyncGroup"})


class Measured(Protocol):
    """A request: where its answer goes."""

    slot: ResponseSlot


class TimedSlot:
    """A slot that notes when it is completed. Only requests that are measured pay for it."""

    __slots__ = ("_call", "_slot", "_times", "began_ms", "local_ms")

    def __init__(self, times: RequestTimes, call: Measured, began_ms: float, local_ms: float) -> None:
        self._times = times
        self._call: Measured | None = call  # until it is answered: then the two let go of each other
        self._slot = call.slot
        self.began_ms = began_ms
        self.local_ms = local_ms  # how long the handler had it; -1: has it still

    def complete(self, payload: Payload) -> None:
        self._answered()
        self._slot.complete(payload)

    def complete_nothing(self) -> None:
        self._answered()
        self._slot.complete_nothing()

    def close(self, reason: str) -> None:
        self._call = None
        self._slot.close(reason)

    def _answered(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            self._times.answered(call, self.began_ms, self.local_ms)


class RequestTimes:
    """Of one API on one kind of listener. Belongs to the event loop."""

    __slots__ = (
        "_is_judged_whole",
        "_now_ms",
        "_weight",
        "errors",
        "local_seconds",
        "name",
        "remote_seconds",
        "requests",
        "slow",
        "slow_ms",
        "total",
    )

    def __init__(self, name: str, now_ms: Callable[[], float], *, is_sampled: bool) -> None:
        self.name = name
        self.requests = 0
        self.errors: dict[int, int] = {}
        self.total = Histogram()
        self.local_seconds = 0.0
        """Spent by the handler, on the loop, before it answered or began to wait."""
        self.remote_seconds = 0.0
        """Spent waiting: for replicas, records, the disk, a thread, another node."""
        self.slow = 0
        self.slow_ms = 0.0
        """A request that takes longer is told of; 0: none is."""
        self._now_ms = now_ms
        self._weight = SAMPLED_MASK + 1 if is_sampled else 1
        self._is_judged_whole = name not in _WAITS_FOR_OTHERS

    def begin(self, call: Measured) -> None:
        """Measure this one."""
        call.slot = TimedSlot(self, call, self._now_ms(), -1.0)

    def handled(self, call: Measured) -> None:
        """The handler has returned; whether it has answered does not matter."""
        slot = call.slot
        if isinstance(slot, TimedSlot) and slot.local_ms < 0:
            slot.local_ms = self._now_ms() - slot.began_ms

    def waits(self, call: Measured, now_ms: float) -> None:
        """The handler leaves the answer to somebody else."""
        slot = call.slot
        if isinstance(slot, TimedSlot):
            slot.local_ms = now_ms - slot.began_ms
        else:
            call.slot = TimedSlot(self, call, now_ms, 0.0)

    def answered(self, call: Measured, began_ms: float, handler_ms: float) -> None:
        total_ms = self._now_ms() - began_ms
        if handler_ms < 0:
            local_ms, weight = total_ms, self._weight
        else:
            local_ms, weight = min(handler_ms, total_ms), 1
        self.total.observe(total_ms / 1000, weight)
        self.local_seconds += local_ms * weight / 1000
        self.remote_seconds += (total_ms - local_ms) * weight / 1000
        # The API stands in the texts: lines are limited by their texts, and one API must not hide the others.
        if _log.isEnabledFor(logging.DEBUG):
            text = f"{self.name} took %.1f ms, %.1f of them waiting: %r"
            _log.debug(text, total_ms, total_ms - local_ms, call)
        if self.slow_ms and (total_ms if self._is_judged_whole else local_ms) > self.slow_ms:
            self.slow += 1
            text = f"{self.name} was slow: %.0f ms, of which %.0f ms were spent waiting: %r"
            _log.warning(text, total_ms, total_ms - local_ms, call)

    def failed(self, code: int) -> None:
        self.errors[code] = self.errors.get(code, 0) + 1

    def count_errors(self, response: Message) -> None:
        """All error codes an answer has, wherever it has them."""
        self._count(response, _places(type(response).__name__))

    def _count(self, struct: Any, places: _Places) -> None:
        has_code, lists = places
        if has_code and struct.error_code:
            self.failed(struct.error_code)
        for name, inner in lists:
            for each in islice(getattr(struct, name) or (), _LOOKED_AT_MAX):
                self._count(each, inner)


_Places = tuple[bool, list[tuple[str, Any]]]


@cache
def _places(message: str) -> _Places:
    """Where a message has error codes: itself, and in which of its lists."""
    return _places_in(schema.message(message).root)


def _places_in(struct: StructSpec) -> _Places:
    lists = []
    for each in struct.fields:
        if each.is_array and each.struct is not None:
            inner = _places_in(each.struct)
            if inner[0] or inner[1]:
                lists.append((each.name, inner))
    return any(each.name == "error_code" for each in struct.fields), lists
