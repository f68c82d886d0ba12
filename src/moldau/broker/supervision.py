"""Every task of a node begins here, so that none can end in silence.

    keep_going(loop, "heartbeats", self._beat)      # for the life of the node: if it fails, it begins anew
    begin(loop, "a marker", self._send(…))          # ends by itself: if it fails, that is at least said

Invariant: a task that ends with an exception has said so in the log. What cannot go on without lying (the quorum, when
its disk or its log is not what it should be) stops the node instead, through `on_failure` of its owner.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

_log = logging.getLogger(__name__)
PREFIX = "moldau: "  # of the names of all tasks
FOR_LIFE = "moldau for life: "  # of those that never end by themselves
_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 0.1, 10.0

Work = Coroutine[Any, Any, None]


def begin(loop: asyncio.AbstractEventLoop, name: str, work: Work) -> asyncio.Task[None]:
    """Something that ends by itself. Whoever waits for its end must be told by `work`, whatever happens."""
    task = loop.create_task(work, name=f"{PREFIX}{name}")
    task.add_done_callback(_say_if_failed)
    return task


def _say_if_failed(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("%s failed", task.get_name().removeprefix(PREFIX), exc_info=error)


def keep_going(loop: asyncio.AbstractEventLoop, name: str, work: Callable[[], Work]) -> asyncio.Task[None]:
    """Something that goes on until it is cancelled, or says by returning that it is done."""
    return loop.create_task(_keep_going(loop, name, work), name=f"{FOR_LIFE}{name}")


async def _keep_going(loop: asyncio.AbstractEventLoop, name: str, work: Callable[[], Work]) -> None:
    pause = _PAUSE_SECONDS
    while True:
        since = loop.time()
        try:
            await work()
        except Exception:  # whatever it was: without this task the node would look alive and not be
            if loop.time() - since > _PAUSE_SECONDS_MAX:
                pause = _PAUSE_SECONDS
            _log.exception("%s failed, and begins anew in %.1f s", name, pause)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _PAUSE_SECONDS_MAX)
        else:
            return
