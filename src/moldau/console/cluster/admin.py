"""What can be asked of, and done to, topics, settings, groups and replicas. Blocking; errors are `BrokerError`s."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from moldau.client.connection import BrokerError
from moldau.console.cluster.asking import Asker, check
from moldau.console.cluster.gathering import offsets
from moldau.console.cluster.model import Snapshot, Where
from moldau.wire import ErrorCode
from moldau.wire.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)

TOPIC, BROKER = 2, 4
_TIMEOUT_MS = 15_000
_BY_NAME = 5  # DeleteTopics: version 6 may name topics by id
_SET, _RESET = 0, 1
_SOURCES = {
    1: "set for this topic",
    2: "set for this broker",
    3: "set for all brokers",
    4: "server.properties",
    5: "default",
    6: "logger",
    7: "set for these clients",
    8: "set for this group",
}
_TYPES = {1: "boolean", 2: "string", 3: "int", 4: "short", 5: "long", 6: "double", 7: "list", 8: "class", 9: "password"}
DYNAMIC = (1, 2, 3)


class Setting(NamedTuple):
    name: str
    value: str | None
    source: int
    is_read_only: bool
    is_sensitive: bool
    kind: str
    about: str
    default: str | None
    chain: tuple[tuple[str, str], ...]  # who else says something: (where, value)

    @property
    def set_by(self) -> str:
        return _SOURCES.get(self.source, "unknown")

    @property
    def is_own(self) -> bool:
        """Somebody set it, and it can be reset."""
        return self.source in (1, 2)


def settings_of(asker: Asker, kind: int, name: str) -> list[Setting]:
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=None
    )
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True, include_documentation=True)
    ask = asker.any if kind == TOPIC else lambda *given: asker.broker(int(name), *given)
    answer = ask(request, DescribeConfigsResponse)
    found = []
    for result in answer.results:
        check(result.error_code, f"settings of {name}", result.error_message)
        for row in result.configs:
            defaults = [each.value for each in row.synonyms if each.source == 5]
            chain = tuple((_SOURCES.get(each.source, "?"), each.value or "") for each in row.synonyms)
            found.append(
                Setting(
                    row.name,
                    None if row.is_sensitive else row.value,
                    row.config_source,
                    row.read_only,
                    row.is_sensitive,
                    _TYPES.get(row.config_type, ""),
                    row.documentation or "",
                    defaults[0] if defaults else None,
                    chain,
                )
            )
    return sorted(found, key=lambda each: (each.source not in DYNAMIC, each.name))


def change_setting(asker: Asker, kind: int, name: str, setting: str, value: str | None) -> None:
    """None goes back to the default."""
    change = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            IncrementalAlterConfigsRequest.AlterableConfig(
                name=setting, config_operation=_RESET if value is None else _SET, value=value
            )
        ],
    )
    request = IncrementalAlterConfigsRequest(resources=[change])
    if kind == TOPIC:
        answer = asker.controller(request, IncrementalAlterConfigsResponse)
    else:
        answer = asker.broker(int(name), request, IncrementalAlterConfigsResponse)
    for row in answer.responses:
        check(row.error_code, f"{setting} of {name}", row.error_message)


def create_topic(asker: Asker, name: str, partitions: int, replication: int, settings: Mapping[str, str]) -> None:
    topic = CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication,
        configs=[CreateTopicsRequest.CreatableTopicConfig(name=key, value=value) for key, value in settings.items()],
    )
    answer = asker.controller(CreateTopicsRequest(topics=[topic], timeout_ms=_TIMEOUT_MS), CreateTopicsResponse)
    for row in answer.topics:
        check(row.error_code, f"topic {name}", row.error_message)


def delete_topic(asker: Asker, name: str) -> None:
    request = DeleteTopicsRequest(topic_names=[name], timeout_ms=_TIMEOUT_MS)
    for row in asker.controller(request, DeleteTopicsResponse, _BY_NAME).responses:
        check(row.error_code, f"topic {name}", row.error_message)


def add_partitions(asker: Asker, name: str, count: int) -> None:
    topic = CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=count, assignments=None)
    request = CreatePartitionsRequest(topics=[topic], timeout_ms=_TIMEOUT_MS)
    for row in asker.controller(request, CreatePartitionsResponse).results:
        check(row.error_code, f"topic {name}", row.error_message)


def empty_topic(asker: Asker, snapshot: Snapshot, name: str) -> None:
    """Delete all records that are there now."""
    leaders: defaultdict[int, list[int]] = defaultdict(list)
    for partition in snapshot.topics[name].partitions:
        leaders[partition.leader].append(partition.index)
    for leader, indexes in leaders.items():
        rows = [DeleteRecordsRequest.DeleteRecordsPartition(partition_index=index, offset=-1) for index in indexes]
        topic = DeleteRecordsRequest.DeleteRecordsTopic(name=name, partitions=rows)
        request = DeleteRecordsRequest(topics=[topic], timeout_ms=_TIMEOUT_MS)
        for told in asker.broker(leader, request, DeleteRecordsResponse).topics:
            for row in told.partitions:
                check(row.error_code, f"records of {name}-{row.partition_index}")


def offsets_at(asker: Asker, snapshot: Snapshot, wheres: Sequence[Where], when: int) -> dict[Where, int]:
    """Offsets at a time in ms, or at -1 (end), -2 (beginning)."""
    leaders: defaultdict[int, defaultdict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    known = {
        (topic, partition.index): partition.leader
        for topic in {each for each, _ in wheres}
        if topic in snapshot.topics
        for partition in snapshot.topics[topic].partitions
    }
    for topic, index in wheres:
        if (topic, index) in known:
            leaders[known[topic, index]][topic].append(index)
    return offsets(asker, leaders, when)


# ---- replicas -------------------------------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class Reassignment:
    topic: str
    partition: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


def reassignments(asker: Asker) -> list[Reassignment]:
    answer = asker.controller(ListPartitionReassignmentsRequest(topics=None), ListPartitionReassignmentsResponse)
    check(answer.error_code, "reassignments", answer.error_message)
    return [
        Reassignment(
            topic.name,
            row.partition_index,
            tuple(row.replicas),
            tuple(row.adding_replicas),
            tuple(row.removing_replicas),
        )
        for topic in answer.topics
        for row in topic.partitions
    ]


def spread(snapshot: Snapshot, topic: str, brokers: Sequence[int], replication: int) -> dict[int, tuple[int, ...]]:
    """Replicas for each partition on these brokers, in turn; who leads and can stay first stays first."""
    found = {}
    for partition in snapshot.topics[topic].partitions:
        place = partition.index % len(brokers)
        turn = [brokers[(place + step) % len(brokers)] for step in range(len(brokers))]
        kept = [each for each in partition.replicas if each in brokers][:replication]
        more = [each for each in turn if each not in kept]
        found[partition.index] = tuple((kept + more)[:replication])
    return found


def reassign(asker: Asker, topic: str, wanted: Mapping[int, Sequence[int] | None]) -> None:
    """None cancels what is under way."""
    rows = [
        AlterPartitionReassignmentsRequest.ReassignablePartition(
            partition_index=index, replicas=None if replicas is None else list(replicas)
        )
        for index, replicas in wanted.items()
    ]
    request = AlterPartitionReassignmentsRequest(
        timeout_ms=_TIMEOUT_MS,
        topics=[AlterPartitionReassignmentsRequest.ReassignableTopic(name=topic, partitions=rows)],
    )
    answer = asker.controller(request, AlterPartitionReassignmentsResponse)
    check(answer.error_code, f"replicas of {topic}", answer.error_message)
    for told in answer.responses:
        for row in told.partitions:
            check(row.error_code, f"replicas of {topic}-{row.partition_index}", row.error_message)


def elect_preferred(asker: Asker) -> int:
    """Have the first replica of each partition lead it; returns how many leaders moved."""
    request = ElectLeadersRequest(election_type=0, topic_partitions=None, timeout_ms=_TIMEOUT_MS)
    answer = asker.controller(request, ElectLeadersResponse)
    check(answer.error_code, "the election of preferred leaders")
    rows = [row for topic in answer.replica_election_results for row in topic.partition_result]
    for row in rows:
        if row.error_code not in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED):
            raise BrokerError(row.error_code, f"the election of partition {row.partition_id}: {row.error_message}")
    return sum(not row.error_code for row in rows)


# ---- transactions ---------------------------------------------------------------------------------------------------


class Transaction(NamedTuple):
    id: str
    producer_id: int
    epoch: int
    state: str
    coordinator: int
    timeout_ms: int
    started_ms: int
    partitions: tuple[str, ...]


class Listing(NamedTuple):
    """A transaction as a list has it: what it has written has to be asked for."""

    id: str
    producer_id: int
    state: str
    coordinator: int


def transactions(asker: Asker, pattern: str = "") -> list[Listing]:
    """Those whose id has the pattern, the ongoing first."""
    listed: list[Listing] = []
    for broker in asker.brokers:
        answer = asker.broker(broker, ListTransactionsRequest(), ListTransactionsResponse)
        check(answer.error_code, f"transactions of broker {broker}")
        listed += [
            Listing(row.transactional_id, row.producer_id, row.transaction_state, broker)
            for row in answer.transaction_states
            if pattern.lower() in row.transactional_id.lower()
        ]
    return sorted(listed, key=lambda row: (row.state != "Ongoing", row.id))


def described(asker: Asker, shown: Sequence[Listing]) -> list[Transaction]:
    """A page of them, with what the ongoing are doing."""
    by_broker: defaultdict[int, list[str]] = defaultdict(list)
    for name, _, state, broker in shown:
        if state == "Ongoing":
            by_broker[broker].append(name)
    details = {}
    for broker, names in by_broker.items():
        answer_2 = asker.broker(
            broker, DescribeTransactionsRequest(transactional_ids=names), DescribeTransactionsResponse
        )
        for told in answer_2.transaction_states:
            if not told.error_code:
                details[told.transactional_id] = told
    found = []
    for name, producer_id, state, broker in shown:
        detail = details.get(name)
        parts = (
            ()
            if detail is None
            else tuple(f"{topic.topic}-{index}" for topic in detail.topics for index in topic.partitions)
        )
        found.append(
            Transaction(
                name,
                producer_id,
                detail.producer_epoch if detail else -1,
                detail.transaction_state if detail else state,
                broker,
                detail.transaction_timeout_ms if detail else -1,
                detail.transaction_start_time_ms if detail else -1,
                parts,
            )
        )
    return found
