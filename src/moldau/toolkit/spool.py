"""A local spool: what cannot be sent while the cluster is out of reach waits on disk, and is sent in order later.

`Producer(…, spool=Spool("orders.spool"))`. The first record that the client gives up turns the spool on: from then on
every record goes there, so that order is kept, until all of it has been sent. A restart goes on where it was left.

Invariants: a record is in the file before its send is answered (`Receipt.is_spooled`). Records leave in the order of
their sends, a batch acknowledged before the next; within a batch the idempotent client, which here never gives up a
record, keeps the order of each partition. When the room is used up, `SpoolFull` is raised at the call: nothing is
dropped. A crash between acknowledgement and deletion sends a batch twice, in its order, never zero times.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from moldau.toolkit.errors import SetupError, SpoolFull
from moldau.toolkit.sending import Delivery, Producer, Receipt, Record

log = logging.getLogger("moldau.toolkit")

Alert = Callable[[str, dict[str, Any]], None]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS spool (
    number INTEGER PRIMARY KEY, topic TEXT NOT NULL, "partition" INTEGER, timestamp_ms INTEGER,
    key BLOB, value BLOB, headers TEXT NOT NULL, size INTEGER NOT NULL, refused TEXT
)"""
_OVERHEAD = 64
_BATCH_RECORDS = 500
_BATCH_BYTES = 4 * 1024 * 1024


class Spool:
    """One file (SQLite) for one producer."""

    def __init__(
        self, path: str | Path, *, max_bytes: int = 256 * 1024 * 1024, alert: Alert | None = None, pause_s: float = 1.0
    ) -> None:
        """`alert` is called with "on", "off", "full" or "refused" and details; `pause_s` is between two attempts."""
        self.path = Path(path)
        self._max_bytes = max_bytes
        self._alert = alert
        self._pause_s = pause_s
        self._lock = threading.RLock()
        self._closing = threading.Event()
        self._numbers: dict[int, int] = {}  # by identity of a delivery that is on its way directly
        self._last = 0
        self._producer: Producer
        self._database: sqlite3.Connection
        self._thread: threading.Thread | None = None
        self.is_on = False
        self.count = 0
        self.bytes = 0

    def open(self, producer: Producer) -> None:
        """Called by the producer. What an earlier run left is sent first."""
        self._producer = producer
        try:
            self._database = sqlite3.connect(self.path, check_same_thread=False, isolation_level=None)
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=FULL")
            self._database.execute(_SCHEMA)
            row = self._database.execute(
                "SELECT COUNT(*) FILTER (WHERE refused IS NULL), COALESCE(SUM(size), 0), COALESCE(MAX(number), 0) "
                "FROM spool"
            ).fetchone()
        except sqlite3.Error as error:
            raise SetupError(f"the spool {self.path} cannot be opened: {error}") from error
        self.count, self.bytes, self._last = row
        self._closing.clear()
        if self.count:
            self._turn_on()

    def takes(self, delivery: Delivery) -> bool:
        """Whether the record waits here; otherwise it is sent directly, and may come back through `rescues`."""
        with self._lock:
            self._last = number = max(self._last + 1, time.time_ns())
            if self.is_on:
                self._store(number, delivery.record)
                self._finish(delivery)
                return True
            self._numbers[id(delivery)] = number
            return False

    def rescues(self, delivery: Delivery) -> bool:
        """A direct send failed: keep it, in its place. False if there is no room, which the sender is told."""
        with self._lock:
            number = self._numbers.pop(id(delivery), None)
            if number is None:
                return False
            try:
                self._store(number, delivery.record)
            except SpoolFull:
                return False
            self._turn_on()
            self._finish(delivery)
            return True

    def ended(self, delivery: Delivery) -> None:
        """A direct send ended otherwise."""
        with self._lock:
            self._numbers.pop(id(delivery), None)

    def close(self) -> None:
        """What is left stays in the file."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
        with contextlib.suppress(AttributeError):
            self._database.close()

    def refused(self) -> list[tuple[str, str]]:
        """Records the cluster will not take (topic, reason); they stay in the file and are not tried again."""
        with self._lock:
            return self._database.execute("SELECT topic, refused FROM spool WHERE refused IS NOT NULL").fetchall()

    def _store(self, number: int, record: Record) -> None:
        size = len(record.value or b"") + len(record.key or b"") + _OVERHEAD
        size += sum(len(name) + len(value or b"") for name, value in record.headers)
        if self.bytes + size > self._max_bytes:
            self._tell("full", {"bytes": self.bytes, "records": self.count})
            raise SpoolFull(
                f"the cluster is out of reach and {self.path} holds {self.bytes} of {self._max_bytes} bytes: stop "
                "sending until it is back, or give the spool more room"
            )
        headers = json.dumps([(name, value.hex() if value is not None else None) for name, value in record.headers])
        row = (number, record.topic, record.partition, record.timestamp_ms, record.key, record.value, headers, size)
        try:
            self._database.execute("INSERT INTO spool VALUES (?, ?, ?, ?, ?, ?, ?, ?, NULL)", row)
        except sqlite3.Error as error:
            raise SpoolFull(
                f"{self.path} cannot be written ({error}): free its disk; the record was not sent"
            ) from error
        self.count += 1
        self.bytes += size

    def _finish(self, delivery: Delivery) -> None:

        self._producer.finish(delivery, Receipt(delivery.record.topic, -1, -1, -1, is_spooled=True), None)

    def _turn_on(self) -> None:
        if not self.is_on:
            self.is_on = True
            self._tell("on", {"records": self.count, "path": str(self.path)})
            self._thread = threading.Thread(target=self._replay, name="moldau-spool", daemon=True)
            self._thread.start()

    def _replay(self) -> None:
        try:
            while not self._closing.is_set():
                with self._lock:
                    is_waiting = bool(self._numbers)  # direct sends that may still come back, in front of others
                    rows = [] if is_waiting else self._first_rows()
                    if not rows and not is_waiting:
                        self.is_on = False
                        self._tell("off", {})
                        return
                if not rows or not self._send(rows):
                    self._closing.wait(self._pause_s)
        except sqlite3.Error as error:
            log.exception("the spool cannot be read")
            self._tell("broken", {"error": str(error)})

    def _first_rows(self) -> list[tuple[Any, ...]]:
        found = self._database.execute(
            'SELECT number, topic, "partition", timestamp_ms, key, value, headers, size FROM spool '
            "WHERE refused IS NULL ORDER BY number LIMIT ?",
            (_BATCH_RECORDS,),
        )
        rows: list[tuple[Any, ...]] = []
        size = 0
        for row in found:
            rows.append(row)
            size += row[-1]
            if size >= _BATCH_BYTES:
                break
        return rows

    def _send(self, rows: list[tuple[Any, ...]]) -> bool:
        """Send them in their order; False if some could not be sent now."""
        outcomes = self._producer.send_past_spool([_record(row) for row in rows], self._closing)
        is_done = len(outcomes) == len(rows)
        with self._lock:
            self._database.execute("BEGIN")
            for row, failure in zip(rows, outcomes, strict=False):
                number, topic, size = row[0], row[1], row[-1]
                if failure is None:
                    self._database.execute("DELETE FROM spool WHERE number = ?", (number,))
                    self.count -= 1
                    self.bytes -= size
                elif failure.is_retriable:
                    is_done = False
                else:
                    self._database.execute("UPDATE spool SET refused = ? WHERE number = ?", (str(failure), number))
                    self.count -= 1
                    self._tell("refused", {"topic": topic, "error": str(failure)})
            self._database.execute("COMMIT")
        return is_done

    def _tell(self, what: str, details: dict[str, Any]) -> None:
        log.warning("spool %s: %s %s", self.path, what, details)
        if self._alert is not None:
            try:
                self._alert(what, details)
            except Exception:  # the user's code
                log.exception("the spool's alert failed")


def _record(row: tuple[Any, ...]) -> Record:

    _, topic, partition, timestamp_ms, key, value, headers, _ = row
    pairs = [(name, bytes.fromhex(data) if data is not None else None) for name, data in json.loads(headers)]
    return Record(topic, value, key, pairs, partition, timestamp_ms)
