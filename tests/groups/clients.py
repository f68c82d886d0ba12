"""Consumers that behave, on a network that does not: for property tests.

Each client sends its next request from what it was last told, as the Java clients do. An answer may get lost; the
client then repeats itself, in full, or goes on as if nothing had happened, as librdkafka does. The world
(`Simulation`) decides who acts, who crashes and when time passes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from moldau.groups.embedded import decode_assignment, decode_subscription, encode_assignment
from moldau.wire import messages as m
from moldau.wire.errors import ErrorCode
from moldau.wire.internal import encode_value
from moldau.wire.message import Message
from tests.groups.driver import Driver, topic_id

TopicPartition = tuple[str, int]

REFUSED = {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.UNKNOWN_SERVER_ERROR}
"""The coordinator moved, or cannot write: come again."""
SESSION_MS = 10_000
REBALANCE_MS = 20_000


@dataclass(slots=True, eq=False)
class ClassicClient:
    """JoinGroup, SyncGroup, Heartbeat. As leader it deals partitions out in turn, and again when there are others."""

    name: str
    topics: list[str]
    cooperative: bool = False
    instance: str | None = None
    member_id: str = ""
    generation: int = -1
    phase: str = "join"
    owned: set[TopicPartition] = field(default_factory=set)
    to_assign: list[Any] | None = None
    leads: bool = False
    dealt_counts: dict[str, int] = field(default_factory=dict)
    awaiting: bool = False
    dead: bool = False

    def act(self, driver: Driver) -> None:
        if self.awaiting or self.dead:
            return
        self.awaiting = True
        if self.phase == "stable" and self.leads and self.dealt_counts != self._counts(driver):
            self.phase = "join"  # a topic has grown: only the leader looks
        if self.phase == "join":
            self._join(driver)
        elif self.phase == "sync":
            self._sync(driver)
        else:
            request = m.HeartbeatRequest("g", self.generation, self.member_id, self.instance)
            driver.send(request, tag=self, version=4)

    def _join(self, driver: Driver) -> None:
        if not self.cooperative:
            self.owned = set()
        subscription = m.ConsumerProtocolSubscription(
            topics=self.topics,
            owned_partitions=[
                m.ConsumerProtocolSubscription.TopicPartition(topic=topic, partitions=[index])
                for topic, index in sorted(self.owned)
            ],
        )
        protocol = m.JoinGroupRequest.JoinGroupRequestProtocol
        request = m.JoinGroupRequest(
            group_id="g",
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type="consumer",
            protocols=[protocol(name="range", metadata=encode_value(subscription, 3))],
        )
        driver.send(request, tag=self, version=9, client_id=self.name)

    def _sync(self, driver: Driver) -> None:
        assignments = []
        if self.to_assign is not None:
            dealt = self._deal(driver)
            assignments = [
                m.SyncGroupRequest.SyncGroupRequestAssignment(
                    member_id=member_id,
                    assignment=encode_assignment(
                        [(topic_id(topic), index) for topic, index in partitions], driver.image, 3
                    ),
                )
                for member_id, partitions in dealt.items()
            ]
        request = m.SyncGroupRequest(
            "g", self.generation, self.member_id, self.instance, "consumer", "range", assignments
        )
        driver.send(request, tag=self, version=5)

    def _deal(self, driver: Driver) -> dict[str, set[TopicPartition]]:
        """Each partition to a reader in turn; a cooperative leader holds back what its owner has yet to give up."""
        assert self.to_assign is not None
        owners: dict[TopicPartition, str] = {}
        readers: dict[str, list[str]] = {}
        for member in self.to_assign:
            subscription = decode_subscription(member.metadata)
            for topic in subscription.topics:
                readers.setdefault(topic, []).append(member.member_id)
            for owned in subscription.owned_partitions:
                owners.update(((owned.topic, index), member.member_id) for index in owned.partitions)
        dealt: dict[str, set[TopicPartition]] = {member.member_id: set() for member in self.to_assign}
        self.dealt_counts = dict.fromkeys(readers, 0)
        self.dealt_counts = self._counts(driver)
        for topic, members in sorted(readers.items()):
            for index in range(self.dealt_counts[topic]):
                reader = sorted(members)[index % len(members)]
                if owners.get((topic, index), reader) == reader:
                    dealt[reader].add((topic, index))
        return dealt

    def _counts(self, driver: Driver) -> dict[str, int]:
        """How many partitions the topics it deals have now."""
        images = {topic: driver.image.topic_by_name(topic) for topic in self.dealt_counts}
        return {topic: 0 if image is None else image.partition_count for topic, image in images.items()}

    def on_answer(self, answer: Message) -> None:
        self.awaiting = False
        error = ErrorCode(answer.error_code)  # type: ignore[attr-defined]  # all three answers have one
        if error is ErrorCode.NONE:
            self._on_success(answer)
        elif error is ErrorCode.MEMBER_ID_REQUIRED:
            assert isinstance(answer, m.JoinGroupResponse)
            self.member_id = answer.member_id
        elif error is ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id, self.phase, self.owned = "", "join", set()
        elif error in {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION}:
            self.phase = "join"
            if error is ErrorCode.ILLEGAL_GENERATION:
                self.owned = set()
        elif error is ErrorCode.FENCED_INSTANCE_ID:
            self.dead, self.owned = True, set()
        else:
            assert error in REFUSED, f"{self.name} got {answer}"
            if self.phase == "sync":
                self.phase = "join"

    def _on_success(self, answer: Message) -> None:
        if isinstance(answer, m.JoinGroupResponse):
            self.member_id = answer.member_id
            self.generation = answer.generation_id
            self.leads = answer.leader == answer.member_id
            self.to_assign = answer.members if self.leads and not answer.skip_assignment else None
            # A leader that came back to a group at work does not know what was dealt: it will join again and look.
            self.dealt_counts = dict.fromkeys(self.topics, -1)
            self.phase = "sync"
        elif isinstance(answer, m.SyncGroupResponse):
            given = decode_assignment(answer.assignment).assigned_partitions if answer.assignment else []
            assigned = {(topic.topic, index) for topic in given for index in topic.partitions}
            # A cooperative member that had to give something up joins again, so that it can be given to others.
            self.phase = "join" if self.cooperative and self.owned - assigned else "stable"
            self.owned = assigned

    def on_loss(self) -> None:
        """The answer got lost: ask again. After a SyncGroup that means to join again, as the Java client does."""
        self.awaiting = False
        if self.phase == "sync":
            self.phase = "join"

    def leave(self, driver: Driver) -> None:
        identity = m.LeaveGroupRequest.MemberIdentity(self.member_id, self.instance)
        driver.send(m.LeaveGroupRequest(group_id="g", members=[identity]), tag=None, version=5)
        self.dead, self.owned = True, set()


@dataclass(slots=True, eq=False)
class ConsumerClient:
    """ConsumerGroupHeartbeat. Gives up partitions some time after it was told to."""

    name: str
    topics: list[str]
    regex: str | None = None
    instance: str | None = None
    member_id: str = ""
    epoch: int = 0
    owned: set[TopicPartition] = field(default_factory=set)
    assigned: set[TopicPartition] = field(default_factory=set)
    impatient: bool = False
    """Does not ask for all after it gave up waiting for an answer, and confirms only what changes what it owns."""
    must_say_all: bool = True
    has_new_target: bool = False
    owned_changed: bool = False
    awaiting: bool = False
    dead: bool = False

    def act(self, driver: Driver) -> None:
        if self.awaiting or self.dead:
            return
        self.awaiting = True
        self.member_id = self.member_id or f"{self.name}-{driver.next_request_id}"
        request = m.ConsumerGroupHeartbeatRequest(
            group_id="g", member_id=self.member_id, member_epoch=self.epoch, instance_id=self.instance
        )
        if self.epoch == 0:
            self.owned, self.assigned = set(), set()
        if self.must_say_all or self.epoch == 0:
            # Long for the impatient: nobody may be waiting for this timeout to learn what it missed.
            request.rebalance_timeout_ms = REBALANCE_MS * (100 if self.impatient else 1)
            request.subscribed_topic_names = self.topics
            request.subscribed_topic_regex = self.regex or ""
        if self.must_say_all or self.owned_changed or self.epoch == 0:
            request.topic_partitions = [
                m.ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=topic_id(topic), partitions=[index])
                for topic, index in sorted(self.owned)
            ]
        driver.send(request, tag=self, version=1, client_id=self.name)

    def take_assigned(self) -> None:
        """Give up what is no longer assigned, take what is."""
        if not self.awaiting and (self.owned != self.assigned or (self.has_new_target and not self.impatient)):
            self.owned = set(self.assigned)
            self.owned_changed = True
            self.has_new_target = False

    def on_answer(self, answer: Message) -> None:
        assert isinstance(answer, m.ConsumerGroupHeartbeatResponse)
        self.awaiting = False
        error = ErrorCode(answer.error_code)
        if error is ErrorCode.NONE:
            self.epoch = answer.member_epoch
            self.must_say_all, self.owned_changed = False, False
            if answer.assignment is not None:
                target = {
                    (topic.topic_id.rstrip(b"\0").decode(), index)
                    for topic in answer.assignment.topic_partitions
                    for index in topic.partitions
                }
                self.has_new_target = self.has_new_target or target != self.assigned
                self.assigned = target
        elif error in {ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND}:
            self.epoch, self.owned, self.assigned = 0, set(), set()
        elif error in REFUSED:
            self.on_new_coordinator()
        elif error in {ErrorCode.FENCED_INSTANCE_ID, ErrorCode.UNRELEASED_INSTANCE_ID}:
            self.dead, self.owned = True, set()
        else:
            raise AssertionError(f"{self.name} got {answer}")

    def on_loss(self) -> None:
        self.awaiting = False
        self.must_say_all = self.must_say_all or not self.impatient

    def on_new_coordinator(self) -> None:
        """Every client notices that: its connection breaks, or it is told NOT_COORDINATOR."""
        self.must_say_all = True

    def leave(self, driver: Driver) -> None:
        request = m.ConsumerGroupHeartbeatRequest(
            group_id="g", member_id=self.member_id, member_epoch=-1, instance_id=self.instance
        )
        if self.member_id:
            driver.send(request, tag=None, version=1)
        self.dead, self.owned = True, set()


Client = ClassicClient | ConsumerClient


@dataclass(slots=True)
class Simulation:
    driver: Driver
    clients: list[Client] = field(default_factory=list)
    started: int = 0

    @property
    def alive(self) -> list[Client]:
        return [client for client in self.clients if not client.dead]

    def start(self, client: Client) -> None:
        self.started += 1
        self.clients.append(client)

    def deliver(self, *, lose: bool = False) -> None:
        for client, answer in self.driver.take_answers():
            if client is None or client.dead:
                continue
            if lose:
                client.on_loss()
            else:
                client.on_answer(answer)
        self.check_ownership()

    def check_ownership(self) -> None:
        """Of members the coordinator knows, at the same generation or at the epoch it knows, no two own a partition.

        A process that was fenced (its session ended, or another took its instance id) may not have noticed yet.
        """
        members = getattr(self.driver.shard.state.groups.get("g"), "members", {})
        held: dict[tuple[int, TopicPartition], str] = {}
        for client in self.alive:
            member = members.get(client.member_id)
            if member is None:
                continue
            if isinstance(client, ConsumerClient):
                epoch = -1 if member.member_epoch == client.epoch else None
            else:
                epoch = client.generation if client.phase == "stable" else None
            for partition in client.owned if epoch is not None else ():
                key = (epoch or 0, partition)
                assert key not in held, f"{key} owned by {held[key]} and {client.name}"
                held[key] = client.name

    def settle_down(self, rounds: int) -> None:
        """No more faults: everybody acts in turn, and time passes as between heartbeats."""
        for number in range(rounds):
            for position, client in enumerate(self.alive):
                # Some are quick to take and give up partitions, others are not: never all at the same moment.
                if isinstance(client, ConsumerClient) and (number + position) % 2:
                    client.take_assigned()
                    self.check_ownership()
                client.act(self.driver)
                self.deliver()
            self.driver.advance(3_000)
            self.deliver()

    def owned(self) -> dict[TopicPartition, list[str]]:
        found: dict[TopicPartition, list[str]] = {}
        for client in self.alive:
            for partition in client.owned:
                found.setdefault(partition, []).append(client.name)
        return found
