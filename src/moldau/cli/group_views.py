"""Groups as commands show them, of whatever type: classic and KIP-848 groups of consumers, share groups (KIP-932) and
groups of Kafka Streams (KIP-1071). The last two are on Apache Kafka only; brokers that have neither are not asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moldau.cli.failure import ExitCode, explain_code, fail
from moldau.cli.frame import Target
from moldau.cli.places import Place, offsets_at
from moldau.cli.share_groups import refuse, starts_and_lags
from moldau.cli.target import TIMEOUT_SECONDS

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from moldau.client.admin import Admin
    from moldau.wire.messages import ListGroupsResponse, StreamsGroupDescribeResponse

_GROUP_ID_NOT_FOUND = 69
SHARE, STREAMS = "share", "streams"


@dataclass(slots=True, frozen=True)
class Member:
    id: str
    client: str
    instance: str | None
    host: str
    places: tuple[Place, ...]
    """What it reads; of Streams, the partitions of its active tasks."""


@dataclass(slots=True, frozen=True)
class GroupView:
    name: str
    type: str
    state: str
    assignor: str
    coordinator: tuple[int, str, int]
    members: tuple[Member, ...]


def word(value: Any) -> str:
    """An enumeration's name as people write it."""
    return "unknown" if value is None else str(value.name).lower().replace("_", "-")


def spelled(name: str) -> str:
    """PreparingRebalance becomes preparing-rebalance."""
    return "".join(f"-{each}" if each.isupper() and place else each for place, each in enumerate(name)).lower()


def all_groups(admin: Admin) -> Iterator[tuple[int, ListGroupsResponse.ListedGroup]]:
    """Each with its coordinator."""
    from moldau.client.connection import BrokerError
    from moldau.wire.messages import ListGroupsRequest, ListGroupsResponse

    admin.metadata([])
    for broker in sorted(admin.brokers):
        answer = admin.ask_broker(broker, ListGroupsRequest(), ListGroupsResponse)
        if answer.error_code:
            raise BrokerError(answer.error_code, f"groups of broker {broker}")
        for each in answer.groups:
            yield broker, each


def seen(target: Target, admin: AdminClient, groups: Sequence[str]) -> dict[str, GroupView]:
    """Groups that exist; one that was named and does not is an error."""
    found = seen_if_there(target, admin, groups)
    for name in groups:
        if name not in found:
            fail(f"there is no group {name} (`moldau group list` shows what there is)", ExitCode.NOT_FOUND)
    return found


def seen_if_there(target: Target, admin: AdminClient, groups: Sequence[str]) -> dict[str, GroupView]:
    found = _consumer_groups(target, admin, groups)
    others = [name for name in groups if name not in found]
    if others:
        with target.admin() as asking:
            found |= _other_groups(asking, others)
    return {name: found[name] for name in groups if name in found}


def _consumer_groups(target: Target, admin: AdminClient, groups: Sequence[str]) -> dict[str, GroupView]:
    from confluent_kafka import KafkaException

    if not groups:
        return {}
    found = {}
    for name, future in admin.describe_consumer_groups(list(groups), request_timeout=TIMEOUT_SECONDS).items():
        try:
            each = future.result(TIMEOUT_SECONDS)
        except KafkaException as error:
            if error.args[0].code() == _GROUP_ID_NOT_FOUND:
                continue
            explained = explain_code(error.args[0], target.bootstrap_servers)
            fail(f"group {name}: {explained.message}", explained.code)
        if word(each.state) == "dead":
            continue
        members = tuple(
            Member(
                member.member_id,
                member.client_id,
                member.group_instance_id,
                member.host.lstrip("/"),
                tuple((place.topic, place.partition) for place in _assigned(member)),
            )
            for member in each.members
        )
        at = (each.coordinator.id, each.coordinator.host, each.coordinator.port)
        found[name] = GroupView(name, word(each.type), word(each.state), each.partition_assignor, at, members)
    return found


def _assigned(member: Any) -> Any:
    return () if member.assignment is None else member.assignment.topic_partitions


def _other_groups(admin: Admin, groups: Sequence[str]) -> dict[str, GroupView]:
    found = {}
    for broker, each in all_groups(admin):
        kind = each.group_type.lower()
        if each.group_id in groups and kind in (SHARE, STREAMS):
            describe = _share_group if kind == SHARE else _streams_group
            found[each.group_id] = describe(admin, broker, each.group_id)
    return found


def _share_group(admin: Admin, broker: int, name: str) -> GroupView:
    from moldau.wire.messages import ShareGroupDescribeRequest, ShareGroupDescribeResponse

    answer = admin.ask_broker(broker, ShareGroupDescribeRequest(group_ids=[name]), ShareGroupDescribeResponse)
    (each,) = answer.groups
    refuse(f"group {name}", each.error_code, each.error_message)
    members = tuple(
        Member(
            member.member_id,
            member.client_id,
            None,
            member.client_host.lstrip("/"),
            tuple(
                (topic.topic_name, index) for topic in member.assignment.topic_partitions for index in topic.partitions
            ),
        )
        for member in each.members
    )
    at = (broker, *admin.brokers[broker])
    return GroupView(name, SHARE, spelled(each.group_state), each.assignor_name, at, members)


def _streams_group(admin: Admin, broker: int, name: str) -> GroupView:
    from moldau.wire.messages import StreamsGroupDescribeRequest, StreamsGroupDescribeResponse

    answer = admin.ask_broker(broker, StreamsGroupDescribeRequest(group_ids=[name]), StreamsGroupDescribeResponse)
    (each,) = answer.groups
    refuse(f"group {name}", each.error_code, each.error_message)
    sources = _sources(each.topology)
    members = tuple(
        Member(
            member.member_id,
            member.client_id,
            member.instance_id,
            member.client_host.lstrip("/"),
            tuple(
                (topic, index)
                for task in member.assignment.active_tasks
                for topic in sources.get(task.subtopology_id, ())
                for index in task.partitions
            ),
        )
        for member in each.members
    )
    return GroupView(name, STREAMS, spelled(each.group_state), "", (broker, *admin.brokers[broker]), members)


def _sources(topology: StreamsGroupDescribeResponse.Topology | None) -> Mapping[str, Sequence[str]]:
    """What each subtopology reads."""
    if topology is None:
        return {}
    return {
        each.subtopology_id: [*each.source_topics, *(topic.name for topic in each.repartition_source_topics)]
        for each in topology.subtopologies or ()
    }


def committed(admin: AdminClient, group: str) -> dict[Place, int]:
    from confluent_kafka import ConsumerGroupTopicPartitions

    (future,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    places = future.result(TIMEOUT_SECONDS).topic_partitions or ()
    return {(each.topic, each.partition): each.offset for each in places if each.offset >= 0}


def lag_rows(target: Target, admin: AdminClient, view: GroupView) -> list[dict[str, Any]]:
    """A row for each partition the group has committed or is assigned."""
    told: dict[Place, int] = {}
    if view.type == SHARE:
        with target.admin() as asking:
            asking.metadata([])
            found, told = starts_and_lags(asking, view.coordinator[0], view.name)
    else:
        found = committed(admin, view.name)
    owners: dict[Place, list[Member]] = {}
    for member in view.members:
        for place in member.places:
            owners.setdefault(place, []).append(member)
    places = sorted(set(found) | set(owners))
    known = admin.list_topics(timeout=TIMEOUT_SECONDS).topics
    there = [(topic, index) for topic, index in places if topic in known and index in known[topic].partitions]
    ends = offsets_at(admin, there, "latest")
    rows = []
    for place in places:
        offset, end, its = found.get(place), ends.get(place), owners.get(place, [])
        rows.append(
            {
                "topic": place[0],
                "partition": place[1],
                "committed": offset,
                "end": end,
                "lag": told.get(place, None if offset is None or end is None else max(0, end - offset)),
                "client": _joined([each.client for each in its]),
                "host": _joined([each.host for each in its]),
            }
        )
    return rows


def _joined(names: Sequence[str]) -> str | None:
    """One in all groups but share groups, whose members read a partition together."""
    return ", ".join(dict.fromkeys(names)) if names else None
