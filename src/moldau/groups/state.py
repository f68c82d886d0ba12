"""Everything a shard knows, and the effects it is collecting for the event at hand.

The handlers of this room are functions over this state. They check first and change afterwards: `GroupFailure` is
raised while nothing has changed yet, so a refused request leaves no trace.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from moldau.groups.classic import ClassicGroup
from moldau.groups.config import GroupConfig, GroupOverrides
from moldau.groups.consumer import ConsumerGroup
from moldau.groups.effects import (
    Entry,
    GroupFailure,
    Now,
    Prepared,
    Producer,
    Record,
    RegexResolution,
    RequestContext,
    Response,
)
from moldau.groups.metadata import MetadataImage
from moldau.groups.offsets import OffsetStore
from moldau.groups.timers import Deadlines, Timer, TimerKey, TimerKind, Timers
from moldau.seams.randomness import Random
from moldau.wire.errors import ErrorCode
from moldau.wire.message import Message

Group = ClassicGroup | ConsumerGroup


class Savepoint(NamedTuple):
    """A group before the event at hand changed it."""

    group: Group | None
    """None: there was none."""
    timers: Deadlines


@dataclass(slots=True)
class ShardState:
    config: GroupConfig
    random: Random
    overrides: Callable[[str], GroupOverrides]
    image: MetadataImage
    now: Now
    groups: dict[str, Group] = field(default_factory=dict)
    offsets: OffsetStore = field(default_factory=OffsetStore)
    timers: Timers = field(default_factory=Timers)
    topic_hashes: dict[str, int] = field(default_factory=dict)
    """Hashes of subscribed topics, until the topic changes."""
    new_topics_version: int = -1
    """Version of the last image with a topic the one before did not have."""
    expiry_queue: list[str] = field(default_factory=list)
    """Groups the expiry round under way has still to look at."""

    # Effects of the event at hand.
    records: list[Record] = field(default_factory=list)
    responses: list[Response] = field(default_factory=list)
    regex_resolutions: list[RegexResolution] = field(default_factory=list)
    producer: Producer | None = None
    entries: list[Entry] = field(default_factory=list)
    """Of `records`, those that take effect once they are in the log."""

    # To take them back, see `undo`.
    savepoints: dict[str, Savepoint] = field(default_factory=dict)
    request: tuple[int, Message] | None = None
    """The request at hand and its id; None: the event is none."""
    timer: Timer | None = None
    """The timer at hand."""
    prepared: Prepared | None = None
    """What was made ahead for the request at hand."""

    def respond(self, request_id: int, message: Message) -> None:
        self.responses.append(Response(request_id, message))

    def schedule(self, kind: TimerKind, group_id: str, member_id: str, delay_ms: float, *detail: int) -> None:
        self.timers.schedule(TimerKey(group_id, kind, member_id), self.now.monotonic_ms + delay_ms, *detail)

    def cancel(self, kind: TimerKind, group_id: str, member_id: str = "") -> None:
        self.timers.cancel(TimerKey(group_id, kind, member_id))

    def group(self, group_id: str) -> Group:
        group = self.groups.get(group_id)
        if group is None:
            raise GroupFailure(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        return group

    def classic_group(self, group_id: str) -> ClassicGroup | None:
        """For timers: the group may have been deleted or converted since they were set."""
        group = self.groups.get(group_id)
        return group if isinstance(group, ClassicGroup) else None

    def consumer_group(self, group_id: str) -> ConsumerGroup:
        group = self.group(group_id)
        if not isinstance(group, ConsumerGroup):
            raise GroupFailure(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} uses another protocol.")
        return group

    def new_member_id(self, context: RequestContext, group_instance_id: str | None) -> str:
        """As Kafka makes them for classic groups: the instance id, or the client id, and a UUID."""
        digits = self.random.uuid().hex()
        uuid = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
        return f"{context.client_id if group_instance_id is None else group_instance_id}-{uuid}"
