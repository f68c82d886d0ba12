"""Offset ranges of a batch, split into tasks: what `minPartitions` and `maxRecordsPerPartition` ask for.

What a task is told is defined here too, apart from what reads it: planning needs neither numpy nor Arrow.

The same arithmetic as Spark's own source, so that a query has the same tasks on both.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from moldau.client.cluster import Address
from moldau.client.connection import ClientError
from moldau.client.settings import ClientSettings


class DataLost(ClientError):
    """Records that were to be read are not there any more."""


@dataclass(slots=True, frozen=True)
class RangeToRead:
    """One task's work, with what the driver knows about the leader."""

    topic: str
    partition: int
    start: int
    end: int
    leader: Address | None = None
    topic_id: bytes = b""  # empty if the brokers do not tell

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start}, {self.end})"


@dataclass(slots=True, frozen=True)
class FetchSettings:
    """How to ask."""

    client: ClientSettings
    read_committed: bool = False
    include_headers: bool = False
    fail_on_data_loss: bool = True
    max_bytes: int = 4 << 20
    max_wait_ms: int = 500
    timeout_s: float = 120.0  # without progress
    check_crcs: bool = True
    outage_s: float = 0.0  # without a broker that answers


def split(
    ranges: Iterable[RangeToRead], *, min_partitions: int | None = None, max_records: int | None = None
) -> list[RangeToRead]:
    """The ranges that hold something, long ones in several parts."""
    found = [each for each in ranges if _size(each) > 0]
    if max_records is not None:
        found = [part for each in found for part in _divide(each, math.ceil(_size(each) / max_records))]
    if min_partitions is None or len(found) >= min_partitions:
        return found
    total = sum(map(_size, found))
    whole = [each for each in found if _part_count(_size(each), total, min_partitions) == 1]
    untouched = {(each.topic, each.partition) for each in whole}
    rest = total - sum(map(_size, whole))
    wanted = max(min_partitions - len(whole), 1)
    return [
        part
        for each in found
        for part in (
            [each]
            if (each.topic, each.partition) in untouched
            else _divide(each, _part_count(_size(each), rest, wanted))
        )
    ]


def _size(each: RangeToRead) -> int:
    return each.end - each.start


def _part_count(size: int, total: int, wanted: int) -> int:
    return max(math.floor(size / total * wanted + 0.5), 1)


def _divide(each: RangeToRead, parts: int) -> Sequence[RangeToRead]:
    """Parts of nearly the same size; the last ones take what is left over."""
    divided = []
    start, remaining = each.start, _size(each)
    for part in range(parts):
        size = remaining // (parts - part)
        remaining -= size
        if size:
            divided.append(replace(each, start=start, end=start + size))
        start += size
    return divided
