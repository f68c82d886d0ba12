"""The questions behind a snapshot, each in few requests however large the cluster is. They block; `ClientError`."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from moldau.client.connection import ClientError
from moldau.console.cluster.asking import Asker, check
from moldau.console.cluster.model import LogDir, Member, Quorum, Voter, Where
from moldau.groups.embedded import decode_assignment
from moldau.wire import ErrorCode, MalformedFrame
from moldau.wire.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)

T = TypeVar("T")
EARLIEST, LATEST = -2, -1
_PARTITIONS_PER_REQUEST = 5_000
_GROUPS_PER_REQUEST = 200
_GROUPS_MAX = 50_000
_OFFSETS_BY_NAME = 9  # version 10 names topics by id
_OFFSETS_OF_MANY = 8  # before it a request asks for one group
_OFFSET_FETCH = 9


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    rest = iter(items)
    while chunk := list(islice(rest, size)):
        yield chunk


def metadata(asker: Asker) -> MetadataResponse:
    """All topics and brokers."""
    found = asker.any(MetadataRequest(topics=None, allow_auto_topic_creation=False), MetadataResponse)
    asker.learn(found)
    return found


def answer_s(asker: Asker, broker: int) -> float:
    """How long a broker takes for a question that costs it next to nothing."""
    started = time.monotonic()
    asker.broker(broker, MetadataRequest(topics=[], allow_auto_topic_creation=False), MetadataResponse)
    return time.monotonic() - started


def offsets(asker: Asker, leaders: Mapping[int, Mapping[str, Sequence[int]]], when: int) -> dict[Where, int]:
    """First or next offsets, asked of the leaders; partitions whose leader does not answer are left out."""
    found: dict[Where, int] = {}
    for leader, topics in leaders.items():
        rows = ((topic, index) for topic, indexes in topics.items() for index in indexes)
        for chunk in chunks(rows, _PARTITIONS_PER_REQUEST):
            by_topic: defaultdict[str, list[ListOffsetsRequest.ListOffsetsPartition]] = defaultdict(list)
            for topic, index in chunk:
                by_topic[topic].append(ListOffsetsRequest.ListOffsetsPartition(partition_index=index, timestamp=when))
            request = ListOffsetsRequest(
                replica_id=-1,
                topics=[
                    ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=each) for name, each in by_topic.items()
                ],
            )
            try:
                answer = asker.broker(leader, request, ListOffsetsResponse)
            except ClientError:
                break  # the next leaders may answer
            for row in answer.topics:
                for partition in row.partitions:
                    if not partition.error_code:
                        found[row.name, partition.partition_index] = partition.offset
    return found


def log_dirs(asker: Asker, broker: int) -> tuple[tuple[LogDir, ...], dict[Where, int]]:
    """The folders of a broker, and the bytes of each replica in them."""
    answer = asker.broker(broker, DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse)
    check(answer.error_code, f"log dirs of broker {broker}")
    dirs, sizes = [], {}
    for row in answer.results:
        total = count = 0
        for topic in row.topics:
            for partition in topic.partitions:
                total += partition.partition_size
                count += 1
                if not partition.is_future_key:
                    sizes[topic.name, partition.partition_index] = partition.partition_size
        error = _error_name(row.error_code)
        dirs.append(LogDir(row.log_dir, total, row.total_bytes, row.usable_bytes, count, error))
    return tuple(dirs), sizes


def _error_name(code: int) -> str:
    with contextlib.suppress(ValueError):
        return ErrorCode(code).name if code else ""
    return f"error {code}"


def quorum(asker: Asker) -> Quorum | None:
    """Who decides about the cluster; None where no broker speaks of it (before KRaft)."""
    request = DescribeQuorumRequest(
        topics=[
            DescribeQuorumRequest.TopicData(
                topic_name="__cluster_metadata",
                partitions=[DescribeQuorumRequest.PartitionData(partition_index=0)],
            )
        ]
    )
    answer = asker.any(request, DescribeQuorumResponse)
    check(answer.error_code, "the quorum", answer.error_message)
    for topic in answer.topics:
        for row in topic.partitions:
            check(row.error_code, "the quorum", row.error_message)
            ends = {each.replica_id: each.log_end_offset for each in row.current_voters}
            newest = max(row.high_watermark, ends.get(row.leader_id, 0))
            both = [(each, True) for each in row.current_voters] + [(each, False) for each in row.observers]
            replicas = tuple(
                Voter(
                    each.replica_id,
                    is_voter,
                    each.log_end_offset,
                    max(0, newest - each.log_end_offset),
                    each.last_fetch_timestamp,
                    each.last_caught_up_timestamp,
                )
                for each, is_voter in both
            )
            return Quorum(row.leader_id, row.leader_epoch, row.high_watermark, replicas)
    return None


# ---- groups ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class FoundGroup:
    """A group as its coordinator tells of it."""

    name: str
    kind: str
    state: str
    coordinator: int
    assignor: str = ""
    members: tuple[Member, ...] = ()
    committed: dict[Where, tuple[int, str]] | None = None


def groups_of(asker: Asker, broker: int) -> list[FoundGroup]:
    """The groups a broker coordinates, with their members and offsets."""
    answer = asker.broker(broker, ListGroupsRequest(), ListGroupsResponse)
    check(answer.error_code, f"groups of broker {broker}")
    found = {}
    for row in answer.groups[:_GROUPS_MAX]:
        kind = row.group_type or row.protocol_type or "classic"
        found[row.group_id] = FoundGroup(row.group_id, kind, row.group_state or "?", broker)
    with_members = [group for group in found.values() if group.state not in ("Empty", "Dead")]
    new = [group.name for group in with_members if group.kind.lower() == "consumer"]
    others = ("consumer", "share", "streams")
    for chunk in chunks(new, _GROUPS_PER_REQUEST):
        _describe_new(asker, broker, chunk, found)
    classic = [group.name for group in with_members if group.kind.lower() not in others or group.state == "?"]
    for chunk in chunks(classic, _GROUPS_PER_REQUEST):
        _describe_classic(asker, broker, chunk, found)
    readers = [group.name for group in found.values() if group.kind.lower() != "share"]
    for chunk in chunks(readers, _GROUPS_PER_REQUEST):
        _fetch_offsets(asker, broker, chunk, found)
    return list(found.values())


def _describe_new(asker: Asker, broker: int, names: list[str], found: dict[str, FoundGroup]) -> None:
    answer = asker.broker(broker, ConsumerGroupDescribeRequest(group_ids=names), ConsumerGroupDescribeResponse)
    for row in answer.groups:
        group = found.get(row.group_id)
        if group is None or row.error_code:
            continue
        group.state, group.assignor = row.group_state, row.assignor_name
        group.members = tuple(
            Member(
                each.member_id,
                each.instance_id or "",
                each.client_id,
                each.client_host,
                tuple((part.topic_name, tuple(part.partitions)) for part in each.assignment.topic_partitions),
            )
            for each in row.members
        )


def _describe_classic(asker: Asker, broker: int, names: list[str], found: dict[str, FoundGroup]) -> None:
    answer = asker.broker(broker, DescribeGroupsRequest(groups=names), DescribeGroupsResponse)
    for row in answer.groups:
        group = found.get(row.group_id)
        if group is None or row.error_code:
            continue
        group.state, group.assignor = row.group_state, row.protocol_data
        is_consumer = row.protocol_type == "consumer"
        group.members = tuple(
            Member(
                each.member_id,
                each.group_instance_id or "",
                each.client_id,
                each.client_host,
                _assigned(bytes(each.member_assignment)) if is_consumer else (),
            )
            for each in row.members
        )


def _assigned(data: bytes) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """What a classic member was given: clients wrote it, so it may be anything."""
    try:
        told = decode_assignment(data)
    except MalformedFrame:
        return ()
    return tuple((part.topic, tuple(part.partitions)) for part in told.assigned_partitions)


def _fetch_offsets(asker: Asker, broker: int, names: list[str], found: dict[str, FoundGroup]) -> None:
    request = OffsetFetchRequest(
        group_id=names[0],
        topics=None,
        groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group_id=name, topics=None) for name in names],
    )
    if len(names) > 1 and asker.version(broker, _OFFSET_FETCH, _OFFSETS_BY_NAME) < _OFFSETS_OF_MANY:
        for name in names:
            _fetch_offsets(asker, broker, [name], found)
        return
    answer = asker.broker(broker, request, OffsetFetchResponse, _OFFSETS_BY_NAME)
    if answer.topics and not answer.groups:  # an older broker, asked for one group
        found[names[0]].committed = {
            (topic.name, row.partition_index): (row.committed_offset, row.metadata or "")
            for topic in answer.topics
            for row in topic.partitions
            if not row.error_code and row.committed_offset >= 0
        }
    for told in answer.groups:
        if not told.error_code and told.group_id in found:
            found[told.group_id].committed = {
                (topic.name, row.partition_index): (row.committed_offset, row.metadata or "")
                for topic in told.topics
                for row in topic.partitions
                if not row.error_code and row.committed_offset >= 0
            }
