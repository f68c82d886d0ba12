"""A database that goes away for a while, as it does when it is restarted or fails over, is waited for.

Only one that has answered before: a wrong address or password is told at once. What was under way is done again from
its beginning, so it must be something that counts once, however often it is done.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.exc import DBAPIError

_PAUSE_SECONDS = 1.0
T = TypeVar("T")
_log = logging.getLogger(__name__)


class Patience:
    """How long one may wait, and whether there is reason to."""

    def __init__(
        self, seconds: float, *, has_answered: bool = False, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._seconds = seconds
        self._has_answered = has_answered
        self._pause = pause

    def outlast(self, engine: Engine, work: Callable[[], T]) -> T:
        """Do the work, again if the database went away in the midst of it and came back in time."""
        from sqlalchemy.exc import DBAPIError

        deadline: float | None = None
        while True:
            try:
                done = work()
            except DBAPIError as error:
                if not self._has_answered or not _went_away(error):
                    raise
                now = time.monotonic()
                deadline = now + self._seconds if deadline is None else deadline
                if now >= deadline:
                    raise
                _log.warning("the database is away (%s): waiting for it, %.0f s more", error.orig, deadline - now)
                engine.dispose()  # its connections are as dead as the one that failed
                self._wait(engine, deadline)
            else:
                self._has_answered = True
                return done

    def _wait(self, engine: Engine, deadline: float) -> None:
        """Until it answers, or the time is over: then the work will tell why."""
        from sqlalchemy import select
        from sqlalchemy.exc import DBAPIError

        while time.monotonic() < deadline:
            self._pause(_PAUSE_SECONDS)  # nobody calls when a database is back: it must be asked
            try:
                with engine.connect() as connection:
                    connection.execute(select(1))
            except DBAPIError:
                continue
            return


def _went_away(error: DBAPIError) -> bool:
    """Whether the connection broke, could not be made, or the end of a transaction failed for reasons of the server."""
    from sqlalchemy.exc import InterfaceError, OperationalError

    return error.connection_invalidated or (
        error.statement is None and isinstance(error, OperationalError | InterfaceError)
    )
