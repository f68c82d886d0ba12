"""One consumer group of an app: its consumer thread, its handlers, and everything between them, on the event loop.

Records go from the thread to the schedulers and on to the workers; what is finished goes back as commits. Partitions
come and go: what is running there is given a moment to end, what ended is committed, and the rest is dropped.

Stopping: nothing new is started and nothing more is fetched, while the polling goes on; handlers are given until a
deadline; what is finished is committed; the group is left. What was cancelled is not committed.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import logging
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from operator import add
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError
from confluent_kafka import Message as RawMessage

from moldau.records.client_headers import headers_of
from moldau.toolkit import letters, transactional
from moldau.toolkit.consumer_events import (
    Arrived,
    Assigned,
    Committed,
    Credit,
    Event,
    Reached,
    Removed,
    Revoking,
    Trouble,
)
from moldau.toolkit.consuming import ConsumerThread
from moldau.toolkit.delays.retries import order_retry
from moldau.toolkit.errors import HandlerFailed, SendFailed, ToolkitError
from moldau.toolkit.group_settings import GroupSettings, Hook, Hooks
from moldau.toolkit.lanes import Lane
from moldau.toolkit.last_commit import commit_last
from moldau.toolkit.message import Message
from moldau.toolkit.positions import Start
from moldau.toolkit.runtime import HandlerRuntime
from moldau.toolkit.scheduler import Entry, Where
from moldau.toolkit.sending import Producer, Record
from moldau.toolkit.spec import TakesOver
from moldau.toolkit.timekeeping import Time
from moldau.toolkit.transactional import Transactions, TransactionThread, collecting
from moldau.toolkit.verdicts import Surroundings

if TYPE_CHECKING:
    from moldau.toolkit.delays.retries import Later
    from moldau.toolkit.delays.sending import Delays
    from moldau.toolkit.topics import TopicMaker

log = logging.getLogger("moldau.toolkit")
_NAMED_MAX = 10
_TRANSACTION_MS = 100  # so often what transactional handlers sent goes out


class Group:
    """Made and started on the event loop."""

    def __init__(
        self,
        settings: GroupSettings,
        time: Time,
        producer: Producer,
        topics: TopicMaker,
        delays: Callable[[], Delays],
        hooks: Hooks,
        fail: Callable[[BaseException], None],
    ) -> None:
        self.settings = settings
        self.handlers: list[HandlerRuntime] = []
        self._time = time
        self._producer = producer
        self._topics = topics
        self._delays = delays
        self._hooks = hooks
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        self._events: deque[Event] = deque()
        self._is_drain_scheduled = False
        self._owners: dict[Where, tuple[HandlerRuntime, Lane]] = {}
        self._by_topic: dict[str, tuple[HandlerRuntime, Lane]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopping = False
        self._is_held = False
        self._has_started = False
        self._is_transacting = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = ConsumerThread(
            settings.config,
            self._wanted_topics,
            self._post,
            reset=settings.reset,
            drain_s=settings.drain_ms / 1_000,
            batch_size=settings.batch_size,
            refresh_s=settings.refresh_s,
            wall_ms=time.wall_ms,
            keep=self._keep,
        )
        self._transactions = self._make_transactions() if settings.is_transactional else None

    def _make_transactions(self) -> Transactions:
        name, step = self.settings.name, self.settings.transaction_step
        around = transactional.Surroundings(
            self._to_commit_whole,
            lambda: asyncio.wrap_future(self._thread.metadata()),
            lambda offsets: self._committed(Committed(offsets, None)),
            self._output_refused,
            lambda: asyncio.wrap_future(self._thread.begin_again()),
        )
        thread = TransactionThread(self._producer.client_config, f"{name}-{secrets.token_hex(8)}", step)
        return Transactions(thread, around, step)

    def surroundings(self, registry: Any, note: Any) -> Surroundings:
        return Surroundings(
            self.settings.name,
            self._time,
            self._producer,
            registry,
            self._hand_over,
            self._fail,
            self.commit_now,
            note,
            self._transactions.outputs if self._transactions is not None else None,
        )

    def add(self, handler: HandlerRuntime) -> None:
        handler.on_idle = self._flow
        self.handlers.append(handler)

    def start(self) -> None:
        for handler in self.handlers:
            handler.start()
        self._has_started = True
        self._thread.start(self.credit())
        self._tick()

    def credit(self) -> Credit:
        """As much as the tightest handler may hold: nobody ever has more than twice its limits."""
        limits = [handler.options.limits for handler in self.handlers]
        entries = min(min(each.entries, each.entries_per_partition) for each in limits)
        return Credit(min(entries, 2 * self.settings.batch_size), min(each.bytes for each in limits))

    @property
    def is_holding(self) -> bool:
        """Whether nothing is read at all, for so long that the partitions were paused."""
        return self._thread.is_paused_for_now

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def assignment(self) -> list[Where]:
        return sorted(self._owners)

    # Topics; called by the thread.

    def _wanted_topics(self, found: Iterable[str]) -> list[str]:
        existing = set(found)
        wanted: dict[str, tuple[HandlerRuntime, Lane]] = {}
        for handler in self.handlers:
            names = {*handler.spec.topics, *(name for name in existing if handler.spec.matches(name))}
            for name in sorted(names):
                wanted.setdefault(name, (handler, handler.main))
                for lane in handler.lanes[1:]:
                    assert lane.level is not None
                    retries = letters.retry_topic(name, lane.level)
                    if retries in existing:
                        wanted[retries] = (handler, lane)
        self._by_topic = wanted  # replaced as a whole: the loop reads it
        return sorted(wanted)

    def _keep(self, generation: int, starts: Sequence[Start], is_moved: bool) -> Sequence[Start]:
        """Where partitions begin if a handler's `once` knows better; the thread waits for it."""
        found = {start.where: start for start in starts}
        for handler in self.handlers:
            once: object = handler.options.once
            mine = [s for s in starts if (owner := self._by_topic.get(s.where[0])) is not None and owner[0] is handler]
            if not mine or not isinstance(once, TakesOver):
                continue
            answer = asyncio.run_coroutine_threadsafe(once.take_over(generation, mine, is_moved), self._loop)
            while not answer.done():
                if self._thread.is_closing:
                    answer.cancel()
                    return []
                concurrent.futures.wait([answer], 0.1)
            if (error := answer.exception()) is not None:
                self._loop.call_soon_threadsafe(self._fail, error)
                return []
            found |= {start.where: start for start in answer.result()}
        return list(found.values())

    def take_again(self, where: Where, generation: int) -> None:
        """Have a partition assigned anew, if the group says that it is ours."""
        self._thread.take_again(where, generation).add_done_callback(lambda done: done.exception())

    # Events from the thread.

    def _post(self, event: Event) -> None:
        self._events.append(event)
        if not self._is_drain_scheduled:
            self._is_drain_scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:
                # The loop is closed: nobody waits for this any more.
                if isinstance(event, Revoking):
                    event.answer.set_result({})

    def _drain(self) -> None:
        self._is_drain_scheduled = False
        events = self._events
        count = size = 0
        while events:
            event = events.popleft()
            match event:
                case Arrived():
                    count += len(event.messages)
                    size += event.size
                    self._arrived(event)
                case Reached():
                    if (owner := self._owners.get(event.where)) is not None:
                        owner[1].scheduler.reached(event.where, event.generation, event.offset)
                case Assigned():
                    self._assigned(event)
                case Revoking():
                    self._spawn(self._revoking(event))
                case Removed():
                    self._removed(event)
                case Committed():
                    self._committed(event)
                case Trouble():
                    self._trouble(event)
        for handler in self.handlers:
            handler.wake()
        self._flow()
        if count:
            self._thread.taken(count, size)  # after the pauses were asked for

    def _arrived(self, event: Arrived) -> None:
        owner = self._owners.get(event.where)
        if owner is None:
            return
        for on_consume in self._hooks.consume:
            try:
                on_consume(event.messages)
            except Exception:  # as in Kafka, an interceptor's failure is its own
                log.exception("an interceptor failed in on_consume")
        _, lane = owner
        now = self._time.monotonic_ms()
        if lane.level is None:
            entries = _entries(event.messages)
        else:
            entries = [self._delayed(owner[0], lane.level, message, now) for message in event.messages]
        lane.scheduler.arrived(event.where, event.generation, entries, now)

    def _delayed(self, handler: HandlerRuntime, level: int, message: Any, now: float) -> Entry:
        due_wall = letters.due_wall_ms(headers_of(message))
        wait = 0 if due_wall is None else due_wall - self._time.wall_ms()
        # Another machine's clock cannot make a record wait longer than its topic's delay.
        longest = handler.options.retry.later_ms[level]
        due = now + min(wait, longest) if wait > 0 else 0.0
        key = message.key()
        return Entry(message, message.offset(), key, len(message) + len(key or b""), due)

    def _assigned(self, event: Assigned) -> None:
        for start in event.starts:
            owner = self._by_topic.get(start.where[0])
            if owner is None:
                continue
            self._owners[start.where] = owner
            part = owner[1].scheduler.assigned(start.where, event.generation, start.offset, start.noted)
            if not start.is_first:
                part.committed = owner[1].scheduler.snapshot(part)
            if self._is_stopping:
                part.draining = True
        log.info("assigned %d partitions: %s", len(event.starts), _listed(start.where for start in event.starts))
        self._call(self._hooks.assigned, [start.where for start in event.starts])

    async def _revoking(self, event: Revoking) -> None:
        """Give running handlers a moment, then say what may be committed."""
        lanes = {id(owner[1]): owner[1] for where in event.wheres if (owner := self._owners.get(where)) is not None}
        parts = []
        for lane in lanes.values():
            lane.scheduler.draining(event.wheres)
            parts += [part for where in event.wheres if (part := lane.scheduler.parts.get(where)) is not None]
        deadline = self._loop.time() + event.seconds
        while any(part.alive and part.running for part in parts) and self._loop.time() < deadline:  # noqa: ASYNC110  a handful, rarely
            await asyncio.sleep(0.005)
        await self._tell(self._hooks.revoked, list(event.wheres))
        if self._transactions is not None:
            offsets = {}
            if event.metadata is not None:
                await self._transactions.commit(set(event.wheres), event.metadata)
        else:
            offsets = self._to_commit(set(event.wheres))
        if not event.answer.done():
            event.answer.set_result(offsets)

    def _removed(self, event: Removed) -> None:
        for where in event.wheres:
            owner = self._owners.pop(where, None)
            if owner is not None:
                owner[1].scheduler.removed(where)
        if self._transactions is not None:
            self._transactions.outputs.forget_gone()
        for handler in self.handlers:
            handler.abandon()
        if event.is_lost:
            log.warning("lost %s: another member has them now", ", ".join(f"{t}-{p}" for t, p in event.wheres))
            self._call(self._hooks.lost, list(event.wheres))

    def _committed(self, event: Committed) -> None:
        if event.error is not None:
            log.info("a commit failed (%s); it is made again", event.error)
            return
        for where, told in event.offsets.items():
            owner = self._owners.get(where)
            part = owner[1].scheduler.parts.get(where) if owner is not None else None
            if part is not None:
                part.committed = told
        for on_commit in self._hooks.commit:
            try:
                on_commit({where: told[0] for where, told in event.offsets.items()})
            except Exception:  # as in Kafka, an interceptor's failure is its own
                log.exception("an interceptor failed in on_commit")

    def _trouble(self, event: Trouble) -> None:
        if event.is_fatal:
            self._fail(ToolkitError(event.message))
        else:
            log.warning("%s: %s", self.settings.name, event.message)

    # Back-pressure.

    def _flow(self) -> None:
        """Pause partitions that are full, resume those that are not.

        A pause throws away what the client has fetched in advance. So if nothing else could come, or nobody could
        start it, reading just waits a little.
        """
        full: list[Where] = []
        paused: list[Where] = []
        open_count = 0
        totals = {
            id(lane): (lane.scheduler.held, lane.scheduler.held_bytes)
            for handler in self.handlers
            for lane in handler.lanes
        }
        for where, (_, lane) in self._owners.items():
            part = lane.scheduler.parts.get(where)
            if part is None:
                continue
            is_full = lane.scheduler.is_full(part, totals[id(lane)])
            if part.paused:
                if not is_full:
                    part.paused = False
                    paused.append(where)
                    open_count += 1
            elif is_full:
                full.append(where)
            else:
                open_count += 1
        if paused:
            self._thread.resume(paused)
        is_somebody_idle = any(handler.has_idle_workers for handler in self.handlers)
        must_hold = bool(full) and not (open_count and is_somebody_idle) and not self._is_stopping
        if full and not must_hold:
            for where in full:
                self._owners[where][1].scheduler.parts[where].paused = True
            self._thread.pause(full)
        if must_hold != self._is_held:
            self._is_held = must_hold
            self._thread.hold(must_hold)

    # Commits.

    def _tick(self) -> None:
        """Commit what has changed, and look again in a moment."""
        commit_ms = self.settings.commit_ms
        if self._transactions is not None:
            commit_ms = min(commit_ms, _TRANSACTION_MS)
            if not self._is_stopping and not self._is_transacting:
                self._spawn(self._transact())
        else:
            offsets = self._to_commit(None)
            if offsets and not self._is_stopping:
                self._thread.commit(offsets).add_done_callback(lambda done: done.exception())
        self._flow()
        # In real time, whatever time the handlers live in: this is between us and the broker.
        self._timer = self._loop.call_later(commit_ms / 1_000, self._tick)

    async def _transact(self) -> None:
        """Commit what is finished, if anything is; what goes wrong with it is made again."""
        assert self._transactions is not None
        if not self._to_commit(None):
            return
        self._is_transacting = True
        try:
            await self._transactions.commit()
        except Exception as error:  # the consumer is closed, or our own mistake
            log.warning("%s: a transaction could not be made: %r", self.settings.name, error)
        finally:
            self._is_transacting = False

    def _to_commit(self, only: set[Where] | None) -> dict[Where, tuple[int, str]]:
        found: dict[Where, tuple[int, str]] = {}
        for handler in self.handlers:
            for lane in handler.lanes:
                told = lane.scheduler.to_commit()
                found |= {where: each for where, each in told.items() if only is None or where in only}
        return found

    def _to_commit_whole(self, only: set[Where] | None) -> dict[Where, tuple[int, str]]:
        """The same for transactions. One whose map was cut short waits: it would forget what it told before."""
        told = self._to_commit(only)
        return {
            where: each
            for where, each in told.items()
            if (owner := self._owners.get(where)) is not None and owner[1].scheduler.is_whole(where, each)
        }

    async def commit_now(self, where: Where | None = None) -> None:
        """Commit what is finished, and wait for the broker."""
        if self._transactions is not None:
            only = None if where is None else {where}
            if self._to_commit(only) and not await self._transactions.commit(only):
                raise SendFailed("a transaction was undone; it is made again", is_retriable=True)
            return
        offsets = self._to_commit(None if where is None else {where})
        if offsets:
            await asyncio.wrap_future(self._thread.commit(offsets))

    # Seeking.

    async def seek(self, where: Where, offset: int) -> None:
        await asyncio.wrap_future(self._thread.seek(where, offset))

    async def seek_time(self, topic: str, wall_ms: int) -> list[Where]:
        return await asyncio.wrap_future(self._thread.seek_time(topic, wall_ms))

    # Sending on what failed.

    async def _hand_over(
        self,
        entry: Entry,
        topic: str,
        like: str,
        build: Callable[[bool], Sequence[letters.Header]],
        later: Later | None,
    ) -> bool:
        """Until the cluster has it. False: the partition is not ours any more, or the app fails because of it."""
        brief = False
        while entry.part.alive:
            try:
                if await self._topics.ensure(topic, like):
                    self._thread.ask(lambda _: self._thread.look_again())
                record = Record(topic, entry.raw.value(), entry.key, build(brief))
                if later is not None:
                    record = await order_retry(self._delays(), later, record)
                if self._transactions is not None and collecting.get() is not None:
                    self._transactions.outputs.put(entry, [record])  # instead of what it sent before it failed
                else:
                    await self._producer.send_record(record)
            except SendFailed as error:
                if error.is_too_large and not brief:
                    brief = True
                    continue
                if error.is_too_large and later is not None:
                    later = None  # too large for the delays: it waits in its retry topic
                    continue
                if not error.is_retriable:
                    failure = HandlerFailed(
                        f"a failed record cannot be set aside: {error}. Raise max.message.bytes of {topic}; until then "
                        "the record stays unfinished"
                    )
                    failure.__cause__ = error
                    self._fail(failure)
                    return False
                log.warning("%s; trying on", error)
                await asyncio.sleep(0.5)
            else:
                return True
        return False

    async def _output_refused(self, entry: Entry, error: KafkaError) -> Sequence[Record] | None:
        """The cluster will never take what a finished record sent: it is a dead letter, or the app's end."""
        owner = self._owners.get(entry.part.where)
        if owner is None or not entry.part.alive:
            return None
        failure = SendFailed(f"its output cannot be sent: {error.str()}", is_retriable=False)
        own = owner[0].options.dead_letter
        if own is False or entry.failure is SendFailed:
            where = f"{entry.part.where[0]}-{entry.part.where[1]} offset {entry.offset}"
            self._fail(
                HandlerFailed(f"{where}: {failure}. Nothing of it is committed. Give the handler dead_letter=True")
            )
            return None
        entry.failure = SendFailed
        origin = Message(entry).origin
        topic = own if isinstance(own, str) else letters.dead_letter_topic(origin.topic)
        await self._topics.ensure(topic, origin.topic)
        headers = letters.for_dead_letter(headers_of(entry.raw), origin, self.settings.name, failure, 1, brief=True)
        owner[0].counts.dead += 1
        return [Record(topic, entry.raw.value(), entry.key, headers)]

    # The end, and what tests ask.

    async def stop(self, seconds: float, hurry: asyncio.Event) -> None:
        """Drain to the deadline (or until told to hurry), commit, leave the group."""
        self._is_stopping = True
        for handler in self.handlers:
            handler.stop_starting()
        self._flow()
        deadline = self._loop.time() + seconds
        while any(handler.running > 0 for handler in self.handlers) and self._loop.time() < deadline:
            if hurry.is_set():
                break
            await asyncio.sleep(0.005)
        for handler in self.handlers:
            await handler.end()
        if self._timer is not None:
            self._timer.cancel()
        if self._owners:
            await self._tell(self._hooks.revoked, self.assignment)
        await commit_last(self.commit_now)
        if not self._has_started:
            return
        self._thread.close()
        if not await asyncio.to_thread(self._thread.join, 30.0):
            log.error("the consumer did not close in time")
        for task in list(self._tasks):
            task.cancel()
        if self._transactions is not None:
            self._transactions.close()

    async def is_idle(self) -> bool:
        """Whether everything there is was handled, but for what waits for a time to come."""
        if not self._owners or self._events or self._busy():
            return False
        if self._transactions is not None and self._transactions.is_busy:
            return False
        ends = await asyncio.wrap_future(self._thread.ends())
        if self._events or self._busy() or set(ends) != set(self._owners):
            return False
        return all(
            (part := owner[1].scheduler.parts.get(where)) is not None
            and (part.next_offset >= ends[where] or part.paused)
            for where, owner in self._owners.items()
        )

    def _busy(self) -> bool:
        now = self._time.monotonic_ms()
        return any(handler.is_busy(now) for handler in self.handlers)

    # Hooks.

    def _call(self, hooks: Sequence[Hook], wheres: list[Where]) -> None:
        if hooks:
            self._spawn(self._tell(hooks, wheres))

    async def _tell(self, hooks: Sequence[Hook], wheres: list[Where]) -> None:
        for hook in hooks:
            try:
                result = hook(wheres)
                if inspect.isawaitable(result):
                    await result
            except Exception:  # the user's code; the group goes on
                log.exception("a hook failed")

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _entries(messages: Sequence[RawMessage]) -> list[Entry]:
    """An entry for each, made in C where that can be: every record passes here."""
    keys: list[Any] = list(map(RawMessage.key, messages))
    sizes: Iterable[int] = map(len, messages)
    sizes = map(add, sizes, map(len, keys)) if None not in keys else map(add, sizes, (len(key or b"") for key in keys))
    offsets: Iterable[Any] = map(RawMessage.offset, messages)  # None only of what is no record
    return list(map(Entry, messages, offsets, keys, sizes))


def _listed(wheres: Iterable[Where]) -> str:
    """The partitions, as people write them; many are not all named."""
    names = [f"{topic}-{index}" for topic, index in sorted(wheres)]
    more = len(names) - _NAMED_MAX
    return ", ".join(names[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
