"""What followers write into their logs, as an operator reads it: whose replica is damaged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

from moldau.broker.replicas import fetchers
from moldau.broker.replicas.partition import Partition as Replica
from moldau.log.errors import StorageError
from tests.simulation.history import Partition


class Complaints:
    """In the place of the fetchers' logger."""

    def __init__(self, on_damage: Callable[[Partition, int], None]) -> None:
        self._on_damage = on_damage
        self._log = logging.getLogger(fetchers.__name__)
        self.debug = self.info = self._say_nothing
        self.exception = self._log.exception

    @contextmanager
    def in_place(self) -> Iterator[None]:
        with patch.object(fetchers, "_log", self):
            yield

    def error(self, message: str, replica: Replica, leader_id: int, error: Exception | str) -> None:
        if not isinstance(error, StorageError):  # that is the follower's own disk
            self._on_damage((replica.topic, replica.index), leader_id)

    def _say_nothing(self, message: str, *given: object) -> None:
        """Nobody reads it."""
