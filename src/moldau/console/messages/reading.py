"""Reading records of a topic for a page: from the newest, the oldest, offsets or a time on, within budgets.

A page of several partitions is merged by time; inside of a partition records stay in offset order, so that the next
page begins exactly where this one ends. Blocking: one consumer per call, without a group, that commits nothing.

Invariants: no call reads longer, more records or more bytes than its budget. A record is looked at, and only what is
shown of it is kept.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

T = TypeVar("T", bound="Placed")
_CALL_S = 8.0
_FIRST_WINDOW = 50
_FIRST_BYTES = 32 << 20
_GROWTH = 4
_BATCH = 500
_LATE_S = 0.3
_AWAY = (
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
)


class Placed:
    """What every kept record has."""

    partition: int
    offset: int
    timestamp_ms: int


@dataclass(slots=True, frozen=True)
class Budget:
    rows: int = 200_000
    seconds: float = 6.0
    bytes: int = 512 << 20


@dataclass(slots=True)
class Spent:
    rows: int = 0
    bytes: int = 0
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def is_over(self, budget: Budget) -> bool:
        return self.rows >= budget.rows or self.bytes >= budget.bytes or self.seconds >= budget.seconds


@dataclass(slots=True)
class Page(Generic[T]):
    """Records that were accepted, where to go on, and what it cost."""

    records: list[T]
    older: dict[int, int] | None  # read what is before these offsets; None at the beginning
    newer: dict[int, int] | None  # read from these offsets on
    spent: Spent
    is_cut: bool  # the budget ended it
    looked_at: frozenset[int] = frozenset()  # partitions that could be read


Accept = Callable[[Message], T | None]


class NoSuchTopic(Exception):
    """The topic is not there (any more)."""


class NobodyLeads(Exception):
    """The partitions that were asked for have no leader, or one that does not answer."""


def consumer(config: Mapping[str, Any], *, is_committed: bool = True) -> Consumer:
    return Consumer(
        {
            "log_level": 0,
            "group.id": "moldau-console",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 50,
            "queued.max.messages.kbytes": 32_768,
            "allow.auto.create.topics": False,
            **config,
            "isolation.level": "read_committed" if is_committed else "read_uncommitted",
        }
    )


def bounds(reader: Consumer, topic: str, wanted: set[int] | None) -> dict[int, tuple[int, int]]:
    """First and next offset of each partition that somebody leads; the others cannot be read right now."""
    found = reader.list_topics(topic, timeout=_CALL_S).topics.get(topic)
    if found is None or found.error is not None or not found.partitions:
        raise NoSuchTopic(f"There is no topic {topic}.")
    until = time.monotonic() + _CALL_S
    known = {}
    for index in sorted(found.partitions):
        if (wanted is None or index in wanted) and found.partitions[index].leader >= 0:
            left = max(_LATE_S, until - time.monotonic())  # brokers that went just now cost time once, not each time
            try:
                known[index] = reader.get_watermark_offsets(TopicPartition(topic, index), timeout=left, cached=False)
            except KafkaException as error:
                if error.args[0].code() not in _AWAY:
                    raise
    if not known:
        raise NobodyLeads(f"Nobody leads {topic} right now, so nothing of it can be read: brokers are away.")
    return known


def read_newest(
    reader: Consumer,
    topic: str,
    ranges: Mapping[int, tuple[int, int]],
    limit: int,
    accept: Accept[T],
    budget: Budget,
    record_bytes: int = 0,
) -> Page[T]:
    """The last records of each range, newest first: windows that reach back further and further.

    `record_bytes` is how large a record is, about: windows of large ones are small, or the first would be the last.
    """
    spent = Spent()
    found: dict[int, list[T]] = {index: [] for index in ranges}
    low = {index: end for index, (_, end) in ranges.items()}
    window = max(_FIRST_WINDOW, -(-limit // max(1, len(ranges))))
    if record_bytes:
        window = max(1, min(window, _FIRST_BYTES // record_bytes // max(1, len(ranges))))
    while not spent.is_over(budget):
        # Never more than may still be read, so that the last window is not in vain.
        window = max(1, min(window, (budget.rows - spent.rows) // max(1, len(ranges))))
        todo = {
            index: (max(ranges[index][0], high - window), high)
            for index, high in low.items()
            if high > ranges[index][0] and len(found[index]) < limit
        }
        if not todo:
            break
        part = _read_ranges(reader, topic, todo, accept, budget, spent)
        for index, one in part.items():
            if one.next >= todo[index][1]:  # a window that was cut is not shown: its newest records are missing
                found[index] = one.rows + found[index]
                low[index] = todo[index][0]
        if sum(len(rows) for rows in found.values()) >= limit:
            break
        window *= _GROWTH
    merged = list(heapq.merge(*(reversed(rows) for rows in found.values()), key=_newest_first))
    records, dropped = merged[:limit], merged[limit:]
    before = dict(low)
    for each in reversed(dropped):  # the newest dropped of a partition comes last here
        before[each.partition] = each.offset + 1
    has_older = any(before[index] > ranges[index][0] for index in ranges)
    newer = {index: end for index, (_, end) in ranges.items()}
    is_cut = spent.is_over(budget) and len(records) < limit
    return Page(records, before if has_older else None, newer, spent, is_cut, frozenset(ranges))


def read_forward(
    reader: Consumer,
    topic: str,
    ranges: Mapping[int, tuple[int, int]],
    limit: int,
    accept: Accept[T],
    budget: Budget,
) -> Page[T]:
    """The first records of each range, oldest first."""
    spent = Spent()
    part = _read_ranges(reader, topic, ranges, accept, budget, spent, limit)
    merged = list(heapq.merge(*(each.rows for each in part.values()), key=_oldest_first))
    records, dropped = merged[:limit], merged[limit:]
    after = {index: one.next for index, one in part.items()}
    for each in reversed(dropped):  # the oldest dropped of a partition comes last here
        after[each.partition] = each.offset
    older = {index: start for index, (start, _) in ranges.items()}
    is_more = any(after[index] < ranges[index][1] for index in ranges)
    is_cut = spent.is_over(budget) and len(records) < limit
    return Page(records, older, after if is_more else None, spent, is_cut, frozenset(ranges))


@dataclass(slots=True)
class _Part(Generic[T]):
    rows: list[T]
    next: int  # the first offset that was not looked at


def _newest_first(each: Placed) -> tuple[int, int]:
    return -each.timestamp_ms, -each.partition


def _oldest_first(each: Placed) -> tuple[int, int]:
    return each.timestamp_ms, each.partition


def _read_ranges(
    reader: Consumer,
    topic: str,
    ranges: Mapping[int, tuple[int, int]],
    accept: Accept[T],
    budget: Budget,
    spent: Spent,
    limit: int | None = None,
) -> dict[int, _Part[T]]:
    """What was accepted in each range, and how far it was read: to its end, to its limit or until the budget ended."""
    found: dict[int, _Part[T]] = {index: _Part([], low) for index, (low, _) in ranges.items()}
    unfinished = {index for index, (low, high) in ranges.items() if low < high}
    wanted = [TopicPartition(topic, index, ranges[index][0]) for index in unfinished]
    reader.assign(wanted)
    reader.resume(wanted)  # what an earlier range paused stays paused through an assignment

    def finish(index: int, where: int) -> None:
        found[index].next = where
        unfinished.discard(index)
        if unfinished:
            reader.pause([TopicPartition(topic, index)])

    while unfinished and not spent.is_over(budget):
        for message in reader.consume(_BATCH, 0) or reader.consume(1, 0.1):
            index = message.partition()
            if index is None or index not in unfinished:
                continue
            end = ranges[index][1]
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    finish(index, end)
                    continue
                if error.retriable() or error.code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
                    continue
                raise KafkaException(error)
            offset = message.offset() or 0
            if offset >= end:
                finish(index, end)
                continue
            if spent.is_over(budget):  # a batch of large records and a long filter takes longer than it may
                break
            spent.rows += 1
            spent.bytes += len(message)
            kept = accept(message)
            part = found[index]
            part.next = offset + 1
            if kept is not None:
                part.rows.append(kept)
            if part.next >= end or (limit is not None and len(part.rows) >= limit):
                finish(index, part.next)
    return found
