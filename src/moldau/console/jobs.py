"""Work that takes longer than a request: it runs in a thread, one of a name at a time, and can be looked at."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

_KEPT = 100
_RUNNING_MAX = 4


class Busy(Exception):
    """The same work is being done, or too much other work."""


@dataclass(slots=True)
class Job:
    number: int
    name: str
    who: str
    started_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    ended_ms: int = 0
    state: str = "running"  # done, failed
    result: str = ""


class Jobs:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: OrderedDict[int, Job] = OrderedDict()
        self._last = 0

    def start(self, name: str, who: str, work: Callable[[], str]) -> Job:
        with self._lock:
            running = [job for job in self._jobs.values() if job.state == "running"]
            if any(job.name == name for job in running):
                raise Busy(f"{name} is running already; wait for its end.")
            if len(running) >= _RUNNING_MAX:
                raise Busy(f"{_RUNNING_MAX} long jobs are running; wait for one to end.")
            self._last += 1
            job = self._jobs[self._last] = Job(self._last, name, who)
            while len(self._jobs) > _KEPT:
                self._jobs.popitem(last=False)
        threading.Thread(target=self._run, args=(job, work), name=f"moldau-console-{name}", daemon=True).start()
        return job

    def _run(self, job: Job, work: Callable[[], str]) -> None:
        try:
            job.result = work()
            job.state = "done"
        except Exception as error:  # whatever it was, whoever looks at the job is told
            cause = error.args[0] if error.args else error
            job.result = cause.str() if hasattr(cause, "str") else str(error) or type(error).__name__
            job.state = "failed"
        job.ended_ms = time.time_ns() // 1_000_000

    def find(self, number: int) -> Job | None:
        return self._jobs.get(number)

    def last(self, name: str) -> Job | None:
        with self._lock:
            return next((job for job in reversed(self._jobs.values()) if job.name == name), None)
