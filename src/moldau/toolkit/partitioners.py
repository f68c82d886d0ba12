"""Which partition a record goes to: as Java's client decides, in turn, at random, or as you say.

Hashing by key (`murmur2`) places records where Java's producer does. Records without a key stick to one partition for
a short while (`sticky.partitioning.linger.ms`) and move on, which makes larger batches.
"""

from __future__ import annotations

import itertools
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from moldau.records.murmur2 import murmur2
from moldau.toolkit.errors import SetupError

Partitioner = Callable[[str, bytes | None, int], int | None]
"""From topic, key and number of partitions to a partition; None leaves it to the client."""

PARTITION_BY_CLIENT = -1
NAMES = ("murmur2", "sticky", "round-robin", "random")


def client_setting(partitioner: str | Partitioner) -> dict[str, Any]:
    """What the client itself is told."""
    if partitioner == "random":
        return {"partitioner": "random", "sticky.partitioning.linger.ms": 0}
    if isinstance(partitioner, str) and partitioner not in NAMES:
        raise SetupError(f"partitioner {partitioner!r}: one of {', '.join(NAMES)}, or a function")
    return {"partitioner": "murmur2_random"}


def make_partitioner(partitioner: str | Partitioner) -> Partitioner | None:
    """A function, where the client has none of its own."""
    if callable(partitioner):
        return partitioner
    if partitioner == "round-robin":
        return round_robin()
    return None


def round_robin() -> Partitioner:
    """Each topic's partitions in turn, whatever the key."""
    turns: dict[str, Iterator[int]] = defaultdict(lambda: itertools.count(secrets.randbelow(1 << 16)))
    return lambda topic, _key, count: next(turns[topic]) % count


def by_key(_topic: str, key: bytes | None, count: int) -> int | None:
    """Where Java's producer puts this key."""
    return None if key is None else (murmur2(key) & 0x7FFFFFFF) % count
