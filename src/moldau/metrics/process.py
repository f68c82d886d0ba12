"""This process: memory, processor, descriptors, garbage, and how late the event loop comes to what is due.

The names are those of prometheus_client, so that dashboards for Python programs work. What a platform does not tell is
left out of the page.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import os
import sys
import time
from pathlib import Path

from moldau.metrics.histogram import Histogram
from moldau.metrics.text import Page

_LOOK_SECONDS = 0.25
_IDLE_OVER_SECONDS = 60.0
_PROC = Path("/proc/self")
_DESCRIPTORS = "/dev/fd"  # on Linux a name for /proc/self/fd, and on macOS all there is


class LoopDelay:
    """How much later than asked for the loop calls back: what everybody who waits for it waits longer."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self.times = Histogram()
        self.longest_seconds = 0.0
        """Since somebody last asked, see `take_longest`."""
        self.idle_ratio = 1.0
        """Of the last minute, the part in which the loop's thread did nothing."""
        self._looked = self._worked = 0.0

    def start(self) -> None:
        self._looked, self._worked = self._loop.time(), time.thread_time()
        self._timer = self._loop.call_at(
            self._loop.time() + _LOOK_SECONDS, self._look, self._loop.time() + _LOOK_SECONDS
        )

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def take_longest(self) -> float:
        longest, self.longest_seconds = self.longest_seconds, 0.0
        return longest

    def _look(self, due: float) -> None:
        now = self._loop.time()
        late = max(0.0, now - due)
        self.times.observe(late)
        self.longest_seconds = max(self.longest_seconds, late)
        self._weigh(now)
        self._timer = self._loop.call_at(now + _LOOK_SECONDS, self._look, now + _LOOK_SECONDS)

    def _weigh(self, now: float) -> None:
        """As a mean in which what is long past weighs less, as Kafka's rates over a minute are."""
        worked = time.thread_time()
        elapsed = now - self._looked
        if elapsed > 0:
            idle = max(0.0, 1 - (worked - self._worked) / elapsed)
            self.idle_ratio += (1 - math.exp(-elapsed / _IDLE_OVER_SECONDS)) * (idle - self.idle_ratio)
        self._looked, self._worked = now, worked


def collect_process(page: Page) -> None:
    from moldau import __version__

    page.info("moldau_build_info", "The version.", {"version": __version__, "python": sys.version.split()[0]})
    page.counter("process_cpu_seconds_total", "Processor time used, in seconds.", time.process_time())
    with contextlib.suppress(OSError, ValueError, IndexError):
        pages = (_PROC / "statm").read_text().split()
        page_bytes = os.sysconf("SC_PAGE_SIZE")
        page.gauge("process_virtual_memory_bytes", "Virtual memory, in bytes.", int(pages[0]) * page_bytes)
        page.gauge("process_resident_memory_bytes", "Resident memory, in bytes.", int(pages[1]) * page_bytes)
    with contextlib.suppress(OSError, ValueError, IndexError, StopIteration):
        started = _started_seconds()
        page.gauge("process_start_time_seconds", "When this process began, in seconds since 1970.", started)
    with contextlib.suppress(OSError):
        page.gauge("process_open_fds", "Open descriptors.", len(os.listdir(_DESCRIPTORS)))
    with contextlib.suppress(ImportError, OSError):
        import resource

        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        page.gauge("process_max_fds", "The most descriptors that may be open.", limit)
    for generation, stats in enumerate(gc.get_stats()):
        labels = {"generation": generation}
        page.counter(
            "python_gc_collections_total",
            "Times this generation was searched for garbage.",
            stats["collections"],
            labels,
        )
        page.counter("python_gc_objects_collected_total", "Objects found in it.", stats["collected"], labels)


def _started_seconds() -> float:
    """The kernel counts from its own start, in ticks; behind the program's name, which may have blanks in it."""
    ticks = int((_PROC / "stat").read_text().rpartition(")")[2].split()[19])
    lines = (_PROC.parent / "stat").read_text().splitlines()
    booted = next(int(line.split()[1]) for line in lines if line.startswith("btime "))
    return booted + ticks / os.sysconf("SC_CLK_TCK")
