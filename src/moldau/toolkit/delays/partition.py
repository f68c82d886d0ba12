"""One partition of the delays at work: a thread with a producer and a consumer of its own.

It takes the partition over (fences whoever had it, reads what is pending, goes on where the commands were left), and
then makes one step after the other, each in one transaction: what was asked for becomes pending, what is due is
delivered and no longer pending, and the position in the commands moves on. A transaction that fails leaves all of it
undone; one whose end is unknown makes the worker begin again, from the topics.

Invariants: only the last one to begin with the partition's transactional id can commit, so no message is delivered by
two. Before something is delivered, every command that was acknowledged before it was due has been read, and every
command of the transaction that asked for it: transactions that were open then are waited for.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from moldau.toolkit import letters
from moldau.toolkit.delays import entry
from moldau.toolkit.delays.entry import Delayed
from moldau.toolkit.delays.far import FarOnDisk
from moldau.toolkit.delays.shard import Command, Shard, Step
from moldau.toolkit.delays.topics import POSITION, DelayTopics
from moldau.toolkit.errors import SendFailed, ToolkitError

log = logging.getLogger("moldau.toolkit")

BATCH = 2_000  # commands of one step
FIRED_MAX = 4_000  # messages a step delivers
_CALL_S = 10.0
_REPORTS_S = 1.0
_MADE_S = 2.0  # so long a topic may take to be made
_MISSING_S = 10.0  # so long one that was not there is not looked for again
REST_S = 0.1  # so long it sleeps at most: for stops, and clocks that are set
_AGAIN_S = 0.5
_SOON_S = 0.001
_SIGHT_S = 0.01
_PATIENCE_S = 5.0  # so long an open transaction is waited for without a word

_FENCED = (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED)
_MISSING = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError.TOPIC_EXCEPTION)
_HOPELESS = (
    *_MISSING,
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_MSG,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.INVALID_RECORD,
    KafkaError._INVALID_ARG,
)

At = Callable[[str], None]
"""Called between the steps of the work, with their names; tests die there."""


Watermarks = Callable[[int], tuple[int, int]]
"""Where the commands of a partition begin and end now, those of open transactions included. Not asked through a
consumer that reads: brokers answer a connection's requests in order, and a fetch is answered when something comes."""


class TakenOver(ToolkitError):
    """Another relay has the partition now."""


@dataclass(slots=True)
class DelayCounts:
    """Since the relay started."""

    scheduled: int = 0
    cancelled: int = 0
    delivered: int = 0
    dead: int = 0
    refused: int = 0
    late_ms_max: int = 0
    retries: int = 0  # of what was delivered

    def add(self, other: DelayCounts) -> None:
        self.scheduled += other.scheduled
        self.cancelled += other.cancelled
        self.delivered += other.delivered
        self.dead += other.dead
        self.refused += other.refused
        self.late_ms_max = max(self.late_ms_max, other.late_ms_max)
        self.retries += other.retries


class PartitionWorker:
    """From `start` to `stop`; begins again by itself after trouble."""

    def __init__(
        self,
        config: Mapping[str, Any],
        topics: DelayTopics,
        index: int,
        wall_ms: Callable[[], int],
        watermarks: Watermarks,
        at: At = lambda _: None,
        rest_s: float = REST_S,
    ) -> None:
        self.index = index
        self.counts = DelayCounts()
        self.pending = 0
        self.near = 0
        self.is_ready = False
        self.trouble: str | None = None
        self.next_due_ms: int | None = None
        self.known_until_ms = 0  # what was due until then has been delivered
        self._config = dict(config)
        self._topics = topics
        self._wall_ms = wall_ms
        self._watermarks = watermarks
        self._at = at
        self._rest = rest_s
        self._asked = 0
        self._answered = 0
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"moldau-delays-{index}", daemon=True)
        self._shard: Shard
        self._producer: Producer
        self._consumer: Consumer
        self._position = 0
        self._end = 0  # the commands were read to here, control records included
        self._is_at_end = False  # of what may be read: an open transaction may hide more
        self._is_careful = False  # after a failure: see which message it was
        self._undeliverable: dict[bytes, KafkaError] = {}
        self._suspects: set[bytes] = set()
        self._known: set[str] = set()
        self._missing: dict[str, float] = {}

    # From any thread.

    def start(self) -> None:
        self._thread.start()

    def ask_to_stop(self) -> None:
        self._is_stopping.set()

    def join(self, seconds: float | None = None) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def ask(self) -> int:
        """Ask whether there is nothing to do; see `has_answered`."""
        self._asked += 1
        return self._asked

    def has_answered(self, question: int) -> bool:
        """Whether, since it was asked, everything acknowledged was read and everything due was sent."""
        return self._answered >= question

    @property
    def carried_over(self) -> int:
        """The commands before this offset are not needed any more."""
        return self._position

    # The thread.

    def _run(self) -> None:
        while not self._is_stopping.is_set():
            try:
                self._own()
            except TakenOver as error:
                self._say(str(error))
                self._is_stopping.wait(2.0)  # if it is still ours then, it is taken back
            except KafkaException as error:
                self._say(error.args[0].str())
                self._is_stopping.wait(_AGAIN_S)
            except Exception as error:  # a mistake of ours: said, and begun again from the topics
                log.exception("delays, partition %d", self.index)
                self._say(repr(error))
                self._is_stopping.wait(2.0)
            finally:
                self.is_ready = False

    def _say(self, trouble: str) -> None:
        if trouble != self.trouble:
            log.warning("delays, partition %d: %s; beginning again", self.index, trouble)
        self.trouble = trouble

    def _own(self) -> None:
        """From taking the partition over to the first trouble, or the end."""
        far = FarOnDisk()
        self._consumer = Consumer(_consumer_config(self._config, self._topics))
        try:
            self._producer = Producer(_producer_config(self._config, self._topics, self.index))
            _retried(self._producer.init_transactions, self._is_stopping)
            self._at("fenced")
            self._shard = Shard(far, self._wall_ms())
            if not self._load():
                return
            self._at("loaded")
            self.trouble = None
            self.is_ready = True
            while not self._is_stopping.is_set():
                self._work()
        finally:
            self._consumer.close()
            far.close()

    # Taking over.

    def _load(self) -> bool:
        """Read what is pending, to the end; nobody else can add to it any more. False: told to stop."""
        self._position = 0
        self._consumer.assign([TopicPartition(self._topics.pending, self.index, 0)])
        last = time.monotonic()
        is_over = False
        while not is_over:
            if self._is_stopping.is_set():
                return False
            writes: dict[bytes, bytes | None] = {}
            messages = self._consumer.consume(BATCH, 0.1)
            for message in messages:
                if (error := message.error()) is not None:
                    is_over = is_over or _is_end(error)
                    continue
                key = message.key() or b""
                if key == POSITION:
                    self._position = int(message.value() or b"0")
                else:
                    writes[key] = message.value()
            if messages:
                last = time.monotonic()
                self._restore(writes)
            elif time.monotonic() - last > _CALL_S:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "what is pending cannot be read"))
        self._place(self._position)
        return True

    def _restore(self, writes: dict[bytes, bytes | None]) -> None:
        try:
            self._shard.carry_out(writes)
        except ToolkitError:  # something else has written here: what is not ours is left out
            for id_, data in writes.items():
                try:
                    self._shard.carry_out({id_: data})
                except ToolkitError:
                    self.counts.refused += 1
        self.pending = len(self._shard)

    def _place(self, position: int) -> None:
        """Read commands from there."""
        low, high = self._watermarks(self.index)
        if not low <= position <= high:
            # Deleted by hand, or the topic was made anew: what there is, is read.
            log.warning(
                "delays, partition %d: the commands begin at %d and end at %d, not at %d",
                self.index,
                low,
                high,
                position,
            )
            position = low
        self._position = self._end = position
        self._is_at_end = False
        self._consumer.assign([TopicPartition(self._topics.commands, self.index, position)])

    # Working.

    def _work(self) -> None:
        """Wait for something to do, and do it."""
        commands = self._read(self._rest_s())
        question = self._asked
        now_ms = self._wall_ms()
        self._shard.advance(now_ms)
        due_ms = self._shard.next_due_ms()
        known_ms = 0
        if (due_ms is not None and due_ms <= now_ms) or question != self._answered:
            more, is_all = self._read_to_end(BATCH - len(commands))
            commands += more
            known_ms = now_ms if is_all else 0  # those that are left come first
        step = self._shard.plan(commands, known_ms, FIRED_MAX)
        if commands or step.deliveries:
            self._carry_out(step, now_ms)
        self.pending, self.near = len(self._shard), self._shard.near
        self.next_due_ms = self._shard.next_due_ms()
        if not commands and not step.deliveries:
            self.known_until_ms = now_ms
            self._answered = question

    def _rest_s(self) -> float:
        due_ms = self._shard.next_due_ms()
        if due_ms is None:
            return self._rest
        return min(self._rest, max(0.0, (due_ms - self._wall_ms()) / 1_000))

    def _read(self, seconds: float) -> list[Command]:
        """What there is; only if there is nothing, wait."""
        messages = self._consumer.consume(BATCH, 0)
        if not messages and seconds > 0:
            first = self._consumer.poll(seconds)
            messages = [] if first is None else [first, *self._consumer.consume(BATCH - 1, 0)]
        return [command for message in messages if (command := self._taken(message)) is not None]

    def _read_to_end(self, room: int) -> tuple[list[Command], bool]:
        """The commands that are there now, or as many as there is room for; and whether that is all of them. Those of
        open transactions are waited for, whatever is behind them is hidden: it may cancel what is due."""
        _, high = self._watermarks(self.index)
        found: list[Command] = []
        began = heard = time.monotonic()
        is_patient = True
        while self._end < high and len(found) < room and not self._is_stopping.is_set():
            messages = self._consumer.consume(room - len(found), 0)
            if not messages and (first := self._consumer.poll(_SIGHT_S if self._is_at_end else _SOON_S)) is not None:
                messages = [first]
            found += [command for each in messages if (command := self._taken(each)) is not None]
            now = time.monotonic()
            if messages or self._is_at_end:
                heard = now
            elif now - heard > _CALL_S:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the commands cannot be read to their end"))
            if is_patient and now - began > _PATIENCE_S:
                is_patient = False
                log.warning(
                    "delays, partition %d: what is due waits for a transaction that is open, at offset %d of %s",
                    self.index,
                    self._end,
                    self._topics.commands,
                )
        return found, self._end >= high

    def _taken(self, message: Message) -> Command | None:
        error = message.error()
        offset = message.offset() or 0
        if error is None:
            self._end = offset + 1
            self._is_at_end = False
            return message.key() or b"", message.value()
        if _is_end(error):
            self._end = max(self._end, offset)
            self._is_at_end = True
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise KafkaException(error)
        return None

    # Transactions.

    def _carry_out(self, step: Step, now_ms: int) -> None:
        """In one transaction; afterwards it is so here, too. Trouble with one message is that message's."""
        producer = self._producer
        self._look_for_topics(step)
        failed: dict[bytes, KafkaError] = {}
        kind = "delivery" if step.deliveries else "commands"
        try:
            producer.begin_transaction()
            self._at(f"{kind} begun")
            dead = self._produce(step, failed)
            self._at(f"{kind} produced")
            if failed:
                raise _Undeliverable  # noqa: TRY301  the same way out as when the cluster refuses
            _retried(producer.commit_transaction, self._is_stopping)
        except (KafkaException, _Undeliverable) as error:
            self._abort(error, failed)
            return
        self._at(f"{kind} committed")
        self._position = self._end
        self._shard.carry_out(step.writes)
        self._at(f"{kind} applied")
        self._is_careful = False
        undeliverable, self._undeliverable = self._undeliverable, {}
        self._suspects.clear()
        late = max((now_ms - delayed.due_ms for _, delayed in step.deliveries), default=0)
        delivered = len(step.deliveries) - dead
        retries = sum(each.is_retry and id_ not in undeliverable for id_, each in step.deliveries)
        self.counts.add(DelayCounts(step.scheduled, step.cancelled, delivered, dead, step.refused, late, retries))

    def _abort(self, error: KafkaException | _Undeliverable, failed: dict[bytes, KafkaError]) -> None:
        """Undo the step, so that it is made again; raises if that is not possible."""
        if isinstance(error, KafkaException):
            kind = error.args[0]
            # A transaction that has failed already takes no more messages: `_STATE`.
            if kind.fatal() or not (kind.txn_requires_abort() or kind.code() == KafkaError._STATE):
                if kind.code() in _FENCED:
                    raise TakenOver("another relay has taken it over") from error
                raise error
            log.warning("delays, partition %d: %s; tried again", self.index, kind.str())
        _retried(self._producer.abort_transaction, self._is_stopping)
        self._producer.flush(_REPORTS_S)  # why, message by message
        # A batch is refused as a whole: who failed beside others is only a suspect, and goes alone the next time.
        guilty = {id_: error for id_, error in failed.items() if id_ in self._suspects}
        self._undeliverable |= guilty
        if guilty:
            self._suspects -= guilty.keys()
        else:  # or something else was the matter, and the suspects stay
            self._suspects |= failed.keys()
        self._is_careful = True
        self._place(self._position)  # the commands of the step are read again
        if not failed:
            self._is_stopping.wait(_AGAIN_S)

    def _look_for_topics(self, step: Step) -> None:
        """A topic that is not there would hold up the whole step for a while."""
        for topic in {delayed.topic for _, delayed in step.deliveries} - self._known:
            if self._is_there(topic):
                self._known.add(topic)
                continue
            error = KafkaError(KafkaError._UNKNOWN_TOPIC, f"there is no topic {topic}")
            self._undeliverable |= {id_: error for id_, delayed in step.deliveries if delayed.topic == topic}

    def _is_there(self, topic: str) -> bool:
        """Asked for a while: a broker that makes topics when they are asked for says at first that there is none."""
        began = time.monotonic()
        if began - self._missing.get(topic, -_MISSING_S) < _MISSING_S:
            return False
        while True:
            found = self._producer.list_topics(topic, timeout=_CALL_S).topics.get(topic)
            if found is not None and (found.error is None or found.error.code() not in _MISSING):
                return True
            if found is not None and found.error.code() == KafkaError.TOPIC_EXCEPTION:
                return False  # no topic can have such a name
            if self._is_stopping.wait(0.1) or time.monotonic() - began > _MADE_S:
                self._missing[topic] = time.monotonic()
                return False

    def _produce(self, step: Step, failed: dict[bytes, KafkaError]) -> int:
        """How many went to the dead letters; `failed` are those that cannot be delivered."""
        topics, dead = self._topics, 0
        for id_, delayed in step.deliveries:
            if (error := self._undeliverable.get(id_)) is not None:
                dead += 1
                headers = _dead_headers(id_, delayed, error, topics)
                self._send(topics.dead, delayed.value, delayed.key, headers, None, None)
                continue
            noted = _noting(failed, id_) if self._is_careful else None
            headers = entry.delivered_headers(id_, delayed)
            if id_ in self._suspects:
                self._producer.flush(_CALL_S)
            try:
                self._send(delayed.topic, delayed.value, delayed.key, headers, delayed.partition, noted)
            except KafkaException as refused:
                if failed and refused.args[0].code() == KafkaError._STATE:
                    return dead
                if refused.args[0].code() not in _HOPELESS:
                    raise
                failed[id_] = refused.args[0]
                self._suspects.add(id_)  # the client itself knows
            if id_ in self._suspects:
                self._producer.flush(_CALL_S)
        for id_, data in step.writes.items():
            self._send(topics.pending, data, id_, None, self.index, None)
        self._send(topics.pending, b"%d" % self._end, POSITION, None, self.index, None)
        if self._is_careful:
            self._producer.flush(_CALL_S)
        return dead

    def _send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: list[letters.Header] | None,
        partition: int | None,
        noted: Callable[[KafkaError | None, Any], None] | None,
    ) -> None:
        more: dict[str, Any] = {} if noted is None else {"on_delivery": noted}
        if headers is not None:
            more["headers"] = headers
        while True:
            try:
                self._producer.produce(topic, value, key, partition=-1 if partition is None else partition, **more)
            except BufferError:
                self._producer.poll(0.05)
            else:
                return


class _Undeliverable(Exception):
    """Some of the step's messages can never be delivered."""


def _retried(call: Callable[[float], None], stopping: threading.Event) -> None:
    """Again while the cluster says that it helps."""
    while True:
        try:
            call(_CALL_S)
        except KafkaException as error:
            if not error.args[0].retriable() or stopping.is_set():
                raise
        else:
            return


def _is_end(error: KafkaError) -> bool:
    return bool(error.code() == KafkaError._PARTITION_EOF)


def _noting(failed: dict[bytes, KafkaError], id_: bytes) -> Callable[[KafkaError | None, Any], None]:
    def noted(error: KafkaError | None, _: Any) -> None:
        if error is not None and error.code() in _HOPELESS:
            failed[id_] = error

    return noted


def _dead_headers(id_: bytes, delayed: Delayed, error: KafkaError, topics: DelayTopics) -> list[letters.Header]:
    origin = letters.Origin(delayed.topic, -1, delayed.due_ms, delayed.due_ms, "CreateTime")
    reason = SendFailed(f"{delayed.topic}: {error.str()}", is_retriable=False)
    headers = entry.delivered_headers(id_, delayed)
    return letters.for_dead_letter(headers, origin, topics.group, reason, 1)


def _consumer_config(config: Mapping[str, Any], topics: DelayTopics) -> dict[str, Any]:
    return {
        "log_level": 2,
        "queued.max.messages.kbytes": 16_384,
        "fetch.wait.max.ms": 100,
        **config,
        "group.id": topics.group,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
    }


def _producer_config(config: Mapping[str, Any], topics: DelayTopics, index: int) -> dict[str, Any]:
    return {
        "log_level": 2,
        "linger.ms": 5,
        "partitioner": "murmur2_random",
        "topic.metadata.propagation.max.ms": 5_000,
        "transaction.timeout.ms": 30_000,
        # librdkafka 2.16 otherwise forgets the coordinator, and who waits for it, when all brokers are away at once.
        "metadata.recovery.strategy": "none",
        **config,
        "transactional.id": topics.transactional_id(index),
    }
