"""The lanes of a handler: its own topics, and each of its retry topics."""

from __future__ import annotations

from moldau.toolkit.scheduler import Scheduler


class Lane:
    """A scheduler and what it is for: the handler's topics (level None), or one of its retry topics."""

    __slots__ = ("batch_since_ms", "level", "scheduler")

    def __init__(self, scheduler: Scheduler, level: int | None) -> None:
        self.scheduler = scheduler
        self.level = level
        self.batch_since_ms: float | None = None
