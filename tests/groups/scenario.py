"""Scenarios as text: events, and what the coordinator made of them.

A file is a list of steps: one event per line, then `----`, then what happened, then a blank line. Clients have names;
what they learn (member id, generation, epoch, partitions) they remember and use in their next request, as real
clients do. An option on the line overrides that, to play a confused client. Records are written `+` (value) and `-`
(tombstone), answers `name <-`. `MOLDAU_REWRITE_SCENARIOS=1` writes what happens now into the files; read the diff
before you commit it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moldau.groups import GroupConfig, MigrationPolicy
from moldau.groups.embedded import decode_assignment, encode_assignment
from moldau.groups.records import decode_entry
from moldau.wire import messages as m
from moldau.wire.errors import ErrorCode
from moldau.wire.internal import encode_value
from moldau.wire.message import Message
from tests.groups.driver import Driver, topic_id

Options = dict[str, str]


@dataclass(slots=True)
class Client:
    """A consumer, of either protocol, as far as its requests show."""

    name: str
    group: str = "g"
    member_id: str = ""
    generation: int = -1
    epoch: int = 0
    instance: str | None = None
    topics: list[str] = field(default_factory=list)
    protocols: list[str] = field(default_factory=lambda: ["range"])
    regex: str | None = None
    owned: set[tuple[str, int]] = field(default_factory=set)
    selected: str | None = "range"
    """The protocol the coordinator chose."""
    session_ms: int = 10_000
    rebalance_ms: int = 30_000


def partitions_of(text: str) -> set[tuple[str, int]]:
    """ "orders:0,1 bills:2" as pairs."""
    found = set()
    for part in text.split():
        topic, _, indexes = part.partition(":")
        found |= {(topic, int(index)) for index in indexes.split(",") if index}
    return found


def show_partitions(pairs: Iterable[tuple[str, int]]) -> str:
    by_topic: dict[str, list[str]] = {}
    for topic, index in sorted(pairs):
        by_topic.setdefault(topic, []).append(str(index))
    return " ".join(f"{topic}:{','.join(indexes)}" for topic, indexes in by_topic.items()) or "nothing"


class Scenario:
    """Runs the steps of one file."""

    def __init__(self) -> None:
        self.driver = Driver()
        self.clients: dict[str, Client] = {}
        self.topics: dict[str, int] = {}
        self.names: dict[str, str] = {}  # member id to client name
        self.shown_log = 0

    def run(self, line: str) -> str:
        first, *rest = shlex.split(line)
        words = [word for word in rest if "=" not in word or ":" in word.partition("=")[0]]
        options = dict(word.split("=", 1) for word in rest if word not in words)
        command = getattr(self, "do_" + first.replace("-", "_"), None)
        if command is not None:
            output = command(words, options)
        else:
            client = self.clients.setdefault(first, Client(first))
            action: Callable[..., str | None] = getattr(self, "client_" + words[0].replace("-", "_"))
            output = action(client, words[1:], options)
        return "\n".join([*([output] if output else []), *self._happened()])

    # The world.

    def do_config(self, words: list[str], options: Options) -> None:
        values: dict[str, Any] = {name: int(value) if value.isdigit() else value for name, value in options.items()}
        if "consumer_migration_policy" in values:
            values["consumer_migration_policy"] = MigrationPolicy(values["consumer_migration_policy"])
        self.driver = Driver(GroupConfig(**values))

    def do_topic(self, words: list[str], options: Options) -> None:
        self.topics[words[0]] = int(words[1])
        self.driver.set_topics(self.topics)

    def do_delete_topic(self, words: list[str], options: Options) -> None:
        del self.topics[words[0]]
        self.driver.set_topics(self.topics)
        self.driver.delete_topic_offsets(words)

    def do_time(self, words: list[str], options: Options) -> None:
        self.driver.advance(int(words[0]))

    def do_reload(self, words: list[str], options: Options) -> None:
        self.driver.reload()

    def do_txn_commit(self, words: list[str], options: Options) -> None:
        request = m.TxnOffsetCommitRequest(
            transactional_id=words[0],
            group_id=options.get("group", "g"),
            producer_id=int(words[0].removeprefix("P")),
            topics=[
                m.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        m.TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                            partition_index=index, committed_offset=offset
                        )
                    ],
                )
                for topic, index, offset in _offsets(words[1:])
            ],
        )
        if "as" in options:
            client = self.clients[options["as"]]
            request.member_id = client.member_id
            request.generation_id = int(options.get("generation", client.generation))
        self.driver.send(request, tag=words[0], version=5)

    def do_txn_end(self, words: list[str], options: Options) -> None:
        self.driver.end_transaction(int(words[0].removeprefix("P")), committed=words[1] == "commit")

    def do_fetch(self, words: list[str], options: Options) -> None:
        request = m.OffsetFetchRequest
        topics = None
        if len(words) > 1:
            topics = [
                request.OffsetFetchRequestTopics(name=topic, partition_indexes=[index])
                for topic, index in sorted(partitions_of(" ".join(words[1:])))
            ]
        group = request.OffsetFetchRequestGroup(group_id=words[0], topics=topics)
        if "as" in options:
            group.member_id = self.clients[options["as"]].member_id
            group.member_epoch = int(options.get("epoch", self.clients[options["as"]].epoch))
        self.driver.send(request(groups=[group], require_stable="stable" in options), tag="tool", version=10)

    def do_commit(self, words: list[str], options: Options) -> None:
        """A simple consumer: no member id, no generation."""
        self._commit("tool", options.get("group", "g"), words, options, "", -1)

    def do_delete_offsets(self, words: list[str], options: Options) -> None:
        request = m.OffsetDeleteRequest
        topics = [
            request.OffsetDeleteRequestTopic(
                name=topic, partitions=[request.OffsetDeleteRequestPartition(partition_index=index)]
            )
            for topic, index in sorted(partitions_of(" ".join(words[1:])))
        ]
        self.driver.send(request(group_id=words[0], topics=topics), tag="tool", version=0)

    def do_list(self, words: list[str], options: Options) -> None:
        request = m.ListGroupsRequest(
            states_filter=options.get("states", "").split(",") if "states" in options else [],
            types_filter=options.get("types", "").split(",") if "types" in options else [],
        )
        self.driver.send(request, tag="tool", version=5)

    def do_describe(self, words: list[str], options: Options) -> None:
        version = int(options.get("version", 6))
        self.driver.send(m.DescribeGroupsRequest(groups=words), tag="tool", version=version)

    def do_describe_consumer(self, words: list[str], options: Options) -> None:
        self.driver.send(m.ConsumerGroupDescribeRequest(group_ids=words), tag="tool", version=1)

    def do_delete(self, words: list[str], options: Options) -> None:
        self.driver.send(m.DeleteGroupsRequest(groups_names=words), tag="tool", version=2)

    def do_remove(self, words: list[str], options: Options) -> None:
        """An administrator removes members: by client name, or static ones by instance id."""
        identity = m.LeaveGroupRequest.MemberIdentity
        members = [
            identity(group_instance_id=word[1:]) if word.startswith("@") else identity(self.clients[word].member_id)
            for word in words
        ]
        self.driver.send(
            m.LeaveGroupRequest(group_id=options.get("group", "g"), members=members), tag="tool", version=5
        )

    # Classic clients.

    def client_join(self, client: Client, words: list[str], options: Options) -> None:
        self._learn(client, options)
        owned = partitions_of(options["owned"]) if "owned" in options else client.owned
        subscription = m.ConsumerProtocolSubscription(
            topics=client.topics,
            owned_partitions=[
                m.ConsumerProtocolSubscription.TopicPartition(topic=topic, partitions=[index])
                for topic, index in sorted(owned)
            ],
        )
        request = m.JoinGroupRequest(
            group_id=client.group,
            session_timeout_ms=client.session_ms,
            rebalance_timeout_ms=client.rebalance_ms,
            member_id=self._member_id(client, options),
            group_instance_id=client.instance,
            protocol_type=options.get("type", "consumer"),
            protocols=[
                m.JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=encode_value(subscription, 3))
                for name in client.protocols
            ],
        )
        self._send(client, request, int(options.get("version", 9)))

    def client_sync(self, client: Client, words: list[str], options: Options) -> None:
        assignments = [
            m.SyncGroupRequest.SyncGroupRequestAssignment(
                member_id=self.clients[name].member_id,
                assignment=encode_assignment(
                    [(topic_id(topic), index) for topic, index in partitions_of(text)], self.driver.image, 3
                ),
            )
            for name, text in options.items()
            if name in self.clients
        ]
        request = m.SyncGroupRequest(
            group_id=client.group,
            generation_id=int(options.get("generation", client.generation)),
            member_id=self._member_id(client, options),
            group_instance_id=client.instance,
            protocol_type=options.get("type", "consumer"),
            protocol_name=options.get("protocol", client.selected),
            assignments=assignments,
        )
        self._send(client, request, int(options.get("version", 5)))

    def client_heartbeat(self, client: Client, words: list[str], options: Options) -> None:
        request = m.HeartbeatRequest(
            group_id=client.group,
            generation_id=int(options.get("generation", client.generation)),
            member_id=self._member_id(client, options),
            group_instance_id=client.instance,
        )
        self._send(client, request, 4)

    def client_leave(self, client: Client, words: list[str], options: Options) -> None:
        identity = m.LeaveGroupRequest.MemberIdentity(self._member_id(client, options), client.instance, "it is late")
        self._send(client, m.LeaveGroupRequest(group_id=client.group, members=[identity]), 5)

    def client_commit(self, client: Client, words: list[str], options: Options) -> None:
        self._learn(client, options)
        number = client.epoch if client.generation == -1 else client.generation
        generation = int(options.get("generation", options.get("epoch", number)))
        self._commit(client, client.group, words, options, self._member_id(client, options), generation)

    # Clients of the new protocol.

    def client_beat(self, client: Client, words: list[str], options: Options) -> None:
        """ConsumerGroupHeartbeat. A joining one says everything, a later one only what the line says."""
        self._learn(client, options)
        epoch = int(options.get("epoch", client.epoch))
        request = m.ConsumerGroupHeartbeatRequest(
            group_id=client.group,
            member_id=self._member_id(client, options) or f"id-of-{client.name}",
            member_epoch=epoch,
            instance_id=client.instance,
        )
        if epoch == 0:
            client.owned = set()
        if epoch == 0 or "full" in options:
            request.rebalance_timeout_ms = client.rebalance_ms
            request.subscribed_topic_names = client.topics
            request.subscribed_topic_regex = client.regex
            request.topic_partitions = []
        if "topics" in options:
            request.subscribed_topic_names = client.topics
        if "regex" in options:
            request.subscribed_topic_regex = client.regex
        request.server_assignor = options.get("assignor")
        if "owned" in options or "full" in options:
            owned = client.owned if options.get("owned", "all") == "all" else partitions_of(options["owned"])
            request.topic_partitions = [
                m.ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=topic_id(topic), partitions=[index])
                for topic, index in sorted(owned)
            ]
        if request.member_id not in self.names:
            self.names[request.member_id] = client.name
        self._send(client, request, int(options.get("version", 1)))

    # Below: what clients remember, and how things are shown.

    def _learn(self, client: Client, options: Options) -> None:
        for name in ("group", "instance", "regex"):
            if name in options:
                setattr(client, name, options[name])
        for name in ("topics", "protocols"):
            if name in options:
                setattr(client, name, [item for item in options[name].split(",") if item])
        for name in ("session_ms", "rebalance_ms"):
            if name in options:
                setattr(client, name, int(options[name]))

    def _member_id(self, client: Client, options: Options) -> str:
        if "member" in options:
            client.member_id = options["member"] and self.clients[options["member"]].member_id
        return client.member_id

    def _send(self, client: Client, request: Message, version: int) -> None:
        self.driver.send(request, tag=client, version=version, client_id=client.name)

    def _commit(
        self, tag: object, group: str, words: list[str], options: Options, member_id: str, generation: int
    ) -> None:
        request = m.OffsetCommitRequest
        topics = [
            request.OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    request.OffsetCommitRequestPartition(
                        partition_index=index,
                        committed_offset=offset,
                        committed_leader_epoch=int(options.get("leader_epoch", -1)),
                        committed_metadata=options.get("metadata"),
                    )
                ],
            )
            for topic, index, offset in _offsets(words)
        ]
        instance = tag.instance if isinstance(tag, Client) else None
        message = request(
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=instance,
            retention_time_ms=int(options.get("retention_ms", -1)),
            topics=topics,
        )
        self.driver.send(message, tag=tag, version=int(options.get("version", 9)))

    def _happened(self) -> list[str]:
        answers = self.driver.take_answers()
        for who, answer in answers:
            if isinstance(who, Client):
                self._remember(who, answer)
        lines = [self._show_record(index) for index in range(self.shown_log, len(self.driver.log))]
        self.shown_log = len(self.driver.log)
        lines += [self._show_answer(who, answer) for who, answer in answers]
        return lines or ["nothing"]

    def _remember(self, client: Client, answer: Message) -> None:
        if isinstance(answer, m.JoinGroupResponse):
            if answer.member_id and answer.error_code in {ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED}:
                client.member_id = answer.member_id
                self.names[answer.member_id] = client.name
            if answer.error_code == ErrorCode.NONE:
                client.generation = answer.generation_id
                client.selected = answer.protocol_name
        elif isinstance(answer, m.SyncGroupResponse) and answer.error_code == ErrorCode.NONE:
            client.owned = _assigned(answer.assignment)
        elif isinstance(answer, m.ConsumerGroupHeartbeatResponse) and answer.error_code == ErrorCode.NONE:
            client.member_id = answer.member_id or ""
            client.epoch = answer.member_epoch
            if answer.assignment is not None:
                client.owned = {
                    (self._topic(topic.topic_id), index)
                    for topic in answer.assignment.topic_partitions
                    for index in topic.partitions
                }

    def _topic(self, identifier: bytes) -> str:
        return identifier.rstrip(b"\0").decode()

    def _name(self, member_id: str | None) -> str:
        return self.names.get(member_id or "", member_id or "nobody")

    def _show_record(self, index: int) -> str:
        entry = self.driver.log[index]
        if entry.marker is not None:
            return f"marker P{entry.producer_id} {'commit' if entry.marker else 'abort'}"
        decoded = decode_entry(entry.key, entry.value)
        assert decoded is not None
        key, value = decoded
        sign = "-" if value is None else "+"
        transactional = f" in P{entry.producer_id}" if entry.producer_id != -1 else ""
        return f"{sign} {self._show_key(key)}{self._show_value(value)}{transactional}"

    def _show_key(self, key: Any) -> str:
        match key:
            case m.OffsetCommitKey():
                return f"offset {key.group} {key.topic}-{key.partition}"
            case m.GroupMetadataKey():
                return f"group {key.group}"
            case m.ConsumerGroupMetadataKey():
                return f"epoch {key.group_id}"
            case m.ConsumerGroupMemberMetadataKey():
                return f"member {key.group_id} {self._name(key.member_id)}"
            case m.ConsumerGroupTargetAssignmentMetadataKey():
                return f"target-epoch {key.group_id}"
            case m.ConsumerGroupTargetAssignmentMemberKey():
                return f"target {key.group_id} {self._name(key.member_id)}"
            case m.ConsumerGroupCurrentMemberAssignmentKey():
                return f"current {key.group_id} {self._name(key.member_id)}"
            case m.ConsumerGroupRegularExpressionKey():
                return f"regex {key.group_id} {key.regular_expression}"
            case _:
                assert isinstance(key, m.ConsumerGroupPartitionMetadataKey)
                return f"partition-metadata {key.group_id}"

    def _show_value(self, value: Any) -> str:
        match value:
            case None:
                return ""
            case m.OffsetCommitValue():
                epoch = "" if value.leader_epoch == -1 else f" leader epoch {value.leader_epoch}"
                metadata = f" metadata {value.metadata!r}" if value.metadata else ""
                return f" = {value.offset}{epoch}{metadata}"
            case m.GroupMetadataValue():
                members = ", ".join(
                    f"{self._name(member.member_id)}({show_partitions(_assigned(member.assignment))})"
                    for member in value.members
                )
                leader = self._name(value.leader)
                return f" generation {value.generation} {value.protocol or '-'} leader {leader}: {members or 'empty'}"
            case m.ConsumerGroupMetadataValue():
                return f" = {value.epoch}"
            case m.ConsumerGroupMemberMetadataValue():
                wants = ",".join(value.subscribed_topic_names)
                regex = f" ~{value.subscribed_topic_regex}" if value.subscribed_topic_regex else ""
                static = f" instance {value.instance_id}" if value.instance_id else ""
                classic = " classic" if value.classic_member_metadata is not None else ""
                return f" reads {wants or '-'}{regex}{static}{classic}"
            case m.ConsumerGroupTargetAssignmentMetadataValue():
                return f" = {value.assignment_epoch}"
            case m.ConsumerGroupTargetAssignmentMemberValue():
                return f" = {self._show_ids(value.topic_partitions)}"
            case m.ConsumerGroupCurrentMemberAssignmentValue():
                state = {0: "stable", 1: "must give up", 2: "waits for more"}[value.state]
                revoking = value.partitions_pending_revocation
                pending = f", giving up {self._show_ids(revoking)}" if revoking else ""
                owned = self._show_ids(value.assigned_partitions)
                return f" at {value.member_epoch} (was {value.previous_member_epoch}) {state}: {owned}{pending}"
            case m.ConsumerGroupRegularExpressionValue():
                return f" matches {','.join(value.topics) or 'nothing'}"
            case _:
                return f" {value}"

    def _show_ids(self, topics: Any) -> str:
        return show_partitions((self._topic(topic.topic_id), index) for topic in topics for index in topic.partitions)

    def _show_answer(self, who: object, answer: Any) -> str:
        name = who.name if isinstance(who, Client) else who
        return f"{name} <- {self._show_message(answer)}"

    def _show_message(self, answer: Any) -> str:
        code = ErrorCode(getattr(answer, "error_code", 0))
        error = "" if code is ErrorCode.NONE else code.name
        match answer:
            case m.JoinGroupResponse():
                if error:
                    return f"join {error}"
                members = ",".join(self._name(member.member_id) for member in answer.members)
                listed = f" members {members}" if members else ""
                skip = " skip assignment" if answer.skip_assignment else ""
                leader = self._name(answer.leader)
                return f"join generation {answer.generation_id} {answer.protocol_name} leader {leader}{listed}{skip}"
            case m.SyncGroupResponse():
                return f"sync {error or show_partitions(_assigned(answer.assignment))}"
            case m.HeartbeatResponse():
                return f"heartbeat {error or 'ok'}"
            case m.LeaveGroupResponse():
                return "leave " + (error or " ".join(_ok(member.error_code) for member in answer.members))
            case m.OffsetCommitResponse() | m.TxnOffsetCommitResponse():
                return "commit " + " ".join(
                    f"{topic.name}-{partition.partition_index} {_ok(partition.error_code)}"
                    for topic in answer.topics
                    for partition in topic.partitions
                )
            case m.OffsetFetchResponse():
                return "; ".join(self._show_fetched(group) for group in answer.groups)
            case m.OffsetDeleteResponse():
                return "deleted " + (
                    error
                    or " ".join(
                        f"{topic.name}-{partition.partition_index} {_ok(partition.error_code)}"
                        for topic in answer.topics
                        for partition in topic.partitions
                    )
                )
            case m.ListGroupsResponse():
                return "groups " + (
                    ", ".join(
                        f"{group.group_id} {group.group_type} {group.group_state}"
                        + (f" ({group.protocol_type})" if group.protocol_type else "")
                        for group in answer.groups
                    )
                    or "none"
                )
            case m.DeleteGroupsResponse():
                return "deleted " + " ".join(f"{result.group_id} {_ok(result.error_code)}" for result in answer.results)
            case m.DescribeGroupsResponse():
                return "; ".join(self._show_described(group) for group in answer.groups)
            case m.ConsumerGroupDescribeResponse():
                return "; ".join(self._show_described_consumer(group) for group in answer.groups)
            case m.ConsumerGroupHeartbeatResponse():
                if error:
                    return f"beat {error}"
                given = answer.assignment
                partitions = "" if given is None else f": {self._show_ids(given.topic_partitions)}"
                return f"beat epoch {answer.member_epoch}{partitions}"
            case _:
                raise AssertionError(f"cannot show {answer}")

    def _show_fetched(self, group: Any) -> str:
        if group.error_code:
            return f"offsets {_ok(group.error_code)}"
        shown = [
            f"{topic.name}-{partition.partition_index} "
            + (_ok(partition.error_code) if partition.error_code else _show_offset(partition))
            for topic in group.topics
            for partition in topic.partitions
        ]
        return f"offsets {', '.join(shown) or 'none'}"

    def _show_described(self, group: Any) -> str:
        if group.error_code:
            return f"{group.group_id} {group.group_state} {_ok(group.error_code)}"
        members = ", ".join(
            f"{self._name(member.member_id)}({show_partitions(_assigned(member.member_assignment))})"
            for member in group.members
        )
        return f"{group.group_id} {group.group_state} {group.protocol_data or '-'}: {members or 'empty'}"

    def _show_described_consumer(self, group: Any) -> str:
        if group.error_code:
            return f"{group.group_id} {_ok(group.error_code)}"
        members = ", ".join(
            f"{self._name(member.member_id)}@{member.member_epoch}"
            f"({self._show_ids(member.assignment.topic_partitions)} -> "
            f"{self._show_ids(member.target_assignment.topic_partitions)})" + ("" if member.member_type else " classic")
            for member in sorted(group.members, key=lambda member: self._name(member.member_id))
        )
        head = f"{group.group_id} {group.group_state} epoch {group.group_epoch} target {group.assignment_epoch}"
        return f"{head} {group.assignor_name}: {members or 'empty'}"


def _ok(code: int) -> str:
    return "ok" if code == 0 else ErrorCode(code).name


def _show_offset(partition: Any) -> str:
    epoch = "" if partition.committed_leader_epoch == -1 else f" leader epoch {partition.committed_leader_epoch}"
    metadata = f" metadata {partition.metadata!r}" if partition.metadata else ""
    return f"{partition.committed_offset}{epoch}{metadata}"


def _offsets(words: list[str]) -> list[tuple[str, int, int]]:
    """ "orders:0=5" as (topic, partition, offset)."""
    found = []
    for word in words:
        partition, _, offset = word.partition("=")
        topic, _, index = partition.partition(":")
        found.append((topic, int(index), int(offset)))
    return found


def _assigned(data: bytes) -> set[tuple[str, int]]:
    if not data:
        return set()
    return {(topic.topic, index) for topic in decode_assignment(data).assigned_partitions for index in topic.partitions}


def play(path: Path) -> tuple[str, str]:
    """The file as it is, and as it would be if it told what happens now."""
    written = path.read_text()
    scenario = Scenario()
    blocks = []
    for block in written.strip().split("\n\n"):
        events = block.split("\n----", 1)[0].split("\n")
        outputs = [scenario.run(line) for line in events if not line.startswith("#")]
        shown = [line for output in outputs for line in output.split("\n") if line != "nothing"] or ["nothing"]
        if all(line.startswith("#") for line in events):
            blocks.append("\n".join(events))
        else:
            blocks.append("\n".join([*events, "----", *shown]))
    return written, "\n\n".join(blocks) + "\n"
