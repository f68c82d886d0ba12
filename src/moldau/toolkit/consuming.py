"""The one thread that owns a consumer: it polls, pauses, commits and seeks; everybody else asks it to.

What happens is posted to the event loop (`consumer_events.py`), what is wanted comes through a queue of commands. The
thread polls whatever the handlers do, so the group's `max.poll.interval.ms` is kept by handlers that take an hour;
messages are handed over in batches, on credit (`Credit`).

Invariants: no other thread calls the consumer. What the loop has not answered for is within the credit, and it answers
(`taken`) only after it has asked for the pauses that those messages make necessary; the thread looks at its credit
first and carries out commands then. So nothing is read from a full partition but what was in transit when it filled.
Every batch says to which assignment (generation) of its partition it belongs. The position jumps only where we say so:
a reset is answered here, as a new assignment. A commit that fails ends nothing: it is told, and made again. After a
callback that called the client, the running poll ends (`_Yield`): the client (confluent-kafka) keeps one state per
thread, loses that of the poll by the inner call, and would abort the process at the next callback of the same poll. For
the same reason it has no other callbacks.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from moldau.toolkit import offset_map, positions
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
from moldau.toolkit.positions import Reset, Start
from moldau.toolkit.scheduler import Where

log = logging.getLogger("moldau.toolkit")

_POLL_S = 0.02
_HOLD_S_MAX = 1.0  # so long records may wait in the client before their partitions are paused
_CALL_S = 15.0
_LOG_AGAIN_S = 30.0


Keep = Callable[[int, Sequence[Start], bool], Sequence[Start]]
"""Told of every assignment before it is read: its generation, where it would begin, and whether somebody sought there.
Returns where to begin; whoever keeps offsets elsewhere (a database) knows better. Nothing: do not read them."""


def _as_they_are(_generation: int, starts: Sequence[Start], _is_moved: bool) -> Sequence[Start]:
    return starts


class _Yield(Exception):
    """Raised through the client to have it return from a poll."""


class ConsumerThread:
    """Runs from `start` until `close` or a fatal error."""

    def __init__(
        self,
        config: Mapping[str, Any],
        topics: Callable[[Iterable[str]], list[str]],
        post: Callable[[Event], None],
        *,
        reset: Reset,
        drain_s: float,
        batch_size: int,
        refresh_s: float,
        wall_ms: Callable[[], int],
        keep: Keep = _as_they_are,
    ) -> None:
        """`topics` says which of the topics there are to subscribe to (and those that are not there yet)."""
        self._keep = keep
        self._config = dict(config)
        self._topics = topics
        self._post = post
        self._reset = reset
        self._drain_s = drain_s
        self._batch_size = batch_size
        self._refresh_s = refresh_s
        self._wall_ms = wall_ms
        self._commands: deque[tuple[Callable[[Consumer], Any], Future[Any]]] = deque()
        self._thread = threading.Thread(target=self._run, name="moldau-consumer", daemon=True)
        self._closing = False
        self._generation = 0
        self._generations: dict[Where, int] = {}
        self._begun: dict[Where, int] = {}
        strategy = str(self._config.get("partition.assignment.strategy", ""))
        self._is_cooperative = "cooperative" in strategy or self._config.get("group.protocol") == "consumer"
        self._wanted_paused: set[Where] = set()  # by the scheduler
        self._paused_for_now: set[Where] = set()  # by ourselves, while the loop takes nothing in
        self._next_refresh = 0.0
        self._is_polling = False
        self._is_held = False
        self._credit = Credit(batch_size, 1)
        self._in_transit = 0
        self._in_transit_bytes = 0
        self._lock = threading.Lock()
        self._known_topics: frozenset[str] = frozenset()
        self._subscribed: list[str] = []
        self._said: dict[str, float] = {}
        self._consumer: Consumer

    # From any thread.

    def start(self, credit: Credit) -> None:
        self._credit = credit
        self._thread.start()

    def ask(self, command: Callable[[Consumer], Any]) -> Future[Any]:
        """Have the thread run something with its consumer, between two polls."""
        answer: Future[Any] = Future()
        self._commands.append((command, answer))
        if not self._thread.is_alive():
            self._refuse_commands()
        return answer

    def taken(self, count: int, size: int) -> None:
        """The loop has taken in so many messages, and asked for all pauses that follow from that."""
        with self._lock:
            self._in_transit -= count
            self._in_transit_bytes -= size

    @property
    def is_paused_for_now(self) -> bool:
        """Whether partitions are paused because the loop takes nothing in."""
        return bool(self._paused_for_now)

    def hold(self, is_held: bool) -> None:
        """Leave records in the client for a moment; what lasts longer is paused."""
        self._is_held = is_held

    def pause(self, wheres: Iterable[Where]) -> None:
        wanted = set(wheres)

        def pause(_: Consumer) -> None:
            self._wanted_paused |= wanted & self._generations.keys()
            self._pause(wanted)

        self.ask(pause)

    def resume(self, wheres: Iterable[Where]) -> None:
        wanted = set(wheres)

        def resume(_: Consumer) -> None:
            self._wanted_paused -= wanted
            self._resume(wanted - self._paused_for_now)

        self.ask(resume)

    def commit(self, offsets: Mapping[Where, tuple[int, str]]) -> Future[None]:
        """Commit; the outcome is posted as `Committed`, and the future's."""
        return self.ask(lambda _: self._commit(offsets))

    def seek(self, where: Where, offset: int) -> Future[None]:
        """Read on from there: a new assignment of the partition, with nothing finished."""
        return self.ask(lambda _: self._jump(where, offset))

    def seek_time(self, topic: str, wall_ms: int) -> Future[list[Where]]:
        """The same for all our partitions of a topic, by time."""

        def jump(_: Consumer) -> list[Where]:
            mine = [where for where in self._generations if where[0] == topic]
            for where, offset in self.offsets_at(dict.fromkeys(mine, wall_ms)).items():
                self._jump(where, offset)
            return mine

        return self.ask(jump)

    def ends(self) -> Future[Mapping[Where, int]]:
        """Where the log of each assigned partition ends now."""
        return self.ask(lambda _: self.offsets_at(dict.fromkeys(self._generations, positions.END)))

    def metadata(self) -> Future[Any]:
        """The group's generation and our place in it: what fences a transaction. None: we have no place any more."""
        return self.ask(_fencing)

    def begin_again(self) -> Future[None]:
        """Read everything assigned on from what is committed, as if it were assigned now."""

        def begin(_: Consumer) -> None:
            for start in self._starts(list(self._generations)):
                self._jump(start.where, start.offset, start)

        return self.ask(begin)

    def take_again(self, where: Where, generation: int) -> Future[None]:
        """Read one partition on as if it were assigned now, unless it was meanwhile; refused unless the group's own
        generation is still ours."""

        def take(consumer: Consumer) -> None:
            for start in self._starts([where]) if self._generations.get(where) == generation else ():
                offset, metadata = self.committed([where]).get(where, (start.offset, _anchored(start)))
                consumer.commit(offsets=_partitions({where: (offset, metadata or "")}), asynchronous=False)
                self._jump(where, start.offset, start)

        return self.ask(take)

    @property
    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """Leave the group and end. What is to be committed was committed before, or is asked for once more."""
        self._closing = True

    def join(self, seconds: float | None = None) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()

    # The thread.

    def _run(self) -> None:
        try:
            self._consumer = Consumer(self._config)
        except Exception as error:  # a setting nobody knows
            self._post(Trouble(f"the consumer cannot be made: {error}", is_fatal=True))
            self._refuse_commands()
            return
        try:
            self._loop()
        except Exception as error:  # everything expected is handled where it happens
            log.exception("the consumer's thread ended")
            self._post(Trouble(f"the consumer's thread ended: {error!r}", is_fatal=True))
        finally:
            try:
                self._consumer.close()
            except Exception:  # it is over in any case, and the group's session will end by itself
                log.exception("closing the consumer failed")
            self._refuse_commands()

    def look_again(self) -> None:
        """A command: see at once which topics there are."""
        self._next_refresh = 0.0

    def _loop(self) -> None:
        held_since: float | None = None
        while not self._closing:
            room = self._room()  # before the commands: see the module
            self._run_commands()
            now = time.monotonic()
            if now >= self._next_refresh:
                found = self._subscribe()
                self._next_refresh = now + (self._refresh_s if found else 0.5)
            if self._is_held or not room:
                held_since = held_since if held_since is not None else now
                if now - held_since < _HOLD_S_MAX:
                    time.sleep(0.002)  # nobody calls when the handlers have caught up; commands are looked at meanwhile
                    continue
                self._pause_all_for_now()
                self._poll(1)
                continue
            held_since = None
            if self._paused_for_now:
                self._resume([where for where in self._paused_for_now if where not in self._wanted_paused])
                self._paused_for_now.clear()
            self._poll(room)

    def _room(self) -> int:
        """How many messages may be read now."""
        with self._lock:
            if self._in_transit_bytes >= self._credit.bytes:
                return 0
            return max(0, min(self._batch_size, self._credit.messages - self._in_transit))

    def _poll(self, count: int) -> None:
        # What has been fetched comes at once; only if there is nothing, wait. Each call may wait for the interpreter.
        if messages := self._consumer.consume(count, 0):
            self._take(messages)
            return
        self._is_polling = True
        try:
            first = self._consumer.poll(_POLL_S)
        except _Yield:
            return
        finally:
            self._is_polling = False
        if first is not None:
            self._take([first])

    def _yield(self) -> None:
        """End the running poll. Not a `consume`: it would throw away what it has read; and there it has no timeout."""
        if self._is_polling:
            raise _Yield

    def _take(self, messages: Sequence[Message]) -> None:
        """Hand records over, partition by partition."""
        # Most batches are of one partition and without an error, and C sees that for all messages at once.
        if (
            len(set(map(Message.partition, messages))) == 1
            and len(set(map(Message.topic, messages))) == 1
            and not any(map(Message.error, messages))
        ):
            self._hand((messages[0].topic() or "", messages[0].partition() or 0), messages)
            return
        records: list[Message] = []
        topic: str | None = None
        index: int | None = None
        for message in messages:
            if message.partition() != index or message.topic() != topic:
                self._hand((topic or "", index or 0), records)
                topic, index, records = message.topic(), message.partition(), []
            error = message.error()
            if error is None:
                records.append(message)
                continue
            where = (topic or "", index or 0)
            self._hand(where, records)
            records = []
            if error.code() != KafkaError._PARTITION_EOF:
                self._on_error(where, error)
            elif (generation := self._generations.get(where)) is not None:
                self._post(Reached(where, generation, message.offset() or 0))
        self._hand((topic or "", index or 0), records)

    def _hand(self, where: Where, records: Sequence[Message]) -> None:
        generation = self._generations.get(where)
        if records and generation is not None:
            size = sum(map(len, records))
            with self._lock:
                self._in_transit += len(records)
                self._in_transit_bytes += size
            self._post(Arrived(where, generation, records, size))

    def _run_commands(self) -> None:
        while self._commands:
            command, answer = self._commands.popleft()
            if not answer.set_running_or_notify_cancel():
                continue
            try:
                answer.set_result(command(self._consumer))
            except Exception as error:  # the asker gets it
                answer.set_exception(error)

    def _refuse_commands(self) -> None:
        while self._commands:
            _, answer = self._commands.popleft()
            if answer.set_running_or_notify_cancel():
                answer.set_exception(RuntimeError("the consumer is closed"))

    def _subscribe(self) -> bool:
        try:
            found = frozenset(self._consumer.list_topics(timeout=_CALL_S).topics)
        except KafkaException as error:
            self._say(f"no broker answers ({error.args[0].str()}); trying on")
            return False
        # One that vanished is new when it is there again.
        self._known_topics = self._known_topics & found if self._subscribed else found
        wanted = self._topics(found)
        if wanted and set(wanted) != set(self._subscribed):
            self._consumer.subscribe(
                wanted, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
            )
            self._subscribed = wanted
        return True

    # Assignments; called by the client inside poll.

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        wheres = [(each.topic, each.partition) for each in partitions]
        starts = self._starts(wheres) if wheres else []
        self._generation += 1
        starts = list(self._keep(self._generation, starts, False)) if starts else []
        placed = [TopicPartition(start.where[0], start.where[1], start.offset) for start in starts]
        if self._is_cooperative:
            consumer.incremental_assign(placed)
        else:
            consumer.assign(placed)
        for start in starts:
            self._generations[start.where] = self._generation
            self._begun[start.where] = start.offset
            self._unpaused(start.where)
        if starts:
            self._post(Assigned(self._generation, starts))
        self._yield()

    def _starts(self, wheres: list[Where]) -> list[Start]:
        """Ask until answered: without knowing where to begin there is nothing to read. Heartbeats go on meanwhile."""
        while not self._closing:
            try:
                starts = positions.starting_points(self, wheres, self._reset, self._known_topics, self._wall_ms())
                first = {s.where: (s.offset, _anchored(s)) for s in starts if s.is_first}
                if first and self._reset == "latest":
                    self._consumer.commit(offsets=_partitions(first), asynchronous=False)
            except KafkaException as error:
                kind = error.args[0]
                if kind.code() in (KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID):
                    return []  # the group went on without us, and will tell
                if kind.code() == KafkaError.REBALANCE_IN_PROGRESS:
                    return starts
                self._say(f"cannot find out where to begin ({kind.str()}); trying on")
                time.sleep(0.2)  # between two tries, on the consumer's own thread
            else:
                return starts
        return []

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        wheres = [(each.topic, each.partition) for each in partitions]
        mine = [where for where in wheres if where in self._generations]
        if mine and not self._closing:  # at the end everything was committed before
            answer: Future[Mapping[Where, tuple[int, str]]] = Future()
            self._post(Revoking(mine, self._drain_s, answer, _fencing(consumer)))
            try:
                offsets = answer.result(self._drain_s + 2.0)
                if offsets:
                    self._commit(offsets)
            except TimeoutError:
                log.warning("the event loop did not answer in time; what it finished last may be repeated")
            except KafkaException:
                log.warning(
                    "the last commit before a rebalance failed; what was finished since the one before is repeated"
                )
        self._forget(consumer, partitions, mine, is_lost=False)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._forget(consumer, partitions, [(each.topic, each.partition) for each in partitions], is_lost=True)

    def _forget(
        self, consumer: Consumer, partitions: list[TopicPartition], wheres: Sequence[Where], *, is_lost: bool
    ) -> None:
        for where in wheres:
            self._generations.pop(where, None)
            self._unpaused(where)
        if self._is_cooperative:
            consumer.incremental_unassign(partitions)
        else:
            consumer.unassign()
        if wheres:
            self._post(Removed(wheres, is_lost))
        self._yield()

    # Commands.

    def _pause(self, wheres: Iterable[Where]) -> None:
        mine = [where for where in wheres if where in self._generations]
        if mine:
            self._consumer.pause([TopicPartition(*where) for where in mine])

    def _pause_all_for_now(self) -> None:
        more = self._generations.keys() - self._paused_for_now - self._wanted_paused
        self._pause(more)
        self._paused_for_now |= more

    def _resume(self, wheres: Iterable[Where]) -> None:
        mine = [where for where in wheres if where in self._generations]
        if mine:
            self._consumer.resume([TopicPartition(*where) for where in mine])

    def _commit(self, offsets: Mapping[Where, tuple[int, str]]) -> None:
        mine = {where: told for where, told in offsets.items() if where in self._generations}
        if not mine:
            return
        try:
            done = self._consumer.commit(offsets=_partitions(mine), asynchronous=False)
        except KafkaException as error:
            # A rebalance is going on, or the coordinator moved: it is made again, or the partitions are taken away.
            self._post(Committed(mine, error.args[0].str()))
            raise
        failed = next((each.error for each in done or () if each.error is not None), None)
        self._post(Committed(mine, failed.str() if failed is not None else None))
        if failed is not None:
            raise KafkaException(failed)

    def _jump(self, where: Where, offset: int, start: Start | None = None) -> None:
        if where not in self._generations:
            raise ValueError(f"{where[0]}-{where[1]} is not assigned to this member")
        self._generation += 1
        begun = self._keep(self._generation, [start or Start(where, offset, offset_map.NOTHING)], start is None)
        if not begun:
            return  # the app is stopping
        offset = begun[0].offset
        # Not `seek`: that is refused where the position has been lost. A new assignment always works.
        if self._is_cooperative:
            self._consumer.incremental_unassign([TopicPartition(*where)])
            self._consumer.incremental_assign([TopicPartition(where[0], where[1], offset)])
        else:
            others = [TopicPartition(*each) for each in self._generations if each != where]
            placed = [TopicPartition(p.topic, p.partition, self._place(p)) for p in self._consumer.position(others)]
            self._consumer.assign([*placed, TopicPartition(where[0], where[1], offset)])
            self._pause((self._wanted_paused | self._paused_for_now) - {where})
        self._unpaused(where)
        self._generations[where] = self._generation
        self._begun[where] = offset
        self._post(Assigned(self._generation, begun))

    def _unpaused(self, where: Where) -> None:
        """A new assignment is not paused."""
        self._wanted_paused.discard(where)
        self._paused_for_now.discard(where)

    def _place(self, position: TopicPartition) -> int:
        """Where a partition is read on from; one that gave nothing yet has no position."""
        return position.offset if position.offset >= 0 else self._begun[position.topic, position.partition]

    def _on_error(self, where: Where, error: KafkaError) -> None:
        if error.code() == KafkaError._AUTO_OFFSET_RESET and where in self._generations:
            self._post(
                Trouble(f"{where[0]}-{where[1]}: {error.str()}: what was not read there is gone; from its start")
            )
            self._jump(where, self.offsets_at({where: positions.BEGINNING})[where])
        elif error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
            self._known_topics -= {where[0]}
            self._say(f"{where[0]} does not exist (any more); it is read as soon as it does")
        else:
            self._say(error.str())

    def _say(self, text: str) -> None:
        now = time.monotonic()
        if now - self._said.get(text, -_LOG_AGAIN_S) >= _LOG_AGAIN_S:
            self._said = {key: when for key, when in self._said.items() if now - when < _LOG_AGAIN_S} | {text: now}
            self._post(Trouble(text))

    # What positions asks of the cluster.

    def partition_count(self, topic: str) -> int:
        return len(self._consumer.list_topics(topic, timeout=_CALL_S).topics[topic].partitions)

    def committed(self, wheres: Iterable[Where]) -> dict[Where, tuple[int, str | None]]:
        found = self._consumer.committed([TopicPartition(*where) for where in wheres], timeout=_CALL_S)
        for each in found:
            if each.error is not None:
                raise KafkaException(each.error)
        return {(each.topic, each.partition): (each.offset, each.metadata) for each in found if each.offset >= 0}

    def offsets_at(self, when: Mapping[Where, int]) -> dict[Where, int]:
        if not when:
            return {}
        asked = [TopicPartition(topic, index, at) for (topic, index), at in when.items()]
        found = self._consumer.offsets_for_times(asked, timeout=_CALL_S)
        for each in found:
            if each.error is not None:
                raise KafkaException(each.error)
        offsets = {(each.topic, each.partition): each.offset for each in found}
        late = {
            where: positions.END for where, offset in offsets.items() if offset < 0 and when[where] != positions.END
        }
        return offsets | (self.offsets_at(late) if late else {})


def _fencing(consumer: Consumer) -> Any:
    """The metadata of a member.

    A client whose session is over hands out metadata without a member and a generation until the loss was polled, and
    brokers take transactions with such metadata from anybody. Its main thread answers both calls, in turn, and gives
    itself no new member id before that poll: if there is one afterwards, it was in the metadata.
    """
    metadata = consumer.consumer_group_metadata()
    return metadata if consumer.memberid() else None


def _anchored(start: Start) -> str:
    return offset_map.encode(start.offset, (), start.noted.anchor)


def _partitions(offsets: Mapping[Where, tuple[int, str]]) -> list[TopicPartition]:
    return [TopicPartition(topic, index, offset, metadata) for (topic, index), (offset, metadata) in offsets.items()]
