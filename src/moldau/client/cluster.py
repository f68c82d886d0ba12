"""A cluster as its clients see it: which partitions there are, who leads them, which offsets they hold.

Answers come from the leaders, and what can be cured by asking again (a leader that moved, a broker that restarts) is
asked again a few times before it is an error.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Self, TypeVar

from moldau.client.connection import BrokerError, ClientError, Connection, Disconnected
from moldau.client.settings import ClientSettings
from moldau.wire import ErrorCode
from moldau.wire.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)

T = TypeVar("T")
TopicPartition = tuple[str, int]
PartitionOffsets = dict[TopicPartition, int]
Address = tuple[str, int]
_COMMIT_BY_NAME = 9  # version 10 names topics by id
_COORDINATOR_BY_KEY = 3  # version 4 asks for several groups at once
_TOPIC_RESOURCE = 2
_OFFSETS_OF_ONE_GROUP = 7  # and so does version 8


class UnknownTopic(ClientError):
    """A topic that was asked for by name does not exist."""


@dataclass(slots=True, frozen=True)
class Topics:
    """Partitions and their leaders; -1 where there is none right now."""

    leaders: dict[TopicPartition, int]
    brokers: dict[int, Address]
    missing: frozenset[str]
    ids: dict[str, bytes] = field(
        default_factory=dict
    )  # of topics, from brokers that tell: a topic made anew has another

    def address(self, partition: TopicPartition) -> Address | None:
        return self.brokers.get(self.leaders.get(partition, -1))


class Committed(NamedTuple):
    """What a group has stored for a partition."""

    offset: int
    metadata: str


class Cluster:
    """Connections to brokers, made when needed, and a few questions to them."""

    def __init__(
        self, settings: ClientSettings, *, attempts: int = 3, pause_s: float = 1.0, patience_s: float = 60.0
    ) -> None:
        """Unknown topics are asked for `attempts` times; leaders and brokers that are away, for `patience_s`."""
        self._settings = settings
        self._patience_s = patience_s
        self._attempts = attempts
        self._pause_s = pause_s
        self._connections: dict[Address, Connection] = {}
        self._brokers: tuple[Address, ...] = ()

    def close(self) -> None:
        """Forget the connections. Whatever is asked next makes new ones."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def topics(self, names: Iterable[str] | None, *, may_create: bool = False) -> Topics:
        """These topics, or all that are not internal. Those who are about to write may let brokers create them."""
        wanted = None if names is None else sorted(set(names))
        return self._retrying(lambda: self._topics(wanted, may_create=may_create))

    def list_offsets(
        self, at: Mapping[TopicPartition, int], *, read_committed: bool = False, topics: Topics | None = None
    ) -> PartitionOffsets:
        """The offset of each partition at a time in ms, or at -1 (latest), -2 (earliest); -1 if there is none.

        `topics` are what is known about the leaders; if that turns out to be old, they are asked for anew.
        """
        if not at:
            return {}
        if topics is not None:
            try:
                return self._list_offsets(at, topics, read_committed=read_committed)
            except (Disconnected, BrokerError):
                self.close()
        names = sorted({topic for topic, _ in at})
        return self._retrying(lambda: self._list_offsets(at, self._topics(names), read_committed=read_committed))

    def make_topics(self, names: Iterable[str], partitions: int, configs: Mapping[str, str] | None = None) -> None:
        """With as many replicas as the cluster likes. Topics that are there already stay as they are."""
        wanted = sorted(set(names))
        self._retrying(lambda: self._make_topics(wanted, partitions, configs or {}))

    def _make_topics(self, names: list[str], partitions: int, configs: Mapping[str, str]) -> None:
        settings = [CreateTopicsRequest.CreatableTopicConfig(name=name, value=text) for name, text in configs.items()]
        topics = [
            CreateTopicsRequest.CreatableTopic(
                name=name, num_partitions=partitions, replication_factor=-1, configs=settings
            )
            for name in names
        ]
        request = CreateTopicsRequest(topics=topics, timeout_ms=int(self._settings.request_timeout_s * 1000))
        for row in self._any().call(request, CreateTopicsResponse).topics:
            if row.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                raise BrokerError(row.error_code, f"topic {row.name}: {row.error_message or 'it was not made'}")

    def is_compacted(self, topic: str) -> bool:
        """Whether the topic's cleanup.policy lets the cleaner take records out of its middle, or off its end."""
        return self._retrying(lambda: "compact" in self._config(topic, "cleanup.policy"))

    def _config(self, topic: str, name: str) -> str:
        resource = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=_TOPIC_RESOURCE, resource_name=topic, configuration_keys=[name]
        )
        answer = self._any().call(DescribeConfigsRequest(resources=[resource]), DescribeConfigsResponse)
        for result in answer.results:
            if result.error_code:
                raise BrokerError(result.error_code, f"settings of topic {topic}")
            for row in result.configs:
                if row.name == name:
                    return row.value or ""
        return ""

    def commit(self, group: str, offsets: PartitionOffsets) -> None:
        """Store offsets for a group that has no members. A coordinator that is not ready is asked for a second more."""
        self._retrying(lambda: self._commit(group, offsets), pause_s=0.2, patience_s=1.0)

    def committed(self, group: str, *, stable: bool = True) -> dict[TopicPartition, Committed]:
        """All offsets of a group. While a transaction leaves one in doubt, its end is waited for if `stable`."""
        return self._retrying(lambda: self._committed(group, stable=stable))

    def groups(self) -> list[str]:
        """The ids of all groups, whatever their kind, from all brokers that are there."""
        return self._retrying(self._groups)

    def _groups(self) -> list[str]:
        found = []
        for address in self._topics([]).brokers.values():
            answer = self._connection(address).call(ListGroupsRequest(), ListGroupsResponse)
            if answer.error_code:
                raise BrokerError(answer.error_code, f"groups of the broker at {address[0]}:{address[1]}")
            found += [row.group_id for row in answer.groups]
        return sorted(set(found))

    def members(self, group: str) -> int | None:
        """How many members a group has; None if it never has any and is nothing but offsets (Spark's)."""
        return self._retrying(lambda: self._members(group))

    def _members(self, group: str) -> int | None:
        coordinator = self.coordinator(group)
        if coordinator.speaks(ConsumerGroupDescribeRequest):
            answer = coordinator.call(ConsumerGroupDescribeRequest(group_ids=[group]), ConsumerGroupDescribeResponse)
            (new,) = answer.groups
            if new.error_code in (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR):
                raise BrokerError(new.error_code, f"members of group {group}")
            if not new.error_code:
                return len(new.members)
        (classic,) = coordinator.call(DescribeGroupsRequest(groups=[group]), DescribeGroupsResponse).groups
        if classic.error_code:
            raise BrokerError(classic.error_code, f"members of group {group}")
        return len(classic.members) if classic.members or classic.protocol_type else None

    def delete_groups(self, groups: Iterable[str]) -> None:
        """Forget groups and their offsets, each at its coordinator. One that is not there is forgotten already."""
        for group in groups:
            self._retrying(partial(self._delete_group, group))

    def _delete_group(self, group: str) -> None:
        answer = self.coordinator(group).call(DeleteGroupsRequest(groups_names=[group]), DeleteGroupsResponse)
        for row in answer.results:
            if row.error_code not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
                raise BrokerError(row.error_code, f"group {group} was not deleted")

    def _committed(self, group: str, *, stable: bool) -> dict[TopicPartition, Committed]:
        request = OffsetFetchRequest(group_id=group, topics=None, require_stable=stable)
        answer = self.coordinator(group).call(request, OffsetFetchResponse, _OFFSETS_OF_ONE_GROUP)
        if answer.error_code:
            raise BrokerError(answer.error_code, f"offsets of group {group}")
        found = {}
        for topic in answer.topics:
            for row in topic.partitions:
                if row.error_code:
                    raise BrokerError(row.error_code, f"offset of group {group} for {topic.name}-{row.partition_index}")
                if row.committed_offset >= 0:
                    found[topic.name, row.partition_index] = Committed(row.committed_offset, row.metadata or "")
        return found

    def coordinator(self, key: str, *, transactional: bool = False) -> Connection:
        """Who looks after a group, or a transactional id, right now. Asked once: what fails is for the caller."""
        request = FindCoordinatorRequest(key=key, key_type=int(transactional))
        found = self._any().call(request, FindCoordinatorResponse, _COORDINATOR_BY_KEY)
        if found.error_code:
            what = "transactional id" if transactional else "group"
            raise BrokerError(found.error_code, f"no coordinator for {what} {key}")
        return self._connection((found.host, found.port))

    def _commit(self, group: str, offsets: PartitionOffsets) -> None:
        rows: dict[str, list[OffsetCommitRequest.OffsetCommitRequestPartition]] = defaultdict(list)
        for (topic, index), offset in sorted(offsets.items()):
            rows[topic].append(
                OffsetCommitRequest.OffsetCommitRequestPartition(
                    partition_index=index, committed_offset=offset, committed_metadata=""
                )
            )
        answer = self.coordinator(group).call(
            OffsetCommitRequest(
                group_id=group,
                topics=[
                    OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=partitions)
                    for topic, partitions in rows.items()
                ],
            ),
            OffsetCommitResponse,
            _COMMIT_BY_NAME,
        )
        for row in answer.topics:
            for partition in row.partitions:
                if partition.error_code:
                    raise BrokerError(partition.error_code, f"offsets of group {group} were not stored")

    def _topics(self, names: list[str] | None, *, may_create: bool = False) -> Topics:
        wanted = None if names is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=may_create)
        answer = self._any().call(request, MetadataResponse)
        brokers = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        self._brokers = tuple(brokers.values())
        leaders: dict[TopicPartition, int] = {}
        missing = set()
        ids = {topic.name or "": topic.topic_id for topic in answer.topics if any(topic.topic_id)}
        for topic in answer.topics:
            name = topic.name or ""
            if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                missing.add(name)
            elif topic.error_code:
                raise BrokerError(topic.error_code, f"topic {name}")
            elif not topic.is_internal or names is not None:
                for partition in topic.partitions:
                    leaders[name, partition.partition_index] = partition.leader_id
        return Topics(leaders, brokers, frozenset(missing), ids)

    def _list_offsets(
        self, at: Mapping[TopicPartition, int], topics: Topics, *, read_committed: bool
    ) -> PartitionOffsets:
        by_leader: dict[Address, dict[str, list[ListOffsetsRequest.ListOffsetsPartition]]] = {}
        for (topic, index), timestamp in sorted(at.items()):
            address = topics.address((topic, index))
            if address is None:
                code = (
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    if (topic, index) not in topics.leaders
                    else ErrorCode.LEADER_NOT_AVAILABLE
                )
                raise BrokerError(code, f"partition {topic}-{index}")
            row = ListOffsetsRequest.ListOffsetsPartition(partition_index=index, timestamp=timestamp)
            by_leader.setdefault(address, {}).setdefault(topic, []).append(row)
        found: PartitionOffsets = {}
        for address, rows in by_leader.items():
            request = ListOffsetsRequest(
                replica_id=-1,
                isolation_level=int(read_committed),
                topics=[
                    ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=partitions)
                    for topic, partitions in rows.items()
                ],
                timeout_ms=int(self._settings.request_timeout_s * 1000),
            )
            answer = self._connection(address).call(request, ListOffsetsResponse)
            for topic_row in answer.topics:
                for partition in topic_row.partitions:
                    if partition.error_code:
                        where = f"partition {topic_row.name}-{partition.partition_index}"
                        raise BrokerError(partition.error_code, where)
                    found[topic_row.name, partition.partition_index] = partition.offset
        return found

    def _any(self) -> Connection:
        """A broker that answers: one we are connected to, else one we know, else one the user named."""
        for address, connection in list(self._connections.items()):
            if address in self._brokers:
                return connection
        failure: ClientError | None = None
        for address in dict.fromkeys((*self._brokers, *self._settings.bootstrap_servers)):
            try:
                return self._connection(address)
            except Disconnected as error:
                failure = error
        raise failure or Disconnected("no broker is known")

    def _connection(self, address: Address) -> Connection:
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = Connection(*address, self._settings)
        return connection

    def _retrying(self, ask: Callable[[], T], *, pause_s: float | None = None, patience_s: float | None = None) -> T:
        pause_s = self._pause_s if pause_s is None else pause_s
        deadline = time.monotonic() + (self._patience_s if patience_s is None else patience_s)
        attempt = 0
        while True:
            attempt += 1
            try:
                return ask()
            except (Disconnected, BrokerError) as error:
                had_connections = bool(self._connections)
                self.close()
                if isinstance(error, BrokerError) and (
                    not error.code.retriable
                    or (error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and attempt >= self._attempts)
                ):
                    raise
                if attempt == 1 and had_connections and isinstance(error, Disconnected):
                    continue  # brokers close connections that were idle for long: a new one will do
                if time.monotonic() + pause_s > deadline:
                    raise
                time.sleep(pause_s)  # nobody is told when a broker is back, or a leader known
