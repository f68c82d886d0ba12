"""One call of a batch handler and what follows from it.

A batch that fails is repeated as a whole, as often as `Retry.now` says. Then its records are tried one by one, so that
one bad record takes no good one with it. A handler that knows which failed says so with `BatchFailed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from moldau.toolkit.errors import BatchFailed, Undecodable
from moldau.toolkit.message import Message
from moldau.toolkit.policy import failures_of

if TYPE_CHECKING:
    from moldau.toolkit.handling import Dispatch
    from moldau.toolkit.lanes import Lane
    from moldau.toolkit.policy import BreakerState
    from moldau.toolkit.scheduler import Entry
    from moldau.toolkit.spec import Options
    from moldau.toolkit.verdicts import Verdicts

    class Runtime(Protocol):
        """What of a handler's runtime this file may touch."""

        @property
        def dispatch(self) -> Dispatch: ...
        @property
        def options(self) -> Options: ...
        @property
        def breaker(self) -> BreakerState | None: ...
        @property
        def verdicts(self) -> Verdicts: ...

        async def decode(self, entry: Entry) -> Any: ...
        def message(self, lane: Lane, entry: Entry, value: Any) -> Message: ...
        async def call_batch(self, values: list[Any]) -> None: ...


async def run_batch(runtime: Runtime, lane: Lane, entries: Sequence[Entry]) -> dict[int, float]:
    """Call the handler; returns which entries are to be repeated, and when. The others are finished."""
    values: dict[int, Any] = {}
    failures: dict[int, BaseException] = {}
    for index, entry in enumerate(entries):
        entry.failure = None
        try:
            decoded = await runtime.decode(entry)
        except Undecodable as error:
            failures[index] = error
        else:
            wants_messages = runtime.dispatch.functions[0].value_type is Message
            values[index] = runtime.message(lane, entry, decoded) if wants_messages else decoded
    indexes = list(values)
    if indexes:
        raised = await _call(runtime, [values[index] for index in indexes])
        if raised is not None:
            failed = {indexes[at]: each for at, each in failures_of(raised, len(indexes)).items()}
            is_last = entries[indexes[0]].attempts >= runtime.options.retry.now
            if is_last and len(indexes) > 1 and not isinstance(raised, BatchFailed):
                failed = await _one_by_one(runtime, values)
            failures |= failed
    if runtime.breaker is not None and len(failures) < len(entries):
        runtime.breaker.lived()
    again: dict[int, float] = {}
    for index, each in sorted(failures.items()):
        if not entries[index].part.alive:
            continue
        at = await runtime.verdicts.decide(lane.level, entries[index], each)
        if at is not None:
            again[index] = at
    return again


async def _one_by_one(runtime: Runtime, values: dict[int, Any]) -> dict[int, BaseException]:
    failed = {}
    for index, value in values.items():
        error = await _call(runtime, [value])
        if error is not None:
            failed[index] = error.failures.get(0, error) if isinstance(error, BatchFailed) else error
    return failed


async def _call(runtime: Runtime, values: list[Any]) -> Exception | None:
    try:
        await runtime.call_batch(values)
    except Exception as error:  # whatever the user's code raises
        return error
    return None
