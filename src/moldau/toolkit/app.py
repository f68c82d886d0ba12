"""`App`: handlers, hooks and a producer under one name, which is also the consumer group.

    app = App("billing", bootstrap_servers="localhost:9092")

    @app.handler("orders", workers=32, retry=Retry(now=3, later=["10s", "1m"]), dead_letter=True, to="bills")
    async def bill(order: Order) -> Bill: ...

    app.run()

The app belongs to one event loop while it runs. Settings of the clients keep Kafka's own names (`config`, `consumer`,
`producer`).
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar, Union

from moldau.toolkit import letters
from moldau.toolkit.codecs import codec_for
from moldau.toolkit.delays.sending import Delays
from moldau.toolkit.delays.topics import DELAYS
from moldau.toolkit.durations import Duration, milliseconds
from moldau.toolkit.errors import SetupError
from moldau.toolkit.group import Group
from moldau.toolkit.group_settings import GroupSettings, Hooks
from moldau.toolkit.handling import Dispatch, Function, understand
from moldau.toolkit.message import Message
from moldau.toolkit.policy import Batch, Breaker, CommitMode, Retry
from moldau.toolkit.positions import Reset
from moldau.toolkit.registry import Registry
from moldau.toolkit.runtime import HandlerRuntime
from moldau.toolkit.scheduler import Limits, Order, Where
from moldau.toolkit.sending import Delivery, Header, Producer, Record, Topic
from moldau.toolkit.spec import Around, HandlerSpec, Once, Options, split_topics
from moldau.toolkit.spool import Spool
from moldau.toolkit.timekeeping import SystemTime, Time, sleep
from moldau.toolkit.topics import TopicMaker
from moldau.toolkit.trace import Tracer
from moldau.toolkit.transactional import collecting

log = logging.getLogger("moldau.toolkit")

F = TypeVar("F", bound=Callable[..., Any])

_OURS = ("group.id", "enable.auto.commit", "enable.auto.offset.store", "on_commit", "stats_cb", "error_cb", "logger")


class App:
    """See the module."""

    def __init__(
        self,
        name: str,
        *,
        bootstrap_servers: str = "127.0.0.1:9092",
        auto_offset_reset: Reset = "latest",
        config: Mapping[str, Any] | None = None,
        consumer: Mapping[str, Any] | None = None,
        producer: Mapping[str, Any] | None = None,
        registry: Registry | str | None = None,
        interceptors: Sequence[Any] = (),
        partitioner: Any = "murmur2",
        spool: Spool | None = None,
        trace: bool | str = False,
        commit_every: Duration = "1s",
        stop_within: Duration = "30s",
        revoke_within: Duration = "5s",
        delays: str = DELAYS,
        time: Time | None = None,
    ) -> None:
        """`config` is for all clients, `consumer` and `producer` for theirs, with Kafka's names for every setting."""
        if not name:
            raise SetupError("an app has a name: it is the consumer group")
        if auto_offset_reset not in ("earliest", "latest"):
            raise SetupError(f'auto_offset_reset={auto_offset_reset!r}: "earliest" or "latest"')
        for key in _OURS:
            if key in (consumer or {}) or key in (config or {}):
                raise SetupError(
                    f"{key} is the app's own: the name is the group, commit= says when, interceptors are told"
                )
        self.name = name
        self.bootstrap_servers = bootstrap_servers
        self.time: Time = time or SystemTime()
        self.stop_within_ms = milliseconds(stop_within)
        self.specs: list[HandlerSpec] = []
        self.declared: dict[str, Topic] = {}
        self.reset: Reset = auto_offset_reset
        self._config = dict(config or {})
        self.consumer_defaults: dict[str, Any] = {}  # of whoever runs the app, below its own settings
        self._consumer_config = dict(consumer or {})
        self._producer_config = dict(producer or {})
        self.registry = Registry(registry) if isinstance(registry, str) else registry
        self._interceptors = list(interceptors)
        self._partitioner = partitioner
        self._spool = spool
        self.trace_topic = "moldau-trace" if trace is True else trace or None
        self._commit_ms = milliseconds(commit_every)
        self._revoke_ms = milliseconds(revoke_within)
        self._on_start: list[Callable[[], Any]] = []
        self._on_stop: list[Callable[[], Any]] = []
        self._periodic: list[tuple[int, Callable[[], Any]]] = []
        self._hooks = Hooks(
            consume=[each.on_consume for each in interceptors if hasattr(each, "on_consume")],
            commit=[each.on_commit for each in interceptors if hasattr(each, "on_commit")],
        )
        self.groups: list[Group] = []
        self._producer: Producer | None = None
        self._delays_topic = delays
        self._delays: Delays | None = None
        self.transaction_step: Callable[[str], None] = lambda _: None  # tests die between two steps
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping: asyncio.Event | None = None
        self._hurry: asyncio.Event | None = None
        self._failure: BaseException | None = None

    # Declaring.

    def topic(self, name: str, value: Any = None, *, key: Any = None) -> Topic:
        """Say what a topic holds; from then on sending something else is an error at the call."""
        found = self.declared[name] = Topic(name, value, key)
        for part, annotation in (("key", key), ("value", value)):
            if annotation is not None:
                codec_for(annotation, name, "key" if part == "key" else "value", self.registry)
        return found

    def handler(
        self,
        *topics: str | re.Pattern[str],
        workers: int = 1,
        order: Order = "key",
        retry: Retry | None = None,
        dead_letter: bool | str = False,
        to: str | None = None,
        commit: CommitMode = "after",
        batch: Batch | None = None,
        breaker: Breaker | None = None,
        timeout: Duration | None = None,
        around: Sequence[Around] = (),
        once: Once | None = None,
        transactional: bool = False,
        limits: Limits | None = None,
        group: str | None = None,
    ) -> Callable[[F], F]:
        """Handle the records of topics (names, or patterns that begin with ^).

        With `transactional`, what it sends (and `to`) and the commit of its record are one Kafka transaction.
        `once` is the innermost wrapper of the call: a database transaction (`moldau.toolkit.db.Store`, …).
        """
        names, patterns = split_topics(topics)
        outer = [] if batch is not None else [each.around for each in self._interceptors if hasattr(each, "around")]
        options = Options(
            workers,
            order,
            retry if retry is not None else Retry(),
            dead_letter,
            commit,
            batch,
            breaker,
            milliseconds(timeout) if timeout is not None else None,
            to,
            limits or Limits(),
            (*outer, *around),
            once,
            transactional,
        )

        def register(call: F) -> F:
            provides = once.provides if once is not None else None
            topic = names[0] if names else "records"
            function = understand(call, self, topic, self.registry, batch is not None, provides)
            spec = HandlerSpec(names, patterns, options, group or self.name)
            if once is not None:
                once.attach(self, spec, function)
            self._register(spec, function)
            return call

        return register

    def _register(self, spec: HandlerSpec, function: Function) -> None:
        if spec.options.to is not None and function.returns not in (None, type(None), Any):
            known = self.declared.get(spec.options.to)
            if known is None:
                self.topic(spec.options.to, function.returns)
        for other in self.specs:
            if other.group == spec.group and set(other.topics) & set(spec.topics):
                if (other.topics, other.patterns, other.options) != (spec.topics, spec.patterns, spec.options):
                    raise SetupError(
                        f"{function.name} and {other.name} share a topic: give both the same topics and options, or "
                        "one of them a group= of its own"
                    )
                if spec.options.batch is not None:
                    raise SetupError(f"{function.name}: a topic has one batch handler")
                other.functions.append(function)
                return
        spec.functions.append(function)
        self.specs.append(spec)

    def on_start(self, call: F) -> F:
        """Called before anything is read."""
        self._on_start.append(call)
        return call

    def on_stop(self, call: F) -> F:
        """Called when everything has ended, while sending is still possible."""
        self._on_stop.append(call)
        return call

    def on_assigned(self, call: F) -> F:
        """Called with partitions, [(topic, index), …], that this member has from now on."""
        self._hooks.assigned.append(call)
        return call

    def on_revoked(self, call: F) -> F:
        """Called before partitions are given back, after their handlers have ended and before the last commit."""
        self._hooks.revoked.append(call)
        return call

    def on_lost(self, call: F) -> F:
        """Called when partitions are gone already: somebody else may be at work on them."""
        self._hooks.lost.append(call)
        return call

    def every(self, period: Duration) -> Callable[[F], F]:
        """Call a function again and again while the app runs; never twice at once."""
        period_ms = milliseconds(period)
        if not period_ms:
            raise SetupError("every: give a period above zero")

        def register(call: F) -> F:
            self._periodic.append((period_ms, call))
            return call

        return register

    # Sending.

    @property
    def producer(self) -> Producer:
        """What sends for this app, in its form and with its settings. SetupError while the app is not running."""
        if self._producer is None:
            raise SetupError("the app sends only while it runs; use moldau.toolkit.Producer outside of it")
        return self._producer

    def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: Mapping[str, bytes | str] | Sequence[Header] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
        at: datetime | int | None = None,
        after: Duration | None = None,
        cron: str | None = None,
        zone: str = "UTC",
        id: str | None = None,  # noqa: A002  what it is
    ) -> Delivery:
        """Send; forget it, await it, or give it a callback (see `Producer.send`).

        With `at`, `after` or `cron` it is sent later (see `Delays.send`); `moldau relay` does that.
        """
        if at is not None or after is not None or cron is not None:
            return self.delays.send(
                topic,
                value,
                key=key,
                headers=headers,
                partition=partition,
                at=at,
                after=after,
                cron=cron,
                zone=zone,
                id=id,
            )
        if id is not None:
            raise SetupError("id= is for what is sent later: say when with at=, after= or cron=")
        return self._send_record(self.producer.encode(topic, value, key, headers, partition, timestamp_ms))

    def _send_record(self, record: Record) -> Delivery:
        """Now, or with the transaction of the handler that sends it."""
        if (collected := collecting.get()) is not None:
            return collected.add(self.producer.prepare(record))
        return self.producer.send_record(record)

    def cancel(self, id: str) -> Delivery:  # noqa: A002  what it is
        """Take back what was to be sent later (see `Delays.cancel`)."""
        return self.delays.cancel(id)

    @property
    def delays(self) -> Delays:
        """Sends what is due later."""
        if self._delays is None:
            self._delays = Delays(
                self.producer,
                topic=self._delays_topic,
                wall_ms=self.time.wall_ms,
                send_record=self._send_record,
            )
        return self._delays

    # Running.

    def run(self) -> None:
        """Run until SIGTERM or Ctrl-C (a second one hurries), or until a handler fails for good, which is raised."""
        from moldau.net.loop import new_event_loop

        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(self.serve())

    async def serve(self, *, signals: bool = True) -> None:
        """The same inside a running event loop."""
        with _signals(self._on_signal) if signals else contextlib.nullcontext():
            await self.start()
            try:
                await self.until_stopping()
            finally:
                await self.stop()
        if self._failure is not None:
            raise self._failure

    async def start(self) -> None:
        """Connect and begin to read; `stop` must follow."""
        if self._stopping is not None:
            raise SetupError("the app runs already")
        self._stopping, self._hurry, self._failure = asyncio.Event(), asyncio.Event(), None
        base = {"bootstrap.servers": self.bootstrap_servers, "client.id": self.name, **self._config}
        tracer = Tracer(self, self.trace_topic) if self.trace_topic is not None else None
        self._producer = Producer(
            self.bootstrap_servers,
            config=base | self._producer_config,
            topics=list(self.declared.values()),
            partitioner=self._partitioner,
            interceptors=[*self._interceptors, *([tracer] if tracer is not None else [])],
            registry=self.registry,
            spool=self._spool,
        )
        maker = TopicMaker(base)
        try:
            await self._make_groups(base, maker, tracer)
            for call in self._on_start:
                await _maybe(call())
        except BaseException:
            await self.stop()
            raise
        for group in self.groups:
            group.start()
        self._tasks = [asyncio.create_task(self._repeat(ms, call)) for ms, call in self._periodic]

    async def _make_groups(self, base: Mapping[str, Any], maker: TopicMaker, tracer: Tracer | None) -> None:
        assert self._producer is not None
        wanted = [(self.trace_topic, spec.topics[0]) for spec in self.specs[:1] if self.trace_topic and spec.topics]
        for spec in self.specs:
            for topic in spec.topics:
                later = () if spec.options.retry.keep_order else spec.options.retry.later
                wanted += [(letters.retry_topic(topic, level), topic) for level in range(len(later))]
                if spec.options.dead_letter:
                    own = spec.options.dead_letter
                    wanted.append((own if isinstance(own, str) else letters.dead_letter_topic(topic), topic))
        if wanted:
            await maker.ensure_all(wanted)
        by_name: dict[str, Group] = {}
        transactional = {spec.group for spec in self.specs if spec.options.transactional}
        relayed = {spec.group for spec in self.specs if spec.options.retry.by == "relay"}
        for spec in self.specs:
            group = by_name.get(spec.group)
            if group is None:
                settings = GroupSettings(
                    spec.group,
                    self._consumer_settings(base, spec.group)
                    | ({"isolation.level": "read_committed"} if spec.group in transactional | relayed else {}),
                    self.reset,
                    self._commit_ms,
                    self._revoke_ms,
                    refresh_s=self._refresh_s(),
                    is_transactional=spec.group in transactional,
                    transaction_step=self.transaction_step,
                )
                group = by_name[spec.group] = Group(
                    settings, self.time, self._producer, maker, lambda: self.delays, self._hooks, self.fail
                )
                self.groups.append(group)
            note = tracer.consumed if tracer is not None else None
            group.add(HandlerRuntime(spec, self._dispatch(spec), group.surroundings(self.registry, note)))

    def _consumer_settings(self, base: Mapping[str, Any], group: str) -> dict[str, Any]:
        defaults = {
            "partition.assignment.strategy": "cooperative-sticky",
            "queued.max.messages.kbytes": 16_384,
            "topic.metadata.refresh.interval.ms": 30_000,
            "log_level": 2,  # what matters comes through calls
        }
        if self._consumer_config.get("group.protocol") == "consumer":
            del defaults["partition.assignment.strategy"]
        return {
            **base,
            **defaults,
            **self.consumer_defaults,
            **self._consumer_config,
            "group.id": group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",  # where to begin is decided in `positions`
        }

    def _refresh_s(self) -> float:
        own = self._consumer_config.get("topic.metadata.refresh.interval.ms")
        return max(0.1, float(own if own is not None else 30_000) / 1_000)

    def _dispatch(self, spec: HandlerSpec) -> Dispatch:
        topic = spec.topics[0] if spec.topics else spec.patterns[0].pattern
        declared = next((self.declared[name] for name in spec.topics if name in self.declared), None)
        if declared is not None and declared.value is not None:
            annotation = declared.value
        elif len(spec.functions) == 1:
            annotation = spec.functions[0].value_type
        else:
            annotation = Union[tuple(function.value_type for function in spec.functions)]  # noqa: UP007  built from a tuple
        if annotation is Message:
            annotation = Any
        return Dispatch(codec_for(annotation, topic, "value", self.registry), tuple(spec.functions))

    def fail(self, error: BaseException) -> None:
        """Stop the app because of this; the first one is what `run` raises."""
        if self._failure is None:
            self._failure = error
            log.error("%s stops: %s", self.name, error)
        self.ask_to_stop()

    @property
    def failure(self) -> BaseException | None:
        """Why the app ended by itself; None: it has not."""
        return self._failure

    def ask_to_stop(self) -> None:
        """End soon: what is being handled is finished, nothing else is begun. From its own event loop."""
        if self._stopping is not None:
            self._stopping.set()

    async def until_stopping(self) -> None:
        """Return when the app was asked to stop."""
        assert self._stopping is not None
        await self._stopping.wait()

    async def stop(self) -> None:
        """Stop fetching, drain, commit, leave the group, flush what was sent."""
        if self._stopping is None:
            return
        self._stopping.set()
        assert self._hurry is not None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(group.stop(self.stop_within_ms / 1_000, self._hurry) for group in self.groups))
        for call in self._on_stop:
            try:
                await _maybe(call())
            except Exception:  # the others are still to be called
                log.exception("a stop hook failed")
        if self._producer is not None:
            await asyncio.to_thread(self._producer.close, self.stop_within_ms / 1_000)
        self._producer = self._delays = None
        self.groups = []
        self._tasks = []
        self._stopping = self._hurry = None

    def _on_signal(self) -> None:
        if self._stopping is None or self._hurry is None:
            return  # it has stopped
        if self._stopping.is_set():
            log.warning("stopping at once: what is running is cancelled, and will be repeated")
            self._hurry.set()
        else:
            log.info("stopping; once more to hurry")
            self._stopping.set()

    async def _repeat(self, period_ms: int, call: Callable[[], Any]) -> None:
        while True:
            await sleep(self.time, period_ms)
            try:
                await _maybe(call())
            except Exception:  # the next time may work
                log.exception("a periodic function failed")

    # Positions.

    async def seek(self, topic: str, partition: int, offset: int) -> None:
        """Read a partition of ours on from there; what was in work is dropped, and the commit follows."""
        await self._group_of(topic).seek((topic, partition), offset)

    async def replay(self, topic: str, since_ms: int) -> list[Where]:
        """Read our partitions of a topic again from a time (ms since 1970). Every member does this for its own."""
        return await self._group_of(topic).seek_time(topic, since_ms)

    async def commit(self, topic: str | None = None, partition: int | None = None) -> None:
        """Commit what is finished now, and wait for the broker; by default everything."""
        where = (topic, partition) if topic is not None and partition is not None else None
        groups = self.groups if topic is None else [self._group_of(topic)]
        await asyncio.gather(*(group.commit_now(where) for group in groups))

    def _group_of(self, topic: str) -> Group:
        for group in self.groups:
            if any(where[0] == topic for where in group.assignment):
                return group
        raise SetupError(f"no partition of {topic} is assigned to this member")

    # Looking inside.

    def describe(self) -> dict[str, Any]:
        """What the app is made of, and how it does; plain data."""
        from moldau.toolkit.describe import describe

        return describe(self)

    def asyncapi(self, *, version: str = "1.0.0") -> dict[str, Any]:
        """An AsyncAPI 3 document of its topics and messages."""
        from moldau.toolkit.asyncapi import document

        return document(self, version)


async def _maybe(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


@contextlib.contextmanager
def _signals(call: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    installed = []
    for number in (signal.SIGTERM, signal.SIGINT):
        # Refused outside of the main thread, whose owner then stops the app.
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(number, call)
            installed.append(number)
    try:
        yield
    finally:
        for number in installed:
            loop.remove_signal_handler(number)
