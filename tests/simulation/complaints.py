"""What nodes write into their logs, as an operator reads it: whose replica is damaged, and which task failed."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from moldau.broker import supervision
from moldau.broker.replicas import fetchers
from moldau.log.errors import StorageError
from tests.simulation.history import Partition

_CANNOT_REPLICATE = "cannot replicate %r from broker %d: %s"


class Complaints:
    """In the place of the fetchers' logger."""

    def __init__(self, on_damage: Callable[[Partition, int], None], on_failure: Callable[[str], None]) -> None:
        self._on_damage = on_damage
        self._on_failure = on_failure

    @contextmanager
    def in_place(self) -> Iterator[None]:
        with patch.object(fetchers, "_log", self):
            yield

    def error(self, message: str, *given: Any) -> None:
        if message != _CANNOT_REPLICATE:
            return
        replica, leader_id, error = given
        if not isinstance(error, StorageError):  # that is the follower's own disk
            self._on_damage((replica.topic, replica.index), leader_id)

    def exception(self, message: str, *given: object) -> None:
        _tell_unless_a_disk_failed(self._on_failure, message % given, sys.exception())

    def debug(self, message: str, *given: object) -> None:
        """Nobody reads it."""

    info = warning = debug


class FailedTasks:
    """In the place of the logger of `moldau.broker.supervision`. A task that fails begins anew, or ends, and the node
    lives on: nobody outside would see the mistake."""

    def __init__(self, on_failure: Callable[[str], None]) -> None:
        self._on_failure = on_failure

    @contextmanager
    def in_place(self) -> Iterator[None]:
        with patch.object(supervision, "_log", self):
            yield

    def exception(self, message: str, *given: object) -> None:
        _tell_unless_a_disk_failed(self._on_failure, message % given, sys.exception())

    def error(self, message: str, *given: object, exc_info: BaseException) -> None:
        _tell_unless_a_disk_failed(self._on_failure, message % given, exc_info)


def _tell_unless_a_disk_failed(tell: Callable[[str], None], what: str, error: BaseException | None) -> None:
    if not isinstance(error, OSError | StorageError):  # disks are made to fail
        tell(f"{what}: {''.join(traceback.format_exception(error)[-3:]).strip()}")
