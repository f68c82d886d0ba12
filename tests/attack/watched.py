"""`moldau`, with an eye on its event loop: how much processor time its thread spends before others have their turn.

Time on the wall says how long others waited, on a machine that may be busy with anything; time of the thread says what
of it was ours. A timer notes it every few milliseconds; what it spent since is one turn, or little more than one. While
a turn is long, another thread notes what the loop is at.

Nothing here is called by the collector: a callback in Python lets other threads run in the middle of a collection, and
what they make meanwhile, uncollected, makes it a long one.

    python -m tests.attack.watched serve …   (at SIGUSR1 a line on standard error says what was, and it is forgotten)
"""

import asyncio
import gc
import signal
import sys
import threading
import time
from collections import Counter
from types import FrameType

from moldau import net
from moldau.cli import main

PREFIX = "longest turn: "
_EVERY_S = 0.005
_LATE_S = 0.03
_FRAMES = 4


class Watch:
    def __init__(self) -> None:
        self.longest_s = 0.0
        self.longest_at = ""
        self._spent_s = time.thread_time()
        self._ticked_s = time.perf_counter()
        self._seen: Counter[str] = Counter()
        self._collections = _full_collections()
        self._loop_thread = threading.get_ident()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        threading.Thread(target=self._look, daemon=True).start()
        self._tick(loop)

    def tell(self, *_: object) -> None:
        print(f"{PREFIX}{self.longest_s * 1000:.1f} ms {self.longest_at}", file=sys.stderr, flush=True)
        self.longest_s, self.longest_at = 0.0, ""

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        spent_s = time.thread_time()
        if (collections := _full_collections()) != self._collections:
            self._collections = collections
            self._seen["a collection of everything"] += 1
        if spent_s - self._spent_s > self.longest_s:
            self.longest_s = spent_s - self._spent_s
            self.longest_at = ", ".join(f"{count} x {place}" for place, count in self._seen.most_common(3))
        if self._seen:
            self._seen = Counter()
        self._spent_s = time.thread_time()
        self._ticked_s = time.perf_counter()
        loop.call_later(_EVERY_S, self._tick, loop)

    def _look(self) -> None:
        while True:
            time.sleep(0.01)
            if time.perf_counter() - self._ticked_s > _LATE_S:
                frame = sys._current_frames().get(self._loop_thread)
                if frame is not None:
                    self._seen[_place(frame)] += 1


def _full_collections() -> int:
    return int(gc.get_stats()[2]["collections"])


def _place(frame: FrameType | None) -> str:
    names: list[str] = []
    while frame is not None and len(names) < _FRAMES:
        names.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
        frame = frame.f_back
    return " < ".join(names)


def run() -> None:
    make_loop = net.new_event_loop
    watch = Watch()
    signal.signal(signal.SIGUSR1, watch.tell)

    def watched_loop() -> asyncio.AbstractEventLoop:
        loop = make_loop()
        loop.call_soon(watch.start, loop)
        return loop

    net.new_event_loop = watched_loop  # type: ignore[assignment]  # nobody here asks for a kind
    main()


if __name__ == "__main__":
    run()
