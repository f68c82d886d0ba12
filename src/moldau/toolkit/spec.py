"""What a handler was declared with; checked when it is declared."""

from __future__ import annotations

import re
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from moldau.toolkit.errors import SetupError
from moldau.toolkit.handling import Function
from moldau.toolkit.message import Message
from moldau.toolkit.policy import Batch, Breaker, CommitMode, Retry
from moldau.toolkit.scheduler import Limits, Order, Where

if TYPE_CHECKING:
    from moldau.toolkit.durations import Duration
    from moldau.toolkit.positions import Start

F = TypeVar("F", bound=Callable[..., Any])
CallNext = Callable[[], Awaitable[Any]]
Around = Callable[[Message, CallNext], Awaitable[Any]]
"""Wraps every call of a handler: `async def around(message, call): return await call()`."""


class Reading(Protocol):
    """A consumer group of an app."""

    @property
    def name(self) -> str: ...

    def take_again(self, where: Where, generation: int) -> None: ...


class Home(Protocol):
    """The app of a handler, as far as a `Once` may touch it."""

    @property
    def groups(self) -> Sequence[Reading]: ...

    def on_start(self, call: F) -> F: ...
    def on_stop(self, call: F) -> F: ...
    def every(self, period: Duration) -> Callable[[F], F]: ...


class Once(Protocol):
    """The innermost wrapper of a handler's call: the place of a transaction (`moldau.toolkit.db` has some)."""

    def attach(self, app: Home, spec: HandlerSpec, function: Function) -> None:
        """A handler was declared with it; what makes no sense is said now."""

    def provides(self, hint: Any, *, is_async: bool, name: str) -> Callable[[Message], Any] | None:
        """What gives a parameter with this annotation its argument, if that is its affair."""

    async def handle(self, message: Message, call: CallNext) -> Any:
        """Call an async handler."""

    def handle_plain(self, message: Message, call: Callable[[], Any], given_up: threading.Event) -> Any:
        """Call a plain handler, in its thread; `given_up` is set when nobody waits for it any more."""


@runtime_checkable
class TakesOver(Protocol):
    """A `Once` that keeps offsets itself."""

    async def take_over(self, generation: int, starts: Sequence[Start], is_moved: bool) -> Sequence[Start]:
        """These partitions are ours from now on, in that generation; returns where they begin. `is_moved`: because
        somebody sought there."""


_OURS = re.compile(r".*-(retry-\d+|dlt|dlt-redriven)")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(slots=True, frozen=True)
class Options:
    """How records are handled, whichever function does it."""

    workers: int = 1
    order: Order = "key"
    retry: Retry = field(default_factory=Retry)
    dead_letter: bool | str = False
    commit: CommitMode = "after"
    batch: Batch | None = None
    breaker: Breaker | None = None
    timeout_ms: int | None = None
    to: str | None = None
    limits: Limits = field(default_factory=Limits)
    around: tuple[Around, ...] = ()
    once: Once | None = None
    transactional: bool = False

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise SetupError(f"workers={self.workers}: give 1 or more")
        if self.order not in ("none", "key", "partition"):
            raise SetupError(f'order={self.order!r}: one of "none", "key", "partition"')
        if self.commit not in ("after", "auto", "manual"):
            raise SetupError(f'commit={self.commit!r}: one of "after", "auto", "manual"')
        if self.batch is not None and (
            self.to or self.timeout_ms or self.around or self.once or self.commit != "after"
        ):
            raise SetupError('a batch handler has no to=, timeout=, around=, once= and no commit mode but "after"')
        if self.retry.keep_order and self.order == "none":
            raise SetupError('Retry(keep_order=True) needs order="key" or order="partition"')
        if self.transactional and (self.batch or self.once or self.commit != "after"):
            raise SetupError('a transactional handler has no batch=, no once= and no commit mode but "after"')
        if self.commit == "manual" and (self.to or self.retry.later):
            raise SetupError('commit="manual" leaves finishing to you: it has no to= and no Retry(later=…)')


@dataclass(slots=True)
class HandlerSpec:
    """Topics, options and the functions that share them."""

    topics: tuple[str, ...]
    patterns: tuple[re.Pattern[str], ...]
    options: Options
    group: str
    functions: list[Function] = field(default_factory=list)

    @property
    def name(self) -> str:
        return ", ".join(function.name for function in self.functions)

    @property
    def label(self) -> str:
        """A word for messages about the handler's topics."""
        return ", ".join([*self.topics, *(pattern.pattern for pattern in self.patterns)])

    def matches(self, topic: str) -> bool:
        """Whether a topic that exists is one of its own; retry topics and dead letters are nobody's."""
        if topic in self.topics:
            return True
        return not _OURS.fullmatch(topic) and any(pattern.fullmatch(topic) for pattern in self.patterns)


def split_topics(topics: Sequence[str | re.Pattern[str]]) -> tuple[tuple[str, ...], tuple[re.Pattern[str], ...]]:
    """Names and patterns; a pattern is compiled by `re`, or text that begins with ^, as Kafka's clients have it."""
    names, patterns = [], []
    for topic in topics:
        if isinstance(topic, re.Pattern):
            patterns.append(topic)
        elif topic.startswith("^"):
            patterns.append(re.compile(topic))
        elif _NAME.fullmatch(topic):
            names.append(topic)
        else:
            raise SetupError(f"{topic!r} is no name of a topic: letters, digits, dots, dashes and underscores")
    if not names and not patterns:
        raise SetupError("a handler needs a topic")
    return tuple(names), tuple(patterns)
