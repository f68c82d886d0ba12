"""The live tail: a thread reads a topic from its end, and the page gets what it can take, at a pace people can read.

Invariants: what waits for a slow browser is bounded; what does not fit is counted and said. When the browser is gone,
the thread ends within its next look. So many tails run at once, of one viewer and of all, and no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Any

from confluent_kafka import OFFSET_END, KafkaError, KafkaException, TopicPartition

from moldau.console.messages import reading
from moldau.console.messages.filters import Filter
from moldau.console.messages.records import Lens, Row, rows_through

log = logging.getLogger("moldau.console")

TAILS_MAX = 20
TAILS_OF_ONE_MAX = 4  # so that nobody has all of them
_WAITING_MAX = 200
_PACE_S = 0.25
_ROWS_PER_PUSH = 60


class TooManyTails(Exception):
    """Everybody may look, but not all at once."""


class Tails:
    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self._running: set[_Tail] = set()

    def __len__(self) -> int:
        return len(self._running)

    async def follow(
        self, topic: str, partitions: list[int], lens: Lens, wanted: Filter | None, viewer: str
    ) -> AsyncIterator[tuple[list[Row], int, str]]:
        """Rows, how many were left out since the last ones, and trouble if there is some. Also when nothing came."""
        if len(self._running) >= TAILS_MAX:
            raise TooManyTails(f"{TAILS_MAX} live tails are running, which is all this console allows at once.")
        if sum(each.viewer == viewer for each in self._running) >= TAILS_OF_ONE_MAX:
            raise TooManyTails(f"You have {TAILS_OF_ONE_MAX} live tails open, which is all one person may have.")
        tail = _Tail(self._config, topic, partitions, lens, wanted, viewer)
        self._running.add(tail)
        try:
            tail.start()
            while True:
                await asyncio.sleep(_PACE_S)
                yield tail.take()
        finally:
            tail.is_over = True
            self._running.discard(tail)

    def stop(self) -> None:
        for tail in self._running:
            tail.is_over = True


class _Tail(threading.Thread):
    def __init__(
        self,
        config: Mapping[str, Any],
        topic: str,
        partitions: list[int],
        lens: Lens,
        wanted: Filter | None,
        viewer: str,
    ) -> None:
        super().__init__(name="moldau-console-tail", daemon=True)
        self.is_over = False
        self.viewer = viewer
        self._config = config
        self._topic = topic
        self._partitions = partitions
        self._accept = rows_through(lens, wanted)
        self._guard = threading.Lock()
        self._rows: deque[Row] = deque()
        self._skipped = 0
        self._trouble = ""

    def take(self) -> tuple[list[Row], int, str]:
        with self._guard:
            rows = [self._rows.popleft() for _ in range(min(_ROWS_PER_PUSH, len(self._rows)))]
            skipped, self._skipped = self._skipped, 0
            return rows, skipped, self._trouble

    def run(self) -> None:
        reader = reading.consumer(self._config)
        try:
            reader.assign([TopicPartition(self._topic, index, OFFSET_END) for index in self._partitions])
            while not self.is_over:
                for message in reader.consume(500, 0) or reader.consume(1, 0.2):
                    self._take_in(message)
        except KafkaException as error:
            with self._guard:
                self._trouble = error.args[0].str()
        except Exception as error:  # of a decoder, say: whoever looks is told, instead of waiting for nothing
            log.exception("the tail of %s failed", self._topic)
            with self._guard:
                self._trouble = f"The tail failed: {type(error).__name__}. The console's log says more."
        finally:
            with contextlib.suppress(RuntimeError):
                reader.close()

    def _take_in(self, message: Any) -> None:
        error = message.error()
        if error is not None:
            if error.code() != KafkaError._PARTITION_EOF:
                with self._guard:
                    self._trouble = error.str()
            return
        row = self._accept(message)
        with self._guard:
            self._trouble = ""
            if row is None:
                return
            self._rows.append(row)
            if len(self._rows) > _WAITING_MAX:
                self._rows.popleft()
                self._skipped += 1
