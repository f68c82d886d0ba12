"""The relay's part for delays: a consumer group decides which partitions are ours, and each of them gets a worker.

The group's consumer reads nothing: it only tells who owns what. When a partition is taken away, its worker is stopped
before the next owner is told; if we were too slow or cut off, the transactional id sees to it that we are fenced.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from moldau.seams import SystemClock
from moldau.toolkit.delays.partition import REST_S, At, DelayCounts, PartitionWorker
from moldau.toolkit.delays.topics import DELAYS, PARTITIONS, DelayTopics, make_topics
from moldau.toolkit.errors import SendFailed, SetupError

log = logging.getLogger("moldau.toolkit")

_POLL_S = 0.1
_CALL_S = 10.0
_STOP_S = 20.0
_CLEAN_S = 30.0
_SOON_S = 0.003


class DelayRelay:
    """Sends delayed messages when they are due; several of them share the work."""

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        config: Mapping[str, Any] | None = None,
        topic: str = DELAYS,
        partitions: int = PARTITIONS,
        wall_ms: Callable[[], int] | None = None,
        at: At = lambda _: None,
        rest_s: float = REST_S,
    ) -> None:
        self.topics = DelayTopics(topic)
        self.name = "delays" if topic == DELAYS else f"delays {topic}"
        self._config = {"bootstrap.servers": bootstrap_servers, "client.id": "moldau-relay", **(config or {})}
        self._partitions = partitions
        self._wall_ms = wall_ms or SystemClock().wall_ms
        self._at = at
        self._rest_s = rest_s
        self._workers: dict[int, PartitionWorker] = {}
        self._ended = DelayCounts()
        self._lock = threading.Lock()
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="moldau-delays", daemon=True)
        self._asker: Consumer
        self._trouble: str | None = "not connected yet"
        self._has_changed = False

    def start(self) -> None:
        """Begin, on a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """Give everything back; blocks until that is done."""
        self._is_stopping.set()
        if self._thread.ident is not None:
            self._thread.join(_STOP_S + _STOP_S)

    # Looking.

    @property
    def owned(self) -> list[int]:
        """The partitions whose delays this one watches over now."""
        with self._lock:
            return sorted(self._workers)

    @property
    def is_ready(self) -> bool:
        """Whether every partition we own has been taken over. One that owns none is ready, too."""
        with self._lock:
            return self._trouble is None and all(worker.is_ready for worker in self._workers.values())

    def next_due_ms(self) -> int | None:
        """When the next of them is due, in milliseconds since 1970; None: nothing waits."""
        with self._lock:
            dues = [worker.next_due_ms for worker in self._workers.values()]
        return min((due for due in dues if due is not None), default=None)

    def known_until_ms(self) -> int:
        """What was due until then has been delivered, of the partitions we own."""
        with self._lock:
            return min((worker.known_until_ms for worker in self._workers.values()), default=0)

    def until_idle(self, seconds: float) -> bool:
        """Wait until everything asked for by now is known and everything due by now is sent. False: not in time."""
        deadline = time.monotonic() + seconds
        if not _wait_until(lambda: self.is_ready and bool(self.owned), deadline):
            return False
        with self._lock:
            asked = [(worker, worker.ask()) for worker in self._workers.values()]
        return _wait_until(lambda: all(worker.has_answered(question) for worker, question in asked), deadline)

    def counts(self) -> DelayCounts:
        """What it has done since its start."""
        found = DelayCounts()
        with self._lock:
            found.add(self._ended)
            for worker in self._workers.values():
                found.add(worker.counts)
        return found

    def health(self) -> dict[str, Any]:
        """How it does; plain data."""
        counts = self.counts()
        with self._lock:
            workers = list(self._workers.values())
            troubles = [self._trouble, *(f"partition {w.index}: {w.trouble}" for w in workers if w.trouble)]
        return {
            "ok": self.is_ready,
            "trouble": "; ".join(each for each in troubles if each) or None,
            "has_ended": self._thread.ident is not None and not self._thread.is_alive(),
            "partitions": sorted(worker.index for worker in workers),
            "pending": sum(worker.pending for worker in workers),
            "in_memory": sum(worker.near for worker in workers),
            "scheduled": counts.scheduled,
            "cancelled": counts.cancelled,
            "delivered": counts.delivered,
            "retries": counts.retries,
            "dead": counts.dead,
            "refused": counts.refused,
            "late_ms_max": counts.late_ms_max,
        }

    # The thread.

    def _run(self) -> None:
        while not self._is_stopping.is_set():
            try:
                make_topics(self._config, self.topics, self._partitions)
                self._serve()
            except (SendFailed, KafkaException, SetupError) as error:
                self._trouble = str(error)
                log.warning("delays: %s; trying on", error)
                self._is_stopping.wait(1.0)
            except Exception as error:  # a mistake of ours: said, and tried again
                self._trouble = repr(error)
                log.exception("delays")
                self._is_stopping.wait(5.0)
            finally:
                self._end_workers(self.owned)

    def _watermarks(self, index: int) -> tuple[int, int]:
        found: tuple[int, int] = self._asker.get_watermark_offsets(
            TopicPartition(self.topics.commands, index), timeout=_CALL_S
        )
        return found

    def _serve(self) -> None:
        self._asker = Consumer(
            {"log_level": 0, **self._config, "group.id": self.topics.group, "isolation.level": "read_uncommitted"}
        )
        consumer = Consumer(
            {
                "log_level": 2,
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": 6_000,
                "heartbeat.interval.ms": 1_000,
                "queued.max.messages.kbytes": 64,
                **self._config,
                "group.id": self.topics.group,
                "enable.auto.commit": False,
                "auto.offset.reset": "latest",
            }
        )
        consumer.subscribe(
            [self.topics.commands], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
        )
        self._trouble = None
        rests = 0.0
        try:
            while not self._is_stopping.is_set():
                consumer.poll(_POLL_S)
                if self._has_changed:
                    self._has_changed = False
                    consumer.pause([TopicPartition(self.topics.commands, index) for index in self.owned])
                rests += _POLL_S
                if rests >= _CLEAN_S:
                    rests = 0.0
                    self._delete_commands()
        finally:
            self._end_workers(self.owned)  # before the group knows that we go
            consumer.close()
            self._asker.close()

    # Called while polling; they must not call the consumer.

    def _assigned(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            worker = PartitionWorker(
                self._config, self.topics, each.partition, self._wall_ms, self._watermarks, self._at, self._rest_s
            )
            with self._lock:
                self._workers[each.partition] = worker
            worker.start()
        self._has_changed = True
        log.info("delays: partitions %s are ours now", sorted(each.partition for each in partitions))

    def _revoked(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._end_workers([each.partition for each in partitions])

    def _end_workers(self, indexes: list[int]) -> None:
        with self._lock:
            workers = [self._workers.pop(index) for index in indexes if index in self._workers]
        for worker in workers:
            worker.ask_to_stop()
        for worker in workers:
            if not worker.join(_STOP_S):
                log.error("delays: partition %d does not stop; the next owner fences it", worker.index)
            with self._lock:
                self._ended.add(worker.counts)

    def _delete_commands(self) -> None:
        """What was carried over is not needed any more. Trouble with it is nobody's: the next time will do."""
        with self._lock:
            done = {worker.index: worker.carried_over for worker in self._workers.values() if worker.is_ready}
        wanted = [TopicPartition(self.topics.commands, index, offset) for index, offset in done.items() if offset > 0]
        if wanted:
            admin = AdminClient({"log_level": 0, **self._config})  # kept: without it no answer comes
            with contextlib.suppress(KafkaException, TimeoutError):
                for future in admin.delete_records(wanted).values():
                    future.result(_STOP_S)


def _wait_until(condition: Callable[[], bool], deadline: float) -> bool:
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_SOON_S)  # the workers' threads call nobody; it is a matter of moments
    return True
