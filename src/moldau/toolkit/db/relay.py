"""The outbox's relay: claims rows, sends them, notes what became of them. Several may run; each row is one's work.

    relay = OutboxRelay(outbox, bootstrap_servers="127.0.0.1:9092")
    await relay.start()
    …
    await relay.stop()

Databases and brokers may come and go: it waits for both, says so, and reports it in `health()`.

Invariants: rows of a key are handed to the client in their order, and no send gives up by itself (a message that timed
out while the next one did not would be overtaken). If one is not acknowledged, it and what follows of its key are sent
again. A row is written to only after the cluster's acknowledgement.

Steps, for tests that kill the process after each: claimed, sent, acknowledged, noted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from sqlalchemy import Connection

from moldau.toolkit.app import App
from moldau.toolkit.db.claims import Claimed, Claims, Outcome
from moldau.toolkit.db.database import WAIT_S_FIRST, WAIT_S_MAX, brief
from moldau.toolkit.db.outbox import Outbox, check_route, record_of
from moldau.toolkit.db.transactions import Step, nobody_watches
from moldau.toolkit.durations import Duration, milliseconds
from moldau.toolkit.errors import SendFailed, SetupError, ToolkitError
from moldau.toolkit.policy import Batch
from moldau.toolkit.sending import Delivery, Producer

log = logging.getLogger("moldau.toolkit")
T = TypeVar("T")

STEPS = ("claimed", "sent", "acknowledged", "noted")
RECEIPTS_TOPIC = "outbox-receipts"
_LANES_AT_ONCE = 16  # of 64, so that several relays share the work
_HOUSEKEEPING_S = 5.0


@dataclass(slots=True)
class RelayCounts:
    """Since the relay started."""

    sent: int = 0
    confirmed: int = 0
    again: int = 0
    refused: int = 0
    deleted: int = 0


class OutboxRelay:
    """See the module."""

    def __init__(
        self,
        outbox: Outbox,
        *,
        bootstrap_servers: str = "127.0.0.1:9092",
        config: Mapping[str, Any] | None = None,
        route: str = "{aggregatetype}",
        receipts: bool | str = False,
        resend_after: Duration = "5m",
        keep: Duration = "1d",  # of confirmed rows; with 0 they are deleted at once, which is quicker
        poll: Duration = "200ms",
        batch: int = 2_000,
        lease: Duration = "30s",
        pause: Duration = "5s",
        stop_within: Duration = "10s",
        on_step: Step = nobody_watches,
    ) -> None:
        """`route`: the topic by aggregate type, `outbox.event.{aggregatetype}` as Debezium has it. `receipts`: a row
        is confirmed by its consumer (`Receipts`) through a topic, and sent again if no receipt came in time. `pause`:
        so long a lane rests whose messages the cluster did not take."""
        check_route(route)
        if batch < 1:
            raise SetupError(f"batch={batch}: give 1 or more")
        self.id = str(uuid.uuid4())
        self.counts = RelayCounts()
        self._outbox = outbox
        self._database = outbox.database
        self._bootstrap = bootstrap_servers
        self._config = dict(config or {})
        self._route = route
        self._receipts_topic = RECEIPTS_TOPIC if receipts is True else receipts or None
        self._resend_ms, self._keep_ms = milliseconds(resend_after), milliseconds(keep)
        self._poll_s = milliseconds(poll) / 1_000
        self._lease_s = milliseconds(lease) / 1_000
        self._stop_s = milliseconds(stop_within) / 1_000
        self._step = on_step
        self._claims = Claims(
            outbox,
            self.id,
            batch=batch,
            lanes=_LANES_AT_ONCE,
            lease_ms=milliseconds(lease),
            pause_ms=milliseconds(pause),
            with_receipts=bool(receipts),
            keeps_nothing=not milliseconds(keep),
        )
        self._producer: Producer | None = None
        self._receipts_app: App | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()
        self._nudged = asyncio.Event()
        self._held: Sequence[int] = ()
        self._state = "stopped"
        self._error: str | None = None
        self._seen: dict[str, int | None] = {"pending": None, "oldest_ms": None, "failed": None}

    # For who supervises it.

    async def start(self) -> None:
        """Begin; returns at once, whether or not database and cluster are there."""
        if self._tasks:
            raise SetupError("the relay runs already")
        self._stopping = asyncio.Event()
        self._state = "starting"
        self._producer = self._make_producer()
        self._tasks = [asyncio.create_task(self._run(), name="outbox relay")]

    async def stop(self) -> None:
        """Wait for what is on its way, note its outcome, give the lanes back."""
        self._stopping.set()
        self._nudged.set()
        if self._tasks:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2 * self._stop_s):
                    await asyncio.gather(*self._tasks, return_exceptions=True)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        if self._receipts_app is not None:
            await self._receipts_app.stop()
            self._receipts_app = None
        if self._producer is not None:
            await asyncio.to_thread(self._producer.close, 0.1)
            self._producer = None
        await self._database.close()
        self._state = "stopped"

    def health(self) -> dict[str, Any]:
        """Plain data; `ok` is whether it does its work."""
        return {
            "name": f"outbox {self._outbox.table.name}",
            "ok": self._state in ("idle", "sending") and self._error is None,
            "state": self._state,
            "error": self._error,
            **asdict(self.counts),
            **self._seen,
        }

    def nudge(self) -> None:
        """There is something to send: do not wait for the next look."""
        self._nudged.set()

    async def retry(self, ids: Sequence[str] | None = None) -> int:
        """Send again what the cluster refused (all of it, or these); returns how many rows."""
        count = await self._database.run(lambda connection: self._claims.retry(connection, ids))
        self.nudge()
        return count

    # The work.

    def _make_producer(self) -> Producer:
        settings = {"message.timeout.ms": 0, "topic.metadata.propagation.max.ms": 3_000, **self._config}
        return Producer(self._bootstrap, config={"client.id": "moldau-outbox", **settings})

    async def _run(self) -> None:
        await self._until_done(self._prepare)
        beside = [asyncio.create_task(self._keep_leases()), asyncio.create_task(self._keep_house())]
        if self._receipts_topic is not None:
            beside.append(asyncio.create_task(self._listen(self._receipts_topic)))
        try:
            await self._relay()
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)

    async def _prepare(self) -> None:
        await self._database.create(self._outbox.metadata, patiently=False)
        await self._database.run(self._claims.prepare)

    async def _relay(self) -> None:
        outcome = Outcome()
        while not self._stopping.is_set():
            claimed = await self._until_done(lambda o=outcome: self._turn(o))  # type: ignore[misc]
            if claimed is None:
                return
            self._held = claimed.lanes
            outcome = Outcome(lanes=claimed.lanes)
            if not claimed.rows:
                self._state = "idle"
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._nudged.wait(), self._poll_s)
                self._nudged.clear()
                continue
            self._state = "sending"
            self._step("claimed")
            outcome = await self._send(claimed)
            self._step("acknowledged")
        with contextlib.suppress(Exception):  # what is not noted is sent again when the lease is over
            await self._database.run(lambda connection: self._claims.note_outcome(connection, outcome))
            self._count(outcome)
        self._held = ()

    async def _turn(self, outcome: Outcome) -> Claimed:
        self._held = ()  # they are given back now
        claimed = await self._database.run(lambda connection: self._claims.turn(connection, outcome))
        if outcome.lanes:
            self._step("noted")
        self._count(outcome)
        return claimed

    def _count(self, outcome: Outcome) -> None:
        counts = self.counts
        counts.sent += len(outcome.acknowledged)
        counts.confirmed += 0 if self._receipts_topic is not None else len(outcome.acknowledged)
        counts.again += len(outcome.again)
        counts.refused += len(outcome.refused)

    async def _until_done(self, work: Callable[[], Any]) -> Any:
        """Until it works, whatever the trouble is: this process is there to survive it. None: the relay stops."""
        wait_s = WAIT_S_FIRST
        while not self._stopping.is_set():
            try:
                found = await work()
            except Exception as error:  # said, shown in `health`, and tried again
                self._state, self._error = "waiting for the database", brief(error)
                log.warning("outbox %s: %s; trying on", self._outbox.table.name, self._error)
            else:
                self._error = None
                return found
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), wait_s)
            wait_s = min(2 * wait_s, WAIT_S_MAX)
        return None

    # Sending.

    async def _send(self, claimed: Claimed) -> Outcome:
        deliveries = await asyncio.to_thread(self._hand_over, claimed.rows)
        self._step("sent")
        done = _AllDone(asyncio.get_running_loop(), [each for each in deliveries if isinstance(each, Delivery)])
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            ended = asyncio.create_task(done.event.wait())
            await asyncio.wait((ended, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                await asyncio.wait((ended,), timeout=self._stop_s)
                ended.cancel()
        finally:
            stopping.cancel()
        return await self._judged(claimed, deliveries)

    def _hand_over(self, rows: Sequence[Any]) -> list[Delivery | SendFailed]:
        """In order; after one of a key that was not taken, the others of the key are not tried."""
        assert self._producer is not None
        found: list[Delivery | SendFailed] = []
        stuck: dict[tuple[str, bytes | None], SendFailed] = {}
        for row in rows:
            try:
                record = record_of(row, self._route)
                lane = (record.topic, record.key)
                if record.key is not None and lane in stuck:
                    found.append(stuck[lane])
                    continue
                found.append(self._producer.send_record(record))
            except SendFailed as error:
                if not error.is_too_large:
                    stuck[lane] = error
                found.append(error)
            except (ValueError, TypeError) as error:  # headers that somebody else wrote
                found.append(SendFailed(f"the row makes no message: {error}", is_retriable=False, is_too_large=True))
        return found

    async def _judged(self, claimed: Claimed, deliveries: Sequence[Delivery | SendFailed]) -> Outcome:
        outcome = Outcome(lanes=claimed.lanes)
        broken: set[tuple[Any, ...]] = set()
        trouble: SendFailed | None = None
        for row, delivery in zip(claimed.rows, deliveries, strict=True):
            key = (row.aggregatetype, row.message_key, row.aggregateid)
            has_key = row.message_key is not None or row.aggregateid is not None
            is_done = isinstance(delivery, Delivery) and delivery.is_done
            error = delivery.error if isinstance(delivery, Delivery) else delivery
            if error is not None and error.is_too_large:
                outcome.refused.append((row.seq, str(error)))
                log.error("outbox %s: row %s is set aside: %s", self._outbox.table.name, row.id, error)
            elif error is None and is_done and not (has_key and key in broken):
                outcome.acknowledged.append(row.seq)
            else:
                outcome.again.append(row.seq)
                broken.add(key)
                if error is not None:
                    trouble = error
                    outcome.paused.add(row.lane)
        if trouble is not None:
            self._error = str(trouble)
            log.warning("outbox %s: %d rows are sent again: %s", self._outbox.table.name, len(outcome.again), trouble)
            if not trouble.is_retriable and not self._stopping.is_set():
                # Such an error may be the client's end; a new one begins anew.
                old, self._producer = self._producer, self._make_producer()
                assert old is not None
                await asyncio.to_thread(old.close, 0.1)
        return outcome

    # Beside it.

    async def _keep_leases(self) -> None:
        while True:
            await asyncio.sleep(self._lease_s / 3)
            held = self._held
            if not held:
                continue
            try:
                is_ours = await self._database.run(lambda connection: self._claims.extend(connection, held))  # noqa: B023  awaited here
            except Exception as error:  # the work itself says what is wrong
                log.info("outbox %s: leases were not renewed: %s", self._outbox.table.name, brief(error))
                continue
            if not is_ours and held is self._held:
                log.warning("outbox %s: a lease ran out; its rows may be sent twice", self._outbox.table.name)

    async def _keep_house(self) -> None:
        while True:
            try:
                self._seen = await self._database.run(self._claims.look)
                if self._receipts_topic is not None:
                    self.counts.again += await self._in_steps(self._claims.resend_some, self._resend_ms)
                self.counts.deleted += await self._in_steps(self._claims.clean_some, self._keep_ms)
            except Exception as error:  # the next time may be better
                log.info("outbox %s: not cleaned: %s", self._outbox.table.name, brief(error))
            await asyncio.sleep(min(_HOUSEKEEPING_S, max(self._resend_ms / 2_000, 0.05)))

    async def _in_steps(self, work: Callable[[Connection, int], int], age_ms: int) -> int:
        """Small transactions, until one finds nothing."""
        total = 0
        while count := await self._database.run(lambda connection: work(connection, age_ms)):
            total += count
        return total

    async def _listen(self, topic: str) -> None:
        """Take in what consumers say they have."""
        app = App(
            f"{self._outbox.table.name}-receipts",
            bootstrap_servers=self._bootstrap,
            auto_offset_reset="earliest",
            config=self._config,
        )

        @app.handler(topic, batch=Batch(size=500, within="50ms"), order="none")
        async def confirm(ids: list[bytes]) -> None:
            known = [each.decode() for each in ids if each and each.isascii()]

            def work(connection: Connection) -> int:
                return self._claims.confirm(connection, known)

            self.counts.confirmed += await self._database.run_patiently(work, "receipts")

        while True:
            try:
                await app.start()
            except ToolkitError as error:
                log.warning("outbox %s: no receipts are read: %s", self._outbox.table.name, error)
                await asyncio.sleep(WAIT_S_MAX)
            else:
                self._receipts_app = app
                return


class Receipts:
    """For the consumer's side: `around=[Receipts(app)]` tells the outbox's relay that a message was handled."""

    def __init__(self, app: App, topic: str = RECEIPTS_TOPIC) -> None:
        self._app = app
        self._topic = topic

    async def __call__(self, message: Any, call: Callable[[], Any]) -> Any:
        result = await call()
        if (found := message.header("id")) is not None:
            await self._app.send(self._topic, found, key=found)
        return result


class _AllDone:
    """Tells the loop, once, when the last delivery has ended."""

    def __init__(self, loop: asyncio.AbstractEventLoop, deliveries: Sequence[Delivery]) -> None:
        self.event = asyncio.Event()
        self._loop = loop
        self._lock = threading.Lock()
        self._left = len(deliveries) + 1
        for delivery in deliveries:
            delivery.add_done_callback(self._one_done)
        self._one_done(None)

    def _one_done(self, _: Delivery | None) -> None:
        with self._lock:
            self._left -= 1
            is_last = not self._left
        if is_last:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits
                self._loop.call_soon_threadsafe(self.event.set)
