"""What the consumer's thread tells the event loop, and how much of it may be on its way at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Message

from moldau.toolkit.positions import Start
from moldau.toolkit.scheduler import Where


@dataclass(slots=True, frozen=True)
class Arrived:
    """Records of one partition, in offset order."""

    where: Where
    generation: int
    messages: Sequence[Message]
    size: int


@dataclass(slots=True, frozen=True)
class Reached:
    """The partition was read to this end; what else lies before it is no record."""

    where: Where
    generation: int
    offset: int


@dataclass(slots=True, frozen=True)
class Assigned:
    generation: int
    starts: Sequence[Start]


@dataclass(slots=True, frozen=True)
class Revoking:
    """These will be given back as soon as `answer` has what is to be committed first, or after `seconds`."""

    wheres: Sequence[Where]
    seconds: float
    answer: Future[Mapping[Where, tuple[int, str]]]
    metadata: Any  # the group's generation, for whoever commits in a transaction; None if we are no member any more


@dataclass(slots=True, frozen=True)
class Removed:
    """These are gone: given back, or lost."""

    wheres: Sequence[Where]
    is_lost: bool


@dataclass(slots=True, frozen=True)
class Committed:
    """A commit ended; without an error these offsets are the group's."""

    offsets: Mapping[Where, tuple[int, str]]
    error: str | None


@dataclass(slots=True, frozen=True)
class Trouble:
    """Something the user should know; `is_fatal` when the thread has ended because of it."""

    message: str
    is_fatal: bool = False


@dataclass(slots=True, frozen=True)
class Credit:
    """How much may be on its way to the loop at once. The bytes are passed by one batch of what the client fetched."""

    messages: int
    bytes: int


Event = Arrived | Reached | Assigned | Revoking | Removed | Committed | Trouble
