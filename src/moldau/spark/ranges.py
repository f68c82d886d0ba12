"""Offset ranges of a batch, cut into tasks: what `minPartitions` and `maxRecordsPerPartition` ask for.

The same arithmetic as Spark's own source, so that a query has the same tasks on both.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from moldau.spark.fetch_client import RangeToRead


def cut(
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
