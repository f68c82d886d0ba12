"""The thread that keeps the snapshot: round after round it asks the cluster, and never in a hurry.

Invariants: pages read `snapshot`, which is replaced whole. A round that fails leaves what was known and says so. The
thread works at most a quarter of the time, so that a large cluster is asked less often, not all the time.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace

from moldau.client.connection import BrokerError, ClientError
from moldau.console.cluster import gathering
from moldau.console.cluster.asking import Asker
from moldau.console.cluster.building import Known, build_brokers, build_groups, build_topics
from moldau.console.cluster.changes import Changes
from moldau.console.cluster.health import alerts
from moldau.console.cluster.history import History
from moldau.console.cluster.model import EMPTY, Quorum, Snapshot, Where
from moldau.wire.messages import MetadataResponse

log = logging.getLogger("moldau.console")

_SIZES_EVERY = 6  # rounds: sizes are the one question that makes brokers look at their disks
_DUTY = 4  # for a second of work, so many seconds of a round
_STOP_S = 5.0


class Watcher:
    def __init__(
        self, asker: Asker, refresh_s: float, extra: Callable[[], dict[Hashable, float]] | None = None
    ) -> None:
        """`extra` are more numbers to keep over time, asked for in each round (of pipelines)."""
        self.snapshot: Snapshot = EMPTY
        self.history = History()
        self.changes = Changes()
        self._asker = asker
        self._refresh_s = refresh_s
        self._extra = extra
        self._known = Known()
        self._wake = threading.Event()
        self._is_over = False
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._next: asyncio.Event | None = None

    def start(self) -> None:
        """From the loop that will wait for snapshots."""
        self._loop = asyncio.get_running_loop()
        self._next = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="moldau-console-watch", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        self._is_over = True
        self._wake.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, _STOP_S)
        self._asker.close()

    def sizes(self) -> Mapping[int, Mapping[Where, int]]:
        """The bytes of replicas, by broker, as they were when sizes were last asked for."""
        return dict(self._known.sizes)

    def look_now(self) -> None:
        self._wake.set()

    async def after(self, number: int, timeout_s: float) -> bool:
        """Wait for a snapshot newer than `number`; False if none came in time."""
        assert self._next is not None
        deadline = time.monotonic() + timeout_s
        while self.snapshot.number <= number:
            event = self._next
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            try:
                await asyncio.wait_for(event.wait(), left)
            except TimeoutError:
                return False
        return True

    def _publish(self, snapshot: Snapshot) -> None:
        self.changes.note(self.snapshot, snapshot)
        alerts(snapshot)  # and with them the sums that pages show: made here, not while somebody waits
        _ = snapshot.partitions, snapshot.rate, snapshot.lag
        self.snapshot = snapshot
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self._announce)
            except RuntimeError:  # the loop is closed: the console ends
                self._is_over = True

    def _announce(self) -> None:
        if self._next is not None:
            self._next.set()
            self._next = asyncio.Event()

    def _run(self) -> None:
        rounds = 0
        while not self._is_over:
            started = time.monotonic()
            self._wake.clear()
            try:
                self.look(with_sizes=rounds % _SIZES_EVERY == 0)
            except Exception:  # the thread must not die of what nobody foresaw
                log.exception("a round of the console's watch failed; the next one is tried")
            rounds += 1
            took = time.monotonic() - started
            pause = max(self._refresh_s - took, took * (_DUTY - 1) if took > self._refresh_s / _DUTY else 0.0)
            self._wake.wait(pause)

    def look(self, *, with_sizes: bool = True) -> Snapshot:
        """One round."""
        started = time.monotonic()
        problems: list[str] = []
        before = self.snapshot
        try:
            answer = gathering.metadata(self._asker)
        except ClientError as error:
            self._publish(replace(before, number=before.number + 1, problems=(_away(error),)))
            return self.snapshot
        at_ms = time.time_ns() // 1_000_000
        self._gather_offsets(answer)
        alive = [row.node_id for row in answer.brokers]
        for broker in alive:
            self._gather_broker(broker, with_sizes, problems)
        self._known.groups = {number: groups for number, groups in self._known.groups.items() if number in alive}
        quorum = self._gather_quorum(problems)
        groups = build_groups(self._known, at_ms)
        topics = build_topics(answer, self._known, groups.values())
        snapshot = Snapshot(
            before.number + 1,
            at_ms,
            time.monotonic() - started,
            answer.cluster_id or "",
            quorum.leader if quorum else answer.controller_id,
            build_brokers(answer, self._known, topics.values()),
            topics,
            groups,
            quorum,
            tuple(problems),
        )
        self._note(snapshot)
        self._publish(snapshot)
        return snapshot

    def _gather_offsets(self, answer: MetadataResponse) -> None:
        leaders: defaultdict[int, defaultdict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for topic in answer.topics:
            for partition in topic.partitions:
                if partition.leader_id >= 0:
                    leaders[partition.leader_id][topic.name or ""].append(partition.partition_index)
        ends = gathering.offsets(self._asker, leaders, gathering.LATEST)
        known = self._known
        there = {(topic.name or "", each.partition_index) for topic in answer.topics for each in topic.partitions}
        kept = {where: end for where, end in known.ends.items() if where in there and where not in ends}
        known.note_ends(time.time_ns() // 1_000_000, {**kept, **ends})
        starts = gathering.offsets(self._asker, leaders, gathering.EARLIEST)
        known.starts = {where: starts.get(where, known.starts.get(where, -1)) for where in there}

    def _gather_broker(self, broker: int, with_sizes: bool, problems: list[str]) -> None:
        known = self._known
        try:
            known.answers[broker] = gathering.answer_s(self._asker, broker)
            known.groups[broker] = gathering.groups_of(self._asker, broker)
            if with_sizes or broker not in known.dirs:
                known.dirs[broker], known.sizes[broker] = gathering.log_dirs(self._asker, broker)
        except ClientError as error:
            known.answers.pop(broker, None)
            problems.append(f"broker {broker}: {error}")

    def _gather_quorum(self, problems: list[str]) -> Quorum | None:
        try:
            return gathering.quorum(self._asker)
        except BrokerError as error:
            problems.append(str(error))
        except ClientError:
            pass  # it does not speak of a quorum: before KRaft there was none
        return None

    def _note(self, snapshot: Snapshot) -> None:
        values: dict[Hashable, float] = {
            "lag": float(snapshot.lag),
            "short": float(sum(topic.short for topic in snapshot.topics.values())),
            "leaderless": float(sum(topic.leaderless for topic in snapshot.topics.values())),
        }
        if self._known.rates:  # the first round knows none
            values["rate"] = snapshot.rate
            values |= {
                ("topic", each.name): each.rate for each in snapshot.topics.values() if each.rate or each.records
            }
        for group in snapshot.groups.values():
            values["group", group.name] = float(group.lag)
            for name in group.topics:
                lag = sum(position.lag for (topic, _), position in group.positions.items() if topic == name)
                values["group", group.name, name] = float(lag)
        for broker in snapshot.brokers.values():
            if self._known.rates:
                values["broker", broker.id] = broker.rate
            values["broker-short", broker.id] = float(broker.short)
            if broker.answer_s is not None:
                values["broker-answer", broker.id] = round(broker.answer_s * 1_000, 3)
        if self._extra is not None:
            values.update(self._extra())
        self.history.note(snapshot.at_ms, values)


def _away(error: ClientError) -> str:
    return f"No broker answers: {error}"
