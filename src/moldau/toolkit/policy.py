"""What a handler promises: retries, dead letters, batches, circuit breaker. Values and decisions, and no deeds."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from moldau.toolkit.durations import Duration, milliseconds
from moldau.toolkit.errors import BatchFailed, SetupError, Undecodable, WrongType

CommitMode = Literal["after", "auto", "manual"]

# Trying again cannot make these right.
HOPELESS: tuple[type[BaseException], ...] = (Undecodable, WrongType)


@dataclass(slots=True, frozen=True)
class Retry:
    """How often a failed record is tried again: `now` times in place, then once after each delay of `later`.

    `later` goes through retry topics (`orders-retry-0`, …), and the key's order is given up for the failed record.
    With `keep_order` it waits in this process instead, and its key (or partition) waits behind it.

    `by` says who waits for `later`: the app, at the head of the retry topic; or a relay (`moldau relay`), which has it
    among the delayed messages and puts it into the retry topic when it is due.
    """

    now: int = 3
    later: Sequence[Duration] = ()
    backoff: Duration = "200ms"  # before the first retry in place; doubled each time
    backoff_max: Duration = "10s"
    keep_order: bool = False
    never: tuple[type[BaseException], ...] = ()  # exceptions that go to the dead letters at once
    by: Literal["app", "relay"] = "app"

    def __post_init__(self) -> None:
        if self.now < 0:
            raise SetupError(f"Retry(now={self.now}): give 0 or more")
        for delay in (*self.later, self.backoff, self.backoff_max):
            milliseconds(delay)
        if self.by not in ("app", "relay"):
            raise SetupError(f'Retry(by={self.by!r}): "app" or "relay"')
        if self.by == "relay" and (self.keep_order or not self.later):
            raise SetupError('Retry(by="relay") is for what goes to retry topics: give later=, and no keep_order=')

    @property
    def later_ms(self) -> tuple[int, ...]:
        """The same in milliseconds."""
        return tuple(milliseconds(delay) for delay in self.later)


@dataclass(slots=True, frozen=True)
class Batch:
    """Records for one call: as many as `size`, or what came `within` that time of the first."""

    size: int = 500
    within: Duration = "1s"

    def __post_init__(self) -> None:
        if self.size < 1:
            raise SetupError(f"Batch(size={self.size}): give 1 or more")
        milliseconds(self.within)

    @property
    def within_ms(self) -> int:
        """The same in milliseconds."""
        return milliseconds(self.within)


@dataclass(slots=True, frozen=True)
class Breaker:
    """Too much dies when `consecutive` records do in a row, or `ratio` of the last `window`.

    Then the handler pauses (and tries one record after `pause`), or the app stops; the record that was too much is not
    dead-lettered: it is tried again. Or the handler slows: it takes one record at a time with `pause` between two, and
    what dies goes on to the dead letters. The first record that lives ends it.
    """

    consecutive: int = 20
    ratio: float = 0.5
    window: int = 100
    action: Literal["pause", "slow", "stop"] = "pause"
    pause: Duration = "30s"

    def __post_init__(self) -> None:
        if self.consecutive < 1 or self.window < 1 or not 0 < self.ratio <= 1:
            raise SetupError("Breaker: consecutive and window are at least 1, and ratio is above 0 and at most 1")
        if self.action not in ("pause", "slow", "stop"):
            raise SetupError(f'Breaker(action={self.action!r}): one of "pause", "slow", "stop"')
        milliseconds(self.pause)


@dataclass(slots=True, frozen=True)
class RetryNow:
    """Call the handler again, in this place, after a pause; a long one is shown as parked."""

    delay_ms: int
    parked: bool

    @property
    def in_words(self) -> str:
        return f"tried again in {self.delay_ms} ms"


@dataclass(slots=True, frozen=True)
class RetryLater:
    """Send it to retry topic `level`, to be handled after the delay."""

    level: int
    delay_ms: int

    @property
    def in_words(self) -> str:
        return f"sent to retry topic {self.level}, for {self.delay_ms} ms"


@dataclass(slots=True, frozen=True)
class Die:
    """No attempt is left."""

    @property
    def in_words(self) -> str:
        return "no attempt is left"


Decision = RetryNow | RetryLater | Die


def after_failure(retry: Retry, attempts: int, level: int | None, error: BaseException) -> Decision:
    """What to do after the `attempts`-th failure of a record in this place; `level` is the retry topic it came from."""
    if isinstance(error, HOPELESS) or (retry.never and isinstance(error, retry.never)):
        return Die()
    if level is None and attempts <= retry.now:
        doubled = milliseconds(retry.backoff) * 2 ** min(attempts - 1, 40)
        return RetryNow(min(doubled, milliseconds(retry.backoff_max)), parked=False)
    if retry.keep_order:
        later = attempts - retry.now - 1
        return RetryNow(milliseconds(retry.later[later]), parked=True) if later < len(retry.later) else Die()
    following = 0 if level is None else level + 1
    if following < len(retry.later):
        return RetryLater(following, milliseconds(retry.later[following]))
    return Die()


def failures_of(error: BaseException, size: int) -> dict[int, BaseException]:
    """Which records of a batch failed."""
    if isinstance(error, BatchFailed):
        return {index: each for index, each in error.failures.items() if 0 <= index < size}
    return dict.fromkeys(range(size), error)


@dataclass(slots=True)
class BreakerState:
    """Counts what lives and dies; asked before a record is given up."""

    settings: Breaker
    consecutive: int = 0
    open_until_ms: float | None = None
    is_trial: bool = False
    _last: deque[bool] = field(default_factory=deque)
    _deaths: int = 0

    def lived(self) -> None:
        self.consecutive = 0
        self.open_until_ms = None
        self.is_trial = False
        self._note(died=False)

    def allows_death(self, now_ms: float) -> bool:
        """Whether one more may die. If too many did, the breaker is open from now on."""
        self.consecutive += 1
        self._note(died=True)
        settings = self.settings
        is_window_full = len(self._last) == settings.window
        too_many = is_window_full and self._deaths >= settings.ratio * settings.window
        if self.is_trial or self.consecutive >= settings.consecutive or too_many:
            self.open_until_ms = now_ms + milliseconds(settings.pause)
            self.is_trial = False
            self.consecutive = 0
            self._last.clear()
            self._deaths = 0
            return settings.action == "slow"
        return True

    def may_start(self, now_ms: float, running: int) -> bool:
        """Whether a handler may be started: after a pause one at a time, until one has lived."""
        if self.open_until_ms is None:
            return True
        if now_ms < self.open_until_ms or running:
            return False
        self.is_trial = True
        return True

    def _note(self, *, died: bool) -> None:
        self._last.append(died)
        self._deaths += died
        if len(self._last) > self.settings.window:
            self._deaths -= self._last.popleft()
