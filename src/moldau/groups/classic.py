"""A classic group: its members, and the states it goes through.

Empty -> PreparingRebalance -> CompletingRebalance -> Stable, and back to PreparingRebalance whenever membership or
metadata change. The members of a Stable group, with their assignments, are one GroupMetadata record; everything
between two such records (who is waiting, who is pending) is soft state that a coordinator change may forget: clients
simply join again.

Invariants
- Every member speaks every protocol the group may select: at least one protocol is supported by all.
- An instance id belongs to at most one member.
- Requests that wait are in `awaiting_join` and `awaiting_sync`, by member; a member waits in at most one of the two.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from enum import Enum

from moldau.groups import embedded
from moldau.groups.effects import GroupFailure
from moldau.wire import messages as m
from moldau.wire.errors import ErrorCode
from moldau.wire.primitives import MalformedFrame

Protocols = tuple[tuple[str, bytes], ...]
"""(name, metadata) in the member's order of preference."""


class ClassicState(Enum):
    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(slots=True)
class ClassicMember:
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    is_new: bool = False
    """Never got a JoinGroup answer: its session ends after a time of its own, even while it waits."""

    def metadata(self, protocol_name: str | None) -> bytes:
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        raise KeyError(f"member {self.member_id} does not speak {protocol_name}")


@dataclass(slots=True)
class ClassicGroup:
    group_id: str
    state: ClassicState = ClassicState.EMPTY
    state_timestamp_ms: int = -1
    generation_id: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str | None = None
    members: dict[str, ClassicMember] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    """Instance id to member id."""
    subscribed_topics: frozenset[str] | None = None
    """What the members read, if that can be told: only for the consumer protocol type."""

    # Soft state: never written, gone after a reload.
    came_from_empty: bool = False
    """The rebalance under way is the group's first: it waits for more members before it completes."""
    new_member_added: bool = False
    pending_members: set[str] = field(default_factory=set)
    """Member ids given out and not yet used (KIP-394)."""
    pending_sync: set[str] = field(default_factory=set)
    """Members of this generation that have not asked for their assignment yet."""
    awaiting_join: dict[str, int] = field(default_factory=dict)
    awaiting_sync: dict[str, int] = field(default_factory=dict)
    support: Counter[str] = field(default_factory=Counter)
    """How many members speak each protocol."""

    def copy(self) -> ClassicGroup:
        """With members of its own: what is done to one is not done to the other."""
        return replace(
            self,
            members={member_id: replace(member) for member_id, member in self.members.items()},
            static_members=dict(self.static_members),
            pending_members=set(self.pending_members),
            pending_sync=set(self.pending_sync),
            awaiting_join=dict(self.awaiting_join),
            awaiting_sync=dict(self.awaiting_sync),
            support=self.support.copy(),
        )

    @property
    def is_empty(self) -> bool:
        return self.state is ClassicState.EMPTY

    @property
    def is_simple(self) -> bool:
        """Only ever used to store offsets, without members."""
        return self.protocol_type is None and self.is_empty and not self.pending_members

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == embedded.PROTOCOL_TYPE

    @property
    def all_members_joined(self) -> bool:
        return len(self.awaiting_join) == len(self.members) and not self.pending_members

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def transition_to(self, state: ClassicState, wall_ms: int) -> None:
        self.came_from_empty = self.state is ClassicState.EMPTY and state is ClassicState.PREPARING_REBALANCE
        self.state = state
        self.state_timestamp_ms = wall_ms

    def add(self, member: ClassicMember, protocol_type: str) -> None:
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        self._count_support(member.protocols, 1)
        self.pending_members.discard(member.member_id)

    def remove(self, member_id: str) -> None:
        """Forget a member or a pending member id. The caller has answered what the member was waiting for."""
        self.pending_members.discard(member_id)
        self.pending_sync.discard(member_id)
        self.awaiting_join.pop(member_id, None)
        self.awaiting_sync.pop(member_id, None)
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self._count_support(member.protocols, -1)
        if member.group_instance_id is not None:
            self.static_members.pop(member.group_instance_id, None)
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)

    def update(self, member: ClassicMember, protocols: Protocols) -> None:
        self._count_support(member.protocols, -1)
        member.protocols = protocols
        self._count_support(protocols, 1)

    def replace_static(self, old_member_id: str, new_member_id: str) -> ClassicMember:
        """Give a static member a new member id; its place, assignment and leadership stay."""
        member = self.members.pop(old_member_id)
        member.member_id = new_member_id
        self.members[new_member_id] = member
        if self.leader_id == old_member_id:
            self.leader_id = new_member_id
        assert member.group_instance_id is not None
        self.static_members[member.group_instance_id] = new_member_id
        # The bounced process has to sync itself: the old one's progress is not its own.
        if old_member_id in self.pending_sync:
            self.pending_sync.discard(old_member_id)
            self.pending_sync.add(new_member_id)
        return member

    def supports(self, protocol_type: str, names: set[str]) -> bool:
        """Could a member with these protocols join?"""
        if self.state is ClassicState.EMPTY:
            return bool(protocol_type and names)
        everyone = len(self.members)
        return protocol_type == self.protocol_type and any(self.support[name] == everyone for name in names)

    def select_protocol(self) -> str:
        """Each member votes for its favourite of those all support; most votes win, on a draw the first voted for."""
        candidates = {name for name, count in self.support.items() if count == len(self.members)}
        votes: Counter[str] = Counter()
        for member in self.members.values():
            votes[next(name for name, _ in member.protocols if name in candidates)] += 1
        return votes.most_common(1)[0][0]

    def elect_joined_leader(self) -> bool:
        """Keep the leader if it joined, else take the first member that did. False: nobody did."""
        if self.leader_id is None:
            return False
        if self.leader_id not in self.awaiting_join:
            joined = next((member_id for member_id in self.members if member_id in self.awaiting_join), None)
            if joined is None:
                return False
            self.leader_id = joined
        return True

    def start_next_generation(self, wall_ms: int) -> None:
        """After the join phase: CompletingRebalance with the members that joined, or Empty when none is left."""
        self.generation_id += 1
        self.protocol_name = self.select_protocol() if self.members else None
        self.subscribed_topics = self.read_subscriptions()
        self.transition_to(ClassicState.COMPLETING_REBALANCE if self.members else ClassicState.EMPTY, wall_ms)
        self.pending_sync.clear()

    def read_subscriptions(self) -> frozenset[str] | None:
        if not self.uses_consumer_protocol:
            return None
        if not self.members:
            return frozenset()
        if self.protocol_name is None:
            return None
        topics: set[str] = set()
        try:
            for member in self.members.values():
                topics.update(embedded.decode_topics(member.metadata(self.protocol_name)))
        except MalformedFrame:
            return None  # a client with a format of its own: what it reads cannot be told
        return frozenset(topics)

    def is_subscribed_to(self, topic: str) -> bool:
        """When it cannot be told, a consumer group counts as subscribed: its offsets are not to be lost."""
        if self.subscribed_topics is None:
            return self.uses_consumer_protocol
        return topic in self.subscribed_topics

    def check_member(self, member_id: str, group_instance_id: str | None) -> ClassicMember:
        """The member, or GroupFailure: unknown, or fenced by a newer one with the same instance id."""
        if group_instance_id is not None:
            owner = self.static_members.get(group_instance_id)
            if owner is None:
                raise GroupFailure(ErrorCode.UNKNOWN_MEMBER_ID)
            if owner != member_id:
                raise GroupFailure(ErrorCode.FENCED_INSTANCE_ID)
        member = self.members.get(member_id)
        if member is None:
            raise GroupFailure(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def to_record(self) -> tuple[m.GroupMetadataKey, m.GroupMetadataValue]:
        value = m.GroupMetadataValue
        return m.GroupMetadataKey(group=self.group_id), value(
            protocol_type=self.protocol_type or "",
            generation=self.generation_id,
            protocol=self.protocol_name,
            leader=self.leader_id,
            current_state_timestamp=self.state_timestamp_ms,
            members=[
                value.MemberMetadata(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout=member.rebalance_timeout_ms,
                    session_timeout=member.session_timeout_ms,
                    subscription=member.metadata(self.protocol_name),
                    assignment=member.assignment,
                )
                for member in self.members.values()
            ],
        )

    def _count_support(self, protocols: Protocols, step: int) -> None:
        for name, _ in protocols:
            self.support[name] += step
            if not self.support[name]:
                del self.support[name]


def group_from_record(group_id: str, value: m.GroupMetadataValue) -> ClassicGroup:
    """The group as it was when the record was written: Stable, or Empty."""
    group = ClassicGroup(
        group_id,
        state=ClassicState.STABLE if value.members else ClassicState.EMPTY,
        state_timestamp_ms=value.current_state_timestamp,
        generation_id=value.generation,
        protocol_type=value.protocol_type or None,
        protocol_name=value.protocol,
        leader_id=value.leader,
    )
    for member in value.members:
        timeout = member.rebalance_timeout
        group.add(
            ClassicMember(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                # Version 0 of the record had no rebalance timeout.
                rebalance_timeout_ms=member.session_timeout if timeout == -1 else timeout,
                session_timeout_ms=member.session_timeout,
                # The record keeps the selected protocol only; the rest comes back when the member joins again.
                protocols=((value.protocol or "", member.subscription),),
                assignment=member.assignment,
            ),
            value.protocol_type,
        )
    group.subscribed_topics = group.read_subscriptions()
    return group


def protocols_of(request: m.JoinGroupRequest) -> Protocols:
    """In order of preference; a name given twice counts once, or the member would have two votes of support."""
    protocols: dict[str, bytes] = {}
    for protocol in request.protocols:
        protocols.setdefault(protocol.name, protocol.metadata)
    return tuple(protocols.items())
