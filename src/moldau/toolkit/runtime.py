"""One handler at work: its schedulers, its workers, and what becomes of each record.

There is a scheduler for the handler's topics and one for each of its retry topics; the workers, tasks on the event
loop, take entries from all of them in turn. A worker calls the handler itself, without a task per record: a handler
that does not wait costs a call.

Invariants: an entry that was taken is reported to its scheduler exactly once. A record leaves for a retry topic or
the dead letters only with the cluster's acknowledgement, and counts as finished after it. A handler that was cancelled
finished nothing.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from moldau.records.client_headers import headers_of
from moldau.toolkit import letters
from moldau.toolkit.batching import run_batch
from moldau.toolkit.errors import RegistryAway, SchemaMissing, SendFailed
from moldau.toolkit.handling import Dispatch, arguments
from moldau.toolkit.lanes import Lane
from moldau.toolkit.message import Message
from moldau.toolkit.policy import BreakerState
from moldau.toolkit.scheduler import Entry, Scheduler
from moldau.toolkit.threads import DaemonThreads
from moldau.toolkit.timekeeping import Cancellable
from moldau.toolkit.transactional import Collected, collecting
from moldau.toolkit.verdicts import NEVER, Counts, Surroundings, Verdicts

if TYPE_CHECKING:
    from moldau.toolkit.spec import HandlerSpec

log = logging.getLogger("moldau.toolkit")

_SLICE_S = 0.01  # a worker lets others have the loop after this long
_LOOK_EVERY = 32


class Worker:
    __slots__ = ("entries", "is_abandoned", "since_ms", "task")

    def __init__(self) -> None:
        self.task: asyncio.Task[None]
        self.entries: Sequence[Entry] = ()
        self.is_abandoned = False
        self.since_ms = 0.0


class HandlerRuntime:
    """Started by its group; works until it is stopped."""

    def __init__(self, spec: HandlerSpec, dispatch: Dispatch, around: Surroundings) -> None:
        self.spec = spec
        self.options = spec.options
        self.dispatch = dispatch
        self.around = around
        self.counts = Counts()
        order, limits = spec.options.order, spec.options.limits
        levels = () if spec.options.retry.keep_order else range(len(spec.options.retry.later))
        self.main = Lane(Scheduler(order, limits), None)
        self.lanes = [self.main, *(Lane(Scheduler(order, limits), level) for level in levels)]
        self.breaker = BreakerState(spec.options.breaker) if spec.options.breaker is not None else None
        self.verdicts = Verdicts(spec, around, self.counts, self.breaker)
        self._workers: list[Worker] = []
        self._idle: deque[asyncio.Future[None]] = deque()
        self._threads = DaemonThreads(spec.options.workers, "moldau-handler")
        self._timer: tuple[float, Cancellable] | None = None
        self._is_over = False
        self._is_wrapped = bool(spec.options.around) or spec.options.once is not None
        self._turn = 0
        self._only_call: Callable[[Any], Awaitable[Any]] = _nothing
        self.on_idle: Callable[[], None] = lambda: None

    # Told by the group.

    def start(self) -> None:
        for _ in range(self.options.workers):
            worker = Worker()
            worker.task = asyncio.create_task(self._work(worker), name=f"handler {self.spec.label}")
            self._workers.append(worker)

    @property
    def running(self) -> int:
        return sum(lane.scheduler.running for lane in self.lanes)

    def is_busy(self, now: float) -> bool:
        """Whether something is running, or about to; not if it waits for a time."""
        if self.running:
            return True
        if self.breaker is not None and (self.breaker.open_until_ms or 0) > now:
            return False
        batch = self.options.batch
        if batch is None:
            return any(lane.scheduler.ready_count(now) for lane in self.lanes)
        return any(
            (count := lane.scheduler.batch_count(now, batch.size)) == batch.size
            or (count and (lane.batch_since_ms is None or lane.batch_since_ms + batch.within_ms <= now))
            for lane in self.lanes
        )

    @property
    def has_idle_workers(self) -> bool:
        return bool(self._idle)

    def stop_starting(self) -> None:
        for lane in self.lanes:
            lane.scheduler.is_stopping = True

    def wake(self) -> None:
        """There may be something to start."""
        now = self.around.time.monotonic_ms()
        ready = sum(lane.scheduler.ready_count(now) for lane in self.lanes)
        while ready > 0 and self._idle:
            waiter = self._idle.popleft()
            if not waiter.done():
                waiter.set_result(None)
                ready -= 1
        self._set_timer()

    def abandon(self) -> None:
        """Cancel handlers whose partition is gone: somebody else does their work."""
        for worker in self._workers:
            if worker.entries and not any(entry.part.alive for entry in worker.entries):
                worker.is_abandoned = True
                worker.task.cancel()

    async def end(self) -> None:
        """Cancel what still runs; it stays unfinished."""
        self._is_over = True
        for worker in self._workers:
            worker.task.cancel()
        await asyncio.gather(*(worker.task for worker in self._workers), return_exceptions=True)
        self._threads.close()
        if self._timer is not None:
            self._timer[1].cancel()

    def busy_since(self) -> list[tuple[Entry, float]]:
        """What is in the handler now, and since when."""
        return [(entry, worker.since_ms) for worker in self._workers for entry in worker.entries]

    # Workers.

    def _is_simple(self) -> bool:
        """Whether every record of the handler's topics is decoded, handed over and finished, and nothing else."""
        options, functions = self.options, self.dispatch.functions
        return (
            len(functions) == 1
            and functions[0].is_async
            and functions[0].value_name is not None
            and not functions[0].wants_message
            and self.dispatch.codec.decode_with_headers is None
            and self.breaker is None
            and self.around.note is None
            and (options.commit, options.batch, options.timeout_ms, options.to) == ("after", None, None, None)
            and not options.around
            and options.once is None
            and not options.transactional
        )

    async def _work_simply(self, worker: Worker) -> None:
        """What `_work` does, for handlers that need nothing special: no call and no object more than necessary."""
        loop = asyncio.get_running_loop()
        scheduler, counts = self.main.scheduler, self.counts
        take, finished, decode, call = scheduler.take, scheduler.finished, self.dispatch.codec.decode, self._only_call
        monotonic_ms = self.around.time.monotonic_ms
        began, count = loop.time(), 0
        retries = self.lanes[1:]
        while True:
            now = monotonic_ms()  # each time: the handler before may have waited for an hour
            entry = take(now)
            if entry is None:
                break
            worker.entries = (entry,)
            worker.since_ms = now
            data = entry.raw.value()
            if data is None:
                await self._handle_safely(worker, self.main, (entry,))
            else:
                try:
                    await call(decode(data))
                except SchemaMissing:
                    await self._handle_safely(worker, self.main, (entry,))
                except BaseException as error:
                    await self._handle_safely(worker, self.main, (entry,), error)
                else:
                    counts.handled += 1
                    if not finished(entry):
                        counts.dropped += 1
            count += 1
            if retries and any(lane.scheduler.ready_count(now) for lane in retries):
                break  # those have their turn, however long the queue is here
            if not count % _LOOK_EVERY:
                worker.entries = ()
                if loop.time() - began > _SLICE_S:
                    self.on_idle()  # not yet, but there is room by now
                    await asyncio.sleep(0)
                    began = loop.time()
        worker.entries = ()

    async def _work(self, worker: Worker) -> None:
        is_simple = self._is_simple()
        if is_simple:
            self._only_call = self.dispatch.functions[0].call
        loop = asyncio.get_running_loop()
        began, count = loop.time(), 0
        while True:
            if is_simple:
                await self._work_simply(worker)
            found = self._take()
            if found is None:
                await self._rest()
                began, count = loop.time(), 0
                continue
            lane, entries = found
            worker.entries = entries
            worker.since_ms = self.around.time.monotonic_ms()
            await self._handle_safely(worker, lane, entries)
            count += 1
            if count % _LOOK_EVERY == 0 and loop.time() - began > _SLICE_S:
                await asyncio.sleep(0)
                began = loop.time()

    async def _handle_safely(
        self, worker: Worker, lane: Lane, entries: Sequence[Entry], error: BaseException | None = None
    ) -> None:
        """Handle entries (or what the handler raised), and report them whatever happens."""
        try:
            if self.options.batch is not None:
                await self._handle_batch(lane, entries)
            else:
                await self._handle(lane, entries[0], error)
        except asyncio.CancelledError:
            for entry in entries:
                lane.scheduler.cancelled(entry)
            if self._is_over or not worker.is_abandoned:
                raise
            worker.is_abandoned = False
            worker.task.uncancel()
            self.counts.dropped += len(entries)
        except BaseException as failure:  # the handler's SystemExit, or our own mistake: the app ends with it
            for entry in entries:
                lane.scheduler.cancelled(entry)
            self.around.fail(failure)
        finally:
            worker.entries = ()

    async def _rest(self) -> None:
        self._set_timer()
        waiter = asyncio.get_running_loop().create_future()
        self._idle.append(waiter)
        self.on_idle()
        await waiter

    def _take(self) -> tuple[Lane, Sequence[Entry]] | None:
        now = self.around.time.monotonic_ms()
        if self.breaker is not None and not self.breaker.may_start(now, self.running):
            return None
        for _ in self.lanes:
            # In turn: a long queue at the handler's topics is no reason to leave retries waiting, nor the reverse.
            self._turn = (self._turn + 1) % len(self.lanes)
            lane = self.lanes[self._turn]
            if self.options.batch is not None:
                batch = self._take_batch(lane, now)
                if batch:
                    return lane, batch
            else:
                entry = lane.scheduler.take(now)
                if entry is not None:
                    return lane, (entry,)
        return None

    def _take_batch(self, lane: Lane, now: float) -> list[Entry]:
        settings = self.options.batch
        assert settings is not None
        count = lane.scheduler.batch_count(now, settings.size)
        if not count:
            lane.batch_since_ms = None
            return []
        if lane.batch_since_ms is None:
            lane.batch_since_ms = now
        if count < settings.size and now < lane.batch_since_ms + settings.within_ms:
            return []
        lane.batch_since_ms = None
        return lane.scheduler.take_batch(now, settings.size)

    def _set_timer(self) -> None:
        dues = [due for lane in self.lanes if (due := lane.scheduler.next_due_ms()) is not None]
        if self.options.batch is not None:
            within = self.options.batch.within_ms
            dues += [lane.batch_since_ms + within for lane in self.lanes if lane.batch_since_ms is not None]
        if self.breaker is not None and (reopens := self.breaker.open_until_ms) is not None:
            # While one record is tried, its end decides; nobody is to be woken before.
            is_tried = reopens <= self.around.time.monotonic_ms() and self.running
            dues = [] if is_tried else [max(due, reopens) for due in dues] or [reopens]
        due = min((due for due in dues if due != NEVER), default=None)
        if self._timer is not None:
            if self._timer[0] == due:
                return
            self._timer[1].cancel()
        self._timer = None if due is None else (due, self.around.time.call_at(due, self._timer_rang))

    def _timer_rang(self) -> None:
        self._timer = None
        if self._is_over:
            return
        while self._idle:
            waiter = self._idle.popleft()
            if not waiter.done():
                waiter.set_result(None)
                break
        self.wake()

    # One record.

    async def _handle(self, lane: Lane, entry: Entry, raised: BaseException | None) -> None:
        if not self.options.transactional:
            await self._handle_one(lane, entry, raised)
            return
        assert self.around.outputs is not None
        await self.around.outputs.room.wait()
        collected = Collected()
        token = collecting.set(collected)
        try:
            await self._handle_one(lane, entry, raised)
        finally:
            collected.is_over = True
            collecting.reset(token)

    async def _handle_one(self, lane: Lane, entry: Entry, raised: BaseException | None) -> None:
        scheduler = lane.scheduler
        mode = self.options.commit
        if mode == "auto":
            scheduler.acknowledged(entry)
        try:
            message = None
            if raised is not None:
                raise raised  # noqa: TRY301  as if the call had been made here
            if lane.level is not None and letters.group_of(headers_of(entry.raw)) not in (self.around.group, None):
                scheduler.finished(entry)  # a retry of another group that shares the topic
                return
            codec = self.dispatch.codec
            if codec.decode_with_headers is None and (data := entry.raw.value()) is not None:
                try:
                    value = codec.decode(data)
                except SchemaMissing:
                    value = await self.decode(entry)
            else:
                value = await self.decode(entry)
            function = self.dispatch.choose(value)
            if function.wants_message or mode == "manual" or not function.is_async or self._is_wrapped:
                message = self.message(lane, entry, value)
                result = await self._call(function, message, value)
            elif self.options.timeout_ms is not None:
                async with asyncio.timeout(self.options.timeout_ms / 1_000):
                    result = await function.call(value)
            elif function.value_name is None:
                result = await function.call()
            else:
                result = await function.call(value)
            if result is not None and self.options.to is not None:
                await self._send_on(entry, result)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            await self._failed(lane, entry, error)  # the handler's own doing
        except Exception as error:  # whatever the user's code raises
            await self._failed(lane, entry, error)
        else:
            self._lived(lane, entry, message)

    def _lived(self, lane: Lane, entry: Entry, message: Message | None) -> None:
        if self.breaker is not None:
            was_open = self.breaker.open_until_ms is not None
            self.breaker.lived()
            if was_open:
                self.wake()
        self.counts.handled += 1
        if self.around.outputs is not None and (collected := collecting.get()) is not None:
            self.around.outputs.put(entry, collected.records)  # at the same moment as it is finished
        if self.options.commit == "manual":
            lane.scheduler.returned(entry)
        elif not lane.scheduler.finished(entry):
            self.counts.dropped += 1
        if self.around.note is not None:
            self.around.note("handled", message or Message(entry), {})

    async def decode(self, entry: Entry) -> Any:
        """The value; a schema nobody knows yet is fetched, for as long as it takes."""
        while True:
            try:
                return self.dispatch.codec.read(entry.raw.value(), headers_of(entry.raw))
            except SchemaMissing as missing:
                registry = self.around.registry
                assert registry is not None
                try:
                    await asyncio.to_thread(registry.fetch, missing.schema_id)
                except RegistryAway as away:
                    log.warning("%s; trying on", away)
                    await asyncio.sleep(1)

    def message(self, lane: Lane, entry: Entry, value: Any) -> Message:
        """The record as the handler sees it."""
        if self.options.commit != "manual":
            message = Message(entry)
        else:
            message = Message(entry, lambda e, earlier: self._done(lane, e, earlier), self._commit)
        message.value = value
        return message

    async def _call(self, function: Any, message: Message, value: Any) -> Any:
        once = self.options.once

        def innermost_call() -> Any:
            return function.call(**arguments(function, message, value))

        async def innermost() -> Any:
            if function.is_async:
                return await (innermost_call() if once is None else once.handle(message, innermost_call))
            if once is None:
                return await asyncio.wrap_future(self._threads.submit(innermost_call))
            given_up = threading.Event()
            try:
                return await asyncio.wrap_future(
                    self._threads.submit(once.handle_plain, message, innermost_call, given_up)
                )
            finally:
                given_up.set()

        call: Callable[[], Awaitable[Any]] = innermost
        for around in reversed(self.options.around):
            call = _wrapped(around, message, call)
        if self.options.timeout_ms is None:
            return await call()
        async with asyncio.timeout(self.options.timeout_ms / 1_000):
            return await call()

    async def call_batch(self, values: list[Any]) -> None:
        """A batch handler, with its values."""
        function = self.dispatch.functions[0]
        if function.is_async:
            await function.call(values)
        else:
            await asyncio.wrap_future(self._threads.submit(function.call, values))

    async def _send_on(self, entry: Entry, result: Any) -> None:
        to = self.options.to
        assert to is not None
        encoded = self.around.producer.encode(to, result, None, _carried(entry))
        record = type(encoded)(to, encoded.value, entry.key, encoded.headers)
        if (collected := collecting.get()) is not None:
            collected.add(self.around.producer.prepare(record))
            return
        while True:
            try:
                await self.around.producer.send_record(record)
            except SendFailed as error:
                if not error.is_retriable or not entry.part.alive:
                    raise
                # The cluster is away, which is no fault of the record: it waits, and is no failure.
                log.warning("%s; trying on", error)
                await asyncio.sleep(0.5)
            else:
                return

    # By hand.

    def _done(self, lane: Lane, entry: Entry, earlier: bool) -> None:
        if earlier:
            for other in [each for each in entry.part.unfinished.values() if each.offset < entry.offset]:
                lane.scheduler.acknowledged(other)
        lane.scheduler.acknowledged(entry)

    async def _commit(self, entry: Entry, earlier: bool) -> None:
        self._done(self.main, entry, earlier)
        await self.around.commit_now(entry.part.where)

    # Failures.

    async def _failed(self, lane: Lane, entry: Entry, error: BaseException) -> None:
        if not entry.part.alive:
            lane.scheduler.cancelled(entry)
            self.counts.dropped += 1
            return
        again_ms = await self.verdicts.decide(lane.level, entry, error)
        if again_ms is None:
            lane.scheduler.finished(entry)
        else:
            lane.scheduler.again(entry, again_ms, parked=entry.parked)
            self._set_timer()

    # Batches.

    async def _handle_batch(self, lane: Lane, entries: Sequence[Entry]) -> None:
        again = await run_batch(self, lane, entries)
        for index, entry in enumerate(entries):
            if not entry.part.alive:
                self.counts.dropped += 1
            elif index not in again:
                self.counts.handled += entry.failure is None
        lane.scheduler.batch_ended(entries, again)
        self._set_timer()


async def _nothing(_: Any) -> None:
    """Stands in until the handler is known."""


def _wrapped(around: Any, message: Message, call: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
    async def wrapped() -> Any:
        return await around(message, call)

    return wrapped


def _carried(entry: Entry) -> list[letters.Header]:
    """A result tells which record it is from, and goes on with its trace."""
    return [(name, value) for name, value in headers_of(entry.raw) if name in ("traceparent", "tracestate")]
