"""Consumer groups of this coordinator: how many, in which state, how far they are and how far behind.

Ends of partitions that live elsewhere are asked of their leaders, all of a leader in one request. How old the first
record is that a group has not read, its batch says, which a thread looks at, or its leader gives away (`ages.py`).
A partition without a commit, of a topic the group reads, has an offset and a lag of -1, as kafka_exporter has it:
where a member would begin there, only the member knows; left out, nobody would see that it is not read.
Bounded by `moldau.metrics.groups.max` and `moldau.metrics.partitions.max`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

from moldau.broker.channels import UnsupportedVersion
from moldau.broker.metrics.ages import AgesElsewhere, Unread
from moldau.groups.consumer import ConsumerGroup
from moldau.log.errors import LogError
from moldau.metrics import Page
from moldau.records.batch import HEADER_BYTES, read_header
from moldau.records.errors import CorruptBatch
from moldau.seams.network import Disconnected, RequestTimedOut
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.coordinators.groups import GroupCoordinator
    from moldau.broker.parts import HasConfig, HasImage, HasLoop, HasPeers, HasTime, HasTurns
    from moldau.broker.replicas.parts import HasReplicas
    from moldau.groups.state import ShardState
    from moldau.seams.disk import FileRegion
    from moldau.timers.turns import Slices

    class Needs(HasConfig, HasImage, HasLoop, HasPeers, HasTime, HasTurns, HasReplicas, Protocol):
        """What this file may touch."""

        @property
        def made_groups(self) -> GroupCoordinator | None: ...


_PER_SLICE = 50
_ASK_MS = 1_000.0
_AGES_MAX = 1_000  # batches looked at per scrape
_NO_COMMIT = -1
_LATEST, _EARLIEST = -1, -2  # as ListOffsets has it
_LAG = "Records between that and the end; -1: nothing is committed."
Place = tuple[str, int]


class _Position(NamedTuple):
    group: str
    topic: str
    partition: int
    committed: int

    @property
    def place(self) -> Place:
        return self.topic, self.partition


class _Found:
    """What the groups have committed, and what is known of the partitions."""

    def __init__(self) -> None:
        self.positions: list[_Position] = []
        self.ends: dict[Place, int] = {}
        self.starts: dict[Place, int] = {}  # of those elsewhere
        self.elsewhere: dict[int, set[Place]] = {}  # by leader
        self.unread: list[tuple[_Position, FileRegion]] = []


async def collect_groups(page: Page, broker: Needs, elsewhere: AgesElsewhere) -> None:
    coordinator = broker.made_groups
    if coordinator is None:
        _tell_states(page, Counter(), Counter())
        return
    found = await broker.in_turns(_look(page, broker, coordinator.states))
    leaders = found.elsewhere.items()
    await asyncio.gather(
        *(_ask_leader(broker, leader, places, _LATEST, found.ends) for leader, places in leaders),
        *(_ask_leader(broker, leader, places, _EARLIEST, found.starts) for leader, places in leaders),
    )
    ages = await broker.loop.run_in_executor(broker.executor, _timestamps, found.unread)
    ages |= await _ages_elsewhere(broker, found, elsewhere)
    await broker.in_turns(_tell(page, found, ages, broker.clock.wall_ms()))


def _look(page: Page, broker: Needs, shards: list[ShardState]) -> Slices[_Found]:
    found = _Found()
    room, groups_left = (broker.config.get_int(f"moldau.metrics.{each}.max") for each in ("partitions", "groups"))
    states: Counter[str] = Counter()
    protocols: Counter[str] = Counter()
    for at, (state, group_id) in enumerate(_groups(shards)):
        if at % _PER_SLICE == _PER_SLICE - 1:
            yield
        group = state.groups.get(group_id)
        if group is not None:
            states[group.state.value] += 1
            protocols["consumer" if isinstance(group, ConsumerGroup) else "classic"] += 1
        if groups_left <= 0:
            continue
        groups_left -= 1
        members = 0 if group is None else len(group.members)
        page.gauge("kafka_consumergroup_members", "Members of the group.", members, {"consumergroup": group_id})
        for topic, offsets in state.offsets.topics_of(group_id).items():
            in_image = broker.image.topics.get(topic)
            partitions = dict.fromkeys((*offsets, *(() if in_image is None else in_image.partitions)))
            for partition in partitions:
                if len(found.positions) >= room:
                    break
                committed = offsets[partition].offset if partition in offsets else _NO_COMMIT
                found.positions.append(_Position(group_id, topic, partition, committed))
                if committed != _NO_COMMIT:
                    _find_end(broker, found, found.positions[-1])
    _tell_states(page, states, protocols)
    return found


def _groups(shards: list[ShardState]) -> Iterator[tuple[ShardState, str]]:
    """Those with members, and those that only commit."""
    for state in shards:
        names = dict.fromkeys((*state.groups, *(key.group_id for key, _ in state.offsets.entries())))
        for group_id in names:
            yield state, group_id


def _find_end(broker: Needs, found: _Found, position: _Position) -> None:
    image = broker.image.partition(*position.place)
    if image is None:
        return  # the topic is gone
    partition = broker.replicas.get(*position.place)
    if partition is None:
        found.elsewhere.setdefault(image.leader, set()).add(position.place)
        return
    log = partition.log
    found.ends[position.place] = log.high_watermark
    first_unread = max(position.committed, log.log_start_offset)
    if first_unread >= log.high_watermark or len(found.unread) >= _AGES_MAX:
        return
    try:
        region = log.read(first_unread, HEADER_BYTES, upper_bound_offset=log.high_watermark).region
    except LogError:
        return  # offline, or cut off just now
    if region is not None:
        found.unread.append((position, region))


async def _ask_leader(broker: Needs, leader: int, places: set[Place], which: int, told: dict[Place, int]) -> None:
    endpoint = broker.endpoint_of(leader)
    if endpoint is None:
        return
    kind = m.ListOffsetsRequest
    topics: dict[str, list[m.ListOffsetsRequest.ListOffsetsPartition]] = {}
    for topic, partition in sorted(places):
        topics.setdefault(topic, []).append(kind.ListOffsetsPartition(partition, timestamp=which))
    request = kind(replica_id=-1, topics=[kind.ListOffsetsTopic(*each) for each in topics.items()])
    try:
        response = await broker.channels.call(*endpoint, request, timeout_ms=_ASK_MS, lane="metrics")
    except (Disconnected, RequestTimedOut, UnsupportedVersion):
        return
    for topic_answer in response.topics:
        for each in topic_answer.partitions:
            if not each.error_code:
                told[topic_answer.name, each.partition_index] = each.offset


async def _ages_elsewhere(broker: Needs, found: _Found, elsewhere: AgesElsewhere) -> dict[_Position, int]:
    leaders = {place: leader for leader, places in found.elsewhere.items() for place in places}
    behind = [
        each
        for each in found.positions
        if each.place in leaders and _NO_COMMIT < each.committed < found.ends.get(each.place, _NO_COMMIT)
    ][:_AGES_MAX]
    starts = found.starts
    wanted = {each: Unread(*each.place, max(each.committed, starts.get(each.place, 0))) for each in behind}
    made = await elsewhere.ask(broker, [(leaders[each.place], unread) for each, unread in wanted.items()])
    return {each: made[unread] for each, unread in wanted.items() if unread in made}


def _timestamps(unread: list[tuple[_Position, FileRegion]]) -> dict[_Position, int]:
    """Any thread: when the first batch was made that a group has not read all of."""
    made = {}
    for position, region in unread:
        try:
            made[position] = read_header(region.file.read(region.position, HEADER_BYTES)).base_timestamp
        except (OSError, CorruptBatch):
            continue  # removed meanwhile, or somebody else's to report
    return made


def _tell(page: Page, found: _Found, made_ms: dict[_Position, int], now_ms: int) -> Slices[None]:
    sums: dict[tuple[str, str], list[int]] = {}
    for at, position in enumerate(found.positions):
        if at % _PER_SLICE == _PER_SLICE - 1:
            yield
        labels = {"consumergroup": position.group, "topic": position.topic, "partition": position.partition}
        page.gauge("kafka_consumergroup_current_offset", "What is committed; -1: nothing.", position.committed, labels)
        if position.committed == _NO_COMMIT:
            page.gauge("kafka_consumergroup_lag", _LAG, _NO_COMMIT, labels)
            continue
        end = found.ends.get(position.place)
        total = sums.setdefault((position.group, position.topic), [0, 0])
        total[0] += position.committed
        if end is None:
            continue
        lag = max(0, end - position.committed)
        total[1] += lag
        page.gauge("kafka_consumergroup_lag", _LAG, lag, labels)
        seconds = None if lag else 0.0
        if position in made_ms:
            seconds = max(0.0, (now_ms - made_ms[position]) / 1000)
        if seconds is not None:
            page.gauge("kafka_consumergroup_lag_seconds", "Age of the first record not read.", seconds, labels)
    for (group, topic), (committed, lag) in sums.items():
        labels = {"consumergroup": group, "topic": topic}
        page.gauge("kafka_consumergroup_current_offset_sum", "The same, all partitions together.", committed, labels)
        page.gauge("kafka_consumergroup_lag_sum", "The same, all partitions together.", lag, labels)


def _tell_states(page: Page, states: Counter[str], protocols: Counter[str]) -> None:
    for protocol in ("classic", "consumer"):
        page.gauge(
            "kafka_server_groupcoordinatormetrics_group_count",
            "Groups this node coordinates.",
            protocols[protocol],
            {"protocol": protocol},
        )
    for state in ("Empty", "PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling", "Stable", "Dead"):
        page.gauge("moldau_groups", "The same by state.", states[state], {"state": state})
