"""Work off the loop, cut into steps: a job stops at some of its disk operations and goes on later, while the loop and
other jobs do something else; a process that dies takes its jobs with it, wherever they are.

A job that is cut runs on a stack of its own (a greenlet) in the same thread: whoever has the turn runs, everybody else
waits to be handed it. So the order of everything still follows from the seed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from greenlet import greenlet

from moldau.seams import Random

_DELAY_S = 0.002
_LONG_DELAY_S = 0.4


class _Turn:
    """Whose it is: a job's, or (None) the loop's."""

    job: _Job | None = None


class StepLock:
    """Stands for `threading.Lock` in code that jobs and the loop share: nobody stops while he holds it, so nobody ever
    waits for it."""

    def __enter__(self) -> None:
        if _Turn.job is not None:
            _Turn.job.locks += 1

    def __exit__(self, *_: object) -> None:
        if _Turn.job is not None:
            _Turn.job.locks -= 1


class Died(BaseException):
    """The process has ended, and with it the job."""


class _Job:
    """Work on a stack of its own. The loop calls `go_on`, which returns when the job stops or has ended."""

    __slots__ = ("_stack", "_work", "error", "is_dead", "is_over", "locks", "result")

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._stack = greenlet(self._run)
        self.result: Any = None
        self.error: Exception | None = None
        self.is_over = False
        self.is_dead = False
        self.locks = 0

    def _run(self) -> None:
        try:
            if not self.is_dead:
                self.result = self._work()
        except Died:
            pass
        except Exception as error:
            self.error = error
        finally:
            self.is_over = True

    def go_on(self) -> None:
        _Turn.job = self
        self._stack.switch()
        _Turn.job = None

    def stop(self) -> None:
        """Called by the job: the loop goes on, until it hands the turn back."""
        loop = self._stack.parent
        assert loop is not None
        loop.switch()
        if self.is_dead:
            raise Died


class Steps:
    """The jobs of one process."""

    def __init__(self, random: Random, *, one_in: int = 3) -> None:
        """One disk operation in `one_in` of a job that is cut is a place where it stops."""
        self._random = random
        self._one_in = one_in
        self._stopped: dict[int, _Job] = {}
        self._later: Callable[[float, Callable[[], None]], None]
        self.is_dead = False
        self.stops = 0

    def cuts(self, func: Callable[..., Any]) -> bool:
        """Whether this piece of work is cut. Flushes are many, and short."""
        is_flush = type(getattr(func, "__self__", None)).__name__ in ("FlushJob", "CheckpointJob")
        return self._random.below(6 if is_flush else 2) == 0

    def begin(
        self,
        work: Callable[[], Any],
        later: Callable[[float, Callable[[], None]], None],
        done: Callable[[Any, Exception | None], None],
    ) -> None:
        job = _Job(work)

        def turn() -> None:
            self._stopped.pop(id(job), None)
            job.go_on()
            if job.is_over:
                done(job.result, job.error)
                return
            self._stopped[id(job)] = job
            self.stops += 1
            # Mostly a moment; sometimes long enough for anything to happen meanwhile.
            most_s = _DELAY_S if self._random.below(8) else _LONG_DELAY_S
            later(self._random.fraction() * most_s, turn)

        turn()

    def at_disk(self, _: str) -> None:
        """The disk is about to be used. A job may have to wait here; nothing else does."""
        if self.is_dead:
            raise Died
        job = _Turn.job
        if job is not None and not job.locks and self._random.below(self._one_in) == 0:
            job.stop()

    def die(self) -> None:
        """The process has ended: what its jobs had still to do is not done."""
        self.is_dead = True
        stopped, self._stopped = self._stopped, {}
        for job in stopped.values():
            job.is_dead = True
            job.go_on()
