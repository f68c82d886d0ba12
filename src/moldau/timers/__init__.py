"""Timeouts and delayed operations: a hierarchical timing wheel, and a purgatory that stands on it.

Nothing here reads a clock or starts a thread. Whoever owns the loop calls `TimingWheel.advance` with the time, so the
same code runs on the machine's clock and on the simulator's.
"""

from moldau.timers.purgatory import DelayedOperation, Purgatory, Watched
from moldau.timers.wheel import TimerHandle, TimingWheel

__all__ = ["DelayedOperation", "Purgatory", "TimerHandle", "TimingWheel", "Watched"]
