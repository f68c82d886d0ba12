"""Keeps the parts of a relay running: starts them, starts them again, asks how they do, stops them.

A part is anything with a name that can be started and stopped and says how it does; each survives clusters and
databases that come and go by itself. What it cannot survive is this module's business: a part that does not start, or
says that it has ended, is started again, later each time.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

log = logging.getLogger("moldau.toolkit")

_LOOK_S = 1.0
_AGAIN_S_FIRST, _AGAIN_S_MAX = 1.0, 60.0


class Part(Protocol):
    """`start` and `stop` may be coroutines; plain ones are called in a thread."""

    @property
    def name(self) -> str: ...

    def start(self) -> Any: ...

    def stop(self) -> Any: ...

    def health(self) -> Mapping[str, Any]:
        """Plain data; `ok` says whether it does its work, `has_ended` (if there) that it never will again."""


class _Kept:
    """A part, and how often it was started."""

    def __init__(self, make: Callable[[], Part]) -> None:
        self.make = make
        self.part = make()
        self.is_running = False
        self.starts = 0
        self.trouble: str | None = None
        self.again_at = 0.0
        self.again_s = _AGAIN_S_FIRST


class Supervisor:
    """Give it functions that make parts: one that ended is made anew."""

    def __init__(self, parts: Sequence[Callable[[], Part]]) -> None:
        self._kept = [_Kept(make) for make in parts]

    async def run(self, stopping: asyncio.Event) -> None:
        """Until told to stop; then every part is."""
        try:
            while not stopping.is_set():
                for kept in self._kept:
                    await self._look_after(kept)
                try:
                    await asyncio.wait_for(stopping.wait(), _LOOK_S)
                except TimeoutError:
                    continue
        finally:
            await asyncio.gather(*(self._stop(kept) for kept in self._kept))

    async def _look_after(self, kept: _Kept) -> None:
        now = asyncio.get_running_loop().time()
        if kept.is_running:
            if not self._health(kept).get("has_ended"):
                if now > kept.again_at + _AGAIN_S_MAX:
                    kept.again_s = _AGAIN_S_FIRST  # it has lived for a while
                return
            await self._stop(kept)
            self._later(kept, now, "it has ended")
            return
        if now < kept.again_at:
            return
        try:
            if kept.starts:
                kept.part = kept.make()
            kept.starts += 1
            await _called(kept.part.start)
        except Exception as error:  # whatever it is, the other parts go on
            self._later(kept, now, repr(error))
        else:
            kept.is_running, kept.trouble = True, None

    def _later(self, kept: _Kept, now: float, why: str) -> None:
        kept.trouble = why
        kept.again_at = now + kept.again_s
        log.error("%s: %s; started again in %g s", kept.part.name, why, kept.again_s)
        kept.again_s = min(2 * kept.again_s, _AGAIN_S_MAX)

    async def _stop(self, kept: _Kept) -> None:
        if kept.is_running:
            kept.is_running = False
            try:
                await _called(kept.part.stop)
            except Exception:  # the others are to be stopped, too
                log.exception("%s could not be stopped", kept.part.name)

    # Looking.

    def health(self) -> dict[str, Any]:
        """How everything does."""
        parts = {kept.part.name: self._health(kept) for kept in self._kept}
        return {"ok": all(part["ok"] for part in parts.values()), "parts": parts}

    def _health(self, kept: _Kept) -> dict[str, Any]:
        if not kept.is_running:
            return {"ok": False, "trouble": kept.trouble or "not started", "starts": kept.starts}
        try:
            found = dict(kept.part.health())
        except Exception as error:  # a part that cannot even say how it does
            found = {"ok": False, "trouble": repr(error)}
        return {"ok": False, **found, "starts": kept.starts}

    def metrics(self) -> str:
        """The numbers of it, as Prometheus reads them."""
        found = self.health()
        lines = ["# TYPE moldau_relay_ok gauge", f"moldau_relay_ok {int(found['ok'])}"]
        for name, part in found["parts"].items():
            for key, value in part.items():
                if isinstance(value, bool | int | float):
                    metric = f"moldau_relay_{_worded(name)}_{_worded(key)}"
                    lines += [f"# TYPE {metric} gauge", f"{metric} {int(value) if isinstance(value, bool) else value}"]
        return "\n".join([*lines, ""])


def _worded(name: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in name)


async def _called(call: Callable[[], Any]) -> None:
    if inspect.iscoroutinefunction(call):
        await call()
        return
    result = await asyncio.to_thread(call)
    if inspect.isawaitable(result):
        await result
