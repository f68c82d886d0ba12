"""Appends of coordinators that fail: too few replicas, a batch that is too large, a disk that refuses. Nothing was
written then, and only the request it was for may notice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

from moldau.broker.replicas.manager import PartitionUnavailable
from moldau.broker.replicas.partition import Partition
from moldau.log.errors import RecordTooLarge, StorageError
from moldau.log.origin import AppendOrigin
from moldau.seams import Random
from moldau.wire import ErrorCode

_INTERNAL = ("__consumer_offsets", "__transaction_state")
_CAUSES: tuple[Callable[[], Exception], ...] = (
    lambda: PartitionUnavailable(ErrorCode.NOT_ENOUGH_REPLICAS),
    lambda: RecordTooLarge("more than max.message.bytes"),
    lambda: StorageError("the disk refused"),
)


class AppendFailures:
    """Of the nodes named in `hosts`, one append of a coordinator in two fails while they are."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.hosts: set[str] = set()
        self.injected = 0

    @contextlib.contextmanager
    def in_place(self, current_host: Callable[[], str]) -> Iterator[None]:
        append = Partition.append

        def failing(
            partition: Partition, batches: Any, origin: Any = AppendOrigin.CLIENT, *more: Any, **named: Any
        ) -> Any:
            is_coordinators = origin is AppendOrigin.COORDINATOR and partition.topic in _INTERNAL
            if self.hosts and is_coordinators and current_host() in self.hosts and self._random.below(2):
                self.injected += 1
                raise _CAUSES[self._random.below(len(_CAUSES))]()
            return append(partition, batches, origin, *more, **named)

        with patch.object(Partition, "append", failing):
            yield
