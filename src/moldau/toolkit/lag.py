"""Lag: how far a group is behind, in records and in seconds, where it is going, and whether somebody should look.

A number says little: a million records behind and catching up is fine, ten behind and standing still is not. So the
judgement is over a window of measurements, as in Burrow: `ok`, `slow` (falls behind), `stalled` (members are there,
and nothing moves), `stopped` (nobody is there, and records wait). Spark queries that publish their progress as a group
(`publishProgress`) never have members and are seen by their offsets: they are judged by whether these move.

Groups, offsets and members are asked for with `moldau.client`: librdkafka's AdminClient (2.16) brings the process down
when a coordinator moves while it is asked, and a monitor asks for weeks. Only the age of a record is a consumer's job.
"""

from __future__ import annotations

import json
import logging
import subprocess
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Literal

from confluent_kafka import Consumer, TopicPartition

from moldau.client.cluster import Cluster
from moldau.client.connection import BrokerError
from moldau.client.settings import ClientSettings, parse_client_settings
from moldau.toolkit.reading import reader
from moldau.toolkit.scheduler import Where
from moldau.wire import ErrorCode

log = logging.getLogger("moldau.toolkit")

Judgement = Literal["ok", "slow", "stalled", "stopped"]

_SECONDS = 15.0
_PAUSE_SECONDS = 0.2
_LATEST = -1
_TIMESTAMP_SECONDS = 3.0


@dataclass(slots=True, frozen=True)
class Sample:
    """One measurement of one partition."""

    at_ms: int
    committed: int
    end: int

    @property
    def lag(self) -> int:
        return max(0, self.end - self.committed)


@dataclass(slots=True, frozen=True)
class PartitionLag:
    """How one partition of a group is doing."""

    group: str
    topic: str
    partition: int
    committed: int
    end: int
    lag: int
    seconds: float | None  # age of the first record not committed; None where it could not be read
    trend: float  # records a second, over the window; above zero the lag grows
    members: int
    judgement: Judgement


def judge(samples: Sequence[Sample], members: int, *, has_no_membership: bool = False) -> Judgement:
    """What a window of measurements says, oldest first. A group without membership (Spark's) only ever has offsets."""
    last = samples[-1]
    if last.lag == 0:
        return "ok"
    if len(samples) == 1:
        return "ok" if members or has_no_membership else "stopped"
    first = samples[0]
    if last.committed == first.committed:
        if first.lag == 0:
            return "ok"  # the records came within the window
        return "stalled" if members else "stopped"
    # It moves. It is slow if the lag never shrank in the window and is larger at its end.
    lags = [sample.lag for sample in samples]
    is_growing = all(later >= earlier for earlier, later in pairwise(lags))
    return "slow" if is_growing and lags[-1] > lags[0] and len(samples) > 2 else "ok"


def trend(samples: Sequence[Sample]) -> float:
    """How fast the lag grows, in records a second."""
    first, last = samples[0], samples[-1]
    seconds = (last.at_ms - first.at_ms) / 1_000
    return (last.lag - first.lag) / seconds if seconds > 0 else 0.0


Alert = Callable[[PartitionLag, Judgement], None]
"""Called with the new state and the judgement before it."""


class LagMonitor:
    """Measures groups again and again; each `measure` is one sample in the window."""

    def __init__(
        self,
        config: Mapping[str, Any],
        groups: Sequence[str] = (),
        *,
        window: int = 10,
        alerts: Sequence[Alert] = (),
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """All groups, if none are named."""
        self._config = {"log_level": 0, **config}
        self._groups = list(groups)
        self._window = window
        self._alerts = list(alerts)
        self._wall_ms = wall_ms
        self._settings = _client_settings(config)
        self._samples: dict[tuple[str, Where], deque[Sample]] = {}
        self._judged: dict[tuple[str, Where], Judgement] = {}

    def measure(self) -> list[PartitionLag]:
        """Ask the cluster once. Blocks."""
        consumer = reader(self._config)
        try:
            with Cluster(self._settings, pause_s=_PAUSE_SECONDS, patience_s=_SECONDS) as cluster:
                return self._measure(cluster, consumer)
        finally:
            consumer.close()

    def _measure(self, cluster: Cluster, consumer: Consumer) -> list[PartitionLag]:
        groups = self._groups or cluster.groups()
        committed = {group: _committed(cluster, group) for group in groups}
        members = {group: _members(cluster, group) for group in groups if committed[group]}
        ends = _ends(cluster, {where for offsets in committed.values() for where in offsets})
        now = self._wall_ms()
        found = []
        kept = {}
        for group, offsets in committed.items():
            seconds = _ages(consumer, {w: o for w, o in offsets.items() if o < ends.get(w, 0)}, now)
            for where, offset in sorted(offsets.items()):
                if where not in ends:
                    continue  # the topic is gone
                key = (group, where)
                samples = kept[key] = self._samples.get(key) or deque(maxlen=self._window)
                samples.append(Sample(now, offset, ends[where]))
                age = 0.0 if offset >= ends[where] else seconds.get(where)
                found.append(self._state(group, where, list(samples), age, members.get(group)))
        self._samples = kept
        for state in found:
            self._tell(state)
        return found

    @staticmethod
    def _state(
        group: str, where: Where, samples: Sequence[Sample], seconds: float | None, count: int | None
    ) -> PartitionLag:
        last = samples[-1]
        members = count or 0
        judgement = judge(samples, members, has_no_membership=count is None)
        return PartitionLag(
            group, *where, last.committed, last.end, last.lag, seconds, trend(samples), members, judgement
        )

    def _tell(self, state: PartitionLag) -> None:
        key = (state.group, (state.topic, state.partition))
        before = self._judged.get(key, "ok")
        self._judged[key] = state.judgement
        if before == state.judgement:
            return
        for alert in self._alerts:
            try:
                alert(state, before)
            except Exception:  # the next measurement must come
                log.exception("an alert failed")


def _client_settings(config: Mapping[str, Any]) -> ClientSettings:
    """From the settings of confluent-kafka. Its `oauth_cb` brings the tokens here, too."""
    texts = {name: str(value) for name, value in config.items() if isinstance(value, str | int | float)}
    callback = config.get("oauth_cb")
    if callback is None:
        return parse_client_settings(texts)
    return parse_client_settings(texts, lambda: str(callback(texts.get("sasl.oauthbearer.config", ""))[0]))


def _committed(cluster: Cluster, group: str) -> dict[Where, int]:
    """Nothing for a group that is gone, or of a kind that commits none."""
    try:
        found = cluster.committed(group, stable=False)
    except BrokerError as error:
        if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        return {}
    return {where: each.offset for where, each in found.items()}


def _members(cluster: Cluster, group: str) -> int | None:
    """None also where nobody may look: such a group is judged by its offsets."""
    try:
        return cluster.members(group)
    except BrokerError:
        return None


def _ends(cluster: Cluster, wheres: Iterable[Where]) -> dict[Where, int]:
    """Of partitions that are there, have a leader and may be looked at."""
    wanted = set(wheres)
    found: dict[Where, int] = {}
    for topic in sorted({topic for topic, _ in wanted}):
        try:
            known = cluster.topics([topic])
            at = {where: _LATEST for where in wanted if where[0] == topic and known.address(where) is not None}
            found |= cluster.list_offsets(at, read_committed=True, topics=known)
        except BrokerError as error:
            log.info("the end of %s is not known: %s", topic, error)
    return found


def _ages(consumer: Consumer, offsets: Mapping[Where, int], now_ms: int) -> dict[Where, float]:
    """The age of the record at each offset, in seconds."""
    if not offsets:
        return {}
    consumer.assign([TopicPartition(topic, index, offset) for (topic, index), offset in offsets.items()])
    found: dict[Where, float] = {}
    deadline = time.monotonic() + _TIMESTAMP_SECONDS
    while len(found) < len(offsets) and time.monotonic() < deadline:
        message = consumer.poll(0.1)
        if message is None or message.error() is not None:
            continue
        where = (message.topic() or "", message.partition() or 0)
        if where not in found:
            found[where] = max(0.0, (now_ms - message.timestamp()[1]) / 1_000)
            consumer.pause([TopicPartition(*where)])
    consumer.unassign()
    return found


def command_alert(command: Sequence[str]) -> Alert:
    """Run a command with the state as JSON on its standard input."""

    def alert(state: PartitionLag, before: Judgement) -> None:
        subprocess.run(list(command), input=_json(state, before), check=False, timeout=60)  # noqa: S603  the user's own

    return alert


def webhook_alert(url: str) -> Alert:
    """POST the state as JSON."""
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{url!r} is no address of a webhook: write http://… or https://…")

    def alert(state: PartitionLag, before: Judgement) -> None:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(url, _json(state, before), headers)  # noqa: S310  http(s), checked
        with urllib.request.urlopen(request, timeout=10):  # noqa: S310  http(s), checked above
            pass

    return alert


def _json(state: PartitionLag, before: Judgement) -> bytes:
    return json.dumps(asdict(state) | {"before": before}).encode()
