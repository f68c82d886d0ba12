"""A consumer group (KIP-848): what its records say, and what follows from them.

The group epoch counts changes of members, subscriptions and topics. The target assignment is computed for a group
epoch and says what each member should own; the current assignment of a member says what it owns and how far it has
got towards the target.

Invariants
- State changes only through the `apply_*` methods, one per record type: a loaded group equals the one that wrote the
  records.
- A partition has at most one owner. A member owns what is assigned to it and what it has yet to give up; a partition
  is assigned to another member only after its owner gave it up.
- Members are immutable values; counts (subscribers, assignors, owners) are kept in step when a member is replaced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum

from moldau.groups.classic import Protocols
from moldau.groups.delivery import Delivery
from moldau.groups.records import Epochs, TopicPartition, epochs_from_record, epochs_to_record
from moldau.wire import messages as m

LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2


class ConsumerState(Enum):
    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class MemberState(Enum):
    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    """Has partitions to give up before it may move on."""
    UNRELEASED_PARTITIONS = 2
    """Has what it may have for now; waits for others to give up the rest."""
    UNKNOWN = 127
    """Written by a newer broker."""


class SubscriptionType(Enum):
    HOMOGENEOUS = "all members read the same topics"
    HETEROGENEOUS = "members read different topics"


@dataclass(slots=True, frozen=True)
class ClassicMemberData:
    """What a member that speaks the classic protocol brought along, so that the group can go back to it."""

    session_timeout_ms: int
    protocols: Protocols


@dataclass(slots=True, frozen=True)
class ConsumerMember:
    member_id: str
    member_epoch: int = 0
    previous_member_epoch: int = -1
    state: MemberState = MemberState.STABLE
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: frozenset[str] = frozenset()
    subscribed_topic_regex: str = ""
    """Empty: none."""
    server_assignor: str | None = None
    assigned: Epochs = field(default_factory=dict)
    pending_revocation: Epochs = field(default_factory=dict)
    classic: ClassicMemberData | None = None

    def is_reconciled_to(self, epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.member_epoch == epoch

    def assignment_epoch(self, partition: TopicPartition) -> int | None:
        """Since which epoch the member owns this partition; None: it does not."""
        epoch = self.assigned.get(partition)
        return self.pending_revocation.get(partition) if epoch is None else epoch


@dataclass(slots=True, frozen=True)
class ResolvedRegex:
    topics: frozenset[str]
    version: int
    """Version of the metadata image it was resolved against."""
    timestamp_ms: int


@dataclass(slots=True)
class ConsumerGroup:
    group_id: str
    group_epoch: int = 1
    """Starts at 1, so that no member stays at epoch 0, which means joining."""
    metadata_hash: int = 0
    assignment_epoch: int = 1
    """Group epoch the target assignment was computed for. A new group has an empty one for its first epoch."""
    assignment_timestamp_ms: int = 0
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    target: dict[str, frozenset[TopicPartition]] = field(default_factory=dict)
    resolved_regexes: dict[str, ResolvedRegex] = field(default_factory=dict)
    has_partition_metadata_record: bool = False
    """Written by Kafka before 4.1; to be removed when the group next changes."""

    # Follows from the above.
    static_members: dict[str, str] = field(default_factory=dict)
    owners: dict[TopicPartition, str] = field(default_factory=dict)
    assignors: Counter[str] = field(default_factory=Counter)
    regex_subscribers: Counter[str] = field(default_factory=Counter)
    name_subscribers: Counter[str] = field(default_factory=Counter)
    """How many members name a topic themselves."""
    regex_topics: Counter[str] = field(default_factory=Counter)
    """How many regular expressions match a topic."""
    classic_support: Counter[str] = field(default_factory=Counter)
    classic_count: int = 0

    # Soft state.
    metadata_expired: bool = True
    """A topic the group reads may have changed: the next heartbeat looks."""
    regex_resolution_pending: bool = False
    deliveries: dict[str, Delivery] = field(default_factory=dict)

    def copy(self) -> ConsumerGroup:
        """Members are values, and shared; soft state about the delivery of assignments is shared too."""
        return replace(
            self,
            members=dict(self.members),
            target=dict(self.target),
            resolved_regexes=dict(self.resolved_regexes),
            static_members=dict(self.static_members),
            owners=dict(self.owners),
            assignors=self.assignors.copy(),
            regex_subscribers=self.regex_subscribers.copy(),
            name_subscribers=self.name_subscribers.copy(),
            regex_topics=self.regex_topics.copy(),
            classic_support=self.classic_support.copy(),
            deliveries=dict(self.deliveries),
        )

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def state(self) -> ConsumerState:
        if not self.members:
            return ConsumerState.EMPTY
        if self.group_epoch > self.assignment_epoch:
            return ConsumerState.ASSIGNING
        if all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values()):
            return ConsumerState.STABLE
        return ConsumerState.RECONCILING

    @property
    def subscribed_topics(self) -> set[str]:
        return {*self.name_subscribers, *self.regex_topics}

    @property
    def subscription_type(self) -> SubscriptionType:
        everyone = len(self.members)
        if self.regex_subscribers:
            # One expression for everybody, and nobody names topics beside it.
            same = not self.name_subscribers and next(iter(self.regex_subscribers.values())) == everyone
            same = same and len(self.regex_subscribers) == 1
        else:
            same = all(count == everyone for count in self.name_subscribers.values())
        return SubscriptionType.HOMOGENEOUS if same else SubscriptionType.HETEROGENEOUS

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.name_subscribers or topic in self.regex_topics

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        member_id = None if instance_id is None else self.static_members.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        """Names of the topics a member reads, by name or by regular expression."""
        resolved = self.resolved_regexes.get(member.subscribed_topic_regex)
        return member.subscribed_topic_names if resolved is None else member.subscribed_topic_names | resolved.topics

    def preferred_assignor(self) -> str | None:
        """The one most members ask for; None when nobody asks."""
        return max(self.assignors, key=lambda name: self.assignors[name], default=None)

    def supports_classic(self, protocol_type: str, names: set[str]) -> bool:
        return protocol_type == "consumer" and any(self.classic_support[name] == self.classic_count for name in names)

    def waits_for_others(self, member: ConsumerMember) -> bool:
        """Is some partition of the member's target still owned by another member?"""
        target = self.target.get(member.member_id, frozenset())
        return any(partition not in member.assigned and partition in self.owners for partition in target)

    # One method per record type. A value of None is a tombstone.

    def apply_metadata(self, value: m.ConsumerGroupMetadataValue) -> None:
        self.group_epoch = value.epoch
        self.metadata_hash = value.metadata_hash

    def apply_member(self, member_id: str, value: m.ConsumerGroupMemberMetadataValue | None) -> None:
        if value is None:
            self._replace(member_id, None)
            return
        self._replace(
            member_id,
            replace(
                self.members.get(member_id, ConsumerMember(member_id)),
                instance_id=value.instance_id,
                rack_id=value.rack_id,
                client_id=value.client_id,
                client_host=value.client_host,
                subscribed_topic_names=frozenset(value.subscribed_topic_names),
                subscribed_topic_regex=value.subscribed_topic_regex or "",
                rebalance_timeout_ms=value.rebalance_timeout_ms,
                server_assignor=value.server_assignor,
                classic=_classic_data(value.classic_member_metadata),
            ),
        )

    def apply_current(self, member_id: str, value: m.ConsumerGroupCurrentMemberAssignmentValue | None) -> None:
        member = self.members.get(member_id)
        if value is None:
            if member is not None:
                gone = replace(
                    member,
                    member_epoch=LEAVE_EPOCH,
                    previous_member_epoch=LEAVE_EPOCH,
                    assigned={},
                    pending_revocation={},
                )
                self._replace(member_id, gone)
            return
        known = value.state in {state.value for state in MemberState}
        self._replace(
            member_id,
            replace(
                member or ConsumerMember(member_id),
                member_epoch=value.member_epoch,
                previous_member_epoch=value.previous_member_epoch,
                state=MemberState(value.state) if known else MemberState.UNKNOWN,
                assigned=epochs_from_record(value.assigned_partitions, value.member_epoch),
                pending_revocation=epochs_from_record(value.partitions_pending_revocation, value.member_epoch),
            ),
        )

    def apply_target(self, member_id: str, value: m.ConsumerGroupTargetAssignmentMemberValue | None) -> None:
        if value is None:
            self.target.pop(member_id, None)
            return
        self.target[member_id] = frozenset(
            (topic.topic_id, index) for topic in value.topic_partitions for index in topic.partitions
        )

    def apply_target_metadata(self, value: m.ConsumerGroupTargetAssignmentMetadataValue | None) -> None:
        self.assignment_epoch = -1 if value is None else value.assignment_epoch
        self.assignment_timestamp_ms = 0 if value is None else value.assignment_timestamp

    def apply_regex(self, regex: str, value: m.ConsumerGroupRegularExpressionValue | None) -> None:
        former = self.resolved_regexes.pop(regex, None)
        if former is not None:
            _count(self.regex_topics, former.topics, -1)
        if value is not None:
            resolved = ResolvedRegex(frozenset(value.topics), value.version, value.timestamp)
            self.resolved_regexes[regex] = resolved
            _count(self.regex_topics, resolved.topics, 1)

    def _replace(self, member_id: str, member: ConsumerMember | None) -> None:
        former = self.members.get(member_id)
        if former is not None:
            self._tally(former, -1)
            for partition in (*former.assigned, *former.pending_revocation):
                # A partition may have a new owner already: records of one batch need not come in the order of the
                # moves.
                if self.owners.get(partition) == member_id:
                    del self.owners[partition]
            if former.instance_id is not None and self.static_members.get(former.instance_id) == member_id:
                del self.static_members[former.instance_id]
        if member is None:
            self.members.pop(member_id, None)
            self.deliveries.pop(member_id, None)
        else:
            self.members[member_id] = member
            self._tally(member, 1)
            for partition in (*member.assigned, *member.pending_revocation):
                self.owners[partition] = member_id
            if member.instance_id is not None:
                self.static_members[member.instance_id] = member_id

    def _tally(self, member: ConsumerMember, step: int) -> None:
        _count(self.name_subscribers, member.subscribed_topic_names, step)
        if member.subscribed_topic_regex:
            _count(self.regex_subscribers, (member.subscribed_topic_regex,), step)
        if member.server_assignor is not None:
            _count(self.assignors, (member.server_assignor,), step)
        if member.classic is not None:
            self.classic_count += step
            _count(self.classic_support, (name for name, _ in member.classic.protocols), step)


def member_value(member: ConsumerMember) -> m.ConsumerGroupMemberMetadataValue:
    value = m.ConsumerGroupMemberMetadataValue
    classic = member.classic
    return value(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.subscribed_topic_names),
        subscribed_topic_regex=member.subscribed_topic_regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.server_assignor,
        classic_member_metadata=None
        if classic is None
        else value.ClassicMemberMetadata(
            session_timeout_ms=classic.session_timeout_ms,
            supported_protocols=[value.ClassicProtocol(name=name, metadata=data) for name, data in classic.protocols],
        ),
    )


def current_value(member: ConsumerMember) -> m.ConsumerGroupCurrentMemberAssignmentValue:
    return m.ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member.member_epoch,
        previous_member_epoch=member.previous_member_epoch,
        state=member.state.value,
        assigned_partitions=epochs_to_record(member.assigned),
        partitions_pending_revocation=epochs_to_record(member.pending_revocation),
    )


def _classic_data(
    value: m.ConsumerGroupMemberMetadataValue.ClassicMemberMetadata | None,
) -> ClassicMemberData | None:
    if value is None:
        return None
    protocols = tuple((protocol.name, protocol.metadata) for protocol in value.supported_protocols)
    return ClassicMemberData(value.session_timeout_ms, protocols)


def _count(counter: Counter[str], names: Iterable[str], step: int) -> None:
    for name in names:
        counter[name] += step
        if not counter[name]:
            del counter[name]
