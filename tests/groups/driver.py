"""A shard with a log, a clock and clients around it, for scenarios and property tests.

After every event the driver checks what must always hold: each request is answered exactly once, a shard loaded from
the log equals the live one, and no partition has two owners.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from moldau.groups import Effects, GroupConfig, GroupShard, Now, RequestContext, TopicImage, TopicsDelta, TopicsImage
from moldau.groups.classic import ClassicGroup, ClassicState
from moldau.groups.consumer import ConsumerGroup
from moldau.groups.regex import resolve
from moldau.groups.state import ShardState
from moldau.groups.timers import TimerKey, TimerKind
from moldau.seams.randomness import SeededRandom
from moldau.wire.errors import ErrorCode
from moldau.wire.message import Message

WALL_START_MS = 1_000_000_000_000
_SESSIONS = {TimerKind.CLASSIC_SESSION, TimerKind.CONSUMER_SESSION}


def topic_id(name: str) -> bytes:
    """Ids one can tell apart in a failing test."""
    return name.encode().ljust(16, b"\0")[:16]


@dataclass(slots=True)
class LogEntry:
    """What the driver keeps of the partition's log: a record, or the end of a transaction."""

    key: bytes = b""
    value: bytes | None = None
    producer_id: int = -1
    marker: bool | None = None


@dataclass(slots=True)
class Driver:
    config: GroupConfig = field(default_factory=GroupConfig)
    seed: int = 1
    now_ms: int = 0
    shard: GroupShard = field(init=False)
    image: TopicsImage = field(default_factory=TopicsImage)
    log: list[LogEntry] = field(default_factory=list)
    waiting: dict[int, object] = field(default_factory=dict)
    """Requests without an answer, with whatever the caller attached to them."""
    answers: list[tuple[object, Message]] = field(default_factory=list)
    """What was answered since `take_answers`."""
    next_request_id: int = 1
    deadline_ms: float | None = None
    resolves_regexes: bool = True
    checks_reload: bool = True
    checks_undo: bool = False
    """Whether a failed request must leave everything as it was."""
    fails: Callable[[Effects], ErrorCode | None] = lambda _: None
    """Whether an append fails, and how."""
    random: SeededRandom = field(init=False)
    _twin: GroupShard = field(init=False)
    """A shard that only ever replays the log: at any moment, what a new coordinator would load."""
    _replayed: int = 0

    def __post_init__(self) -> None:
        self.random = SeededRandom(self.seed)
        self.shard = GroupShard(self.config, self.random, self.image)
        self._twin = GroupShard(self.config, self.random, self.image)
        self._carry_out(self.shard.on_loaded(self.now))

    @property
    def now(self) -> Now:
        # A monotonic clock that starts elsewhere: code that mixed it up with the wall clock would show.
        return Now(5_000 + self.now_ms, WALL_START_MS + self.now_ms)

    def send(self, request: Message, *, tag: object = None, version: int, client_id: str = "client") -> Effects:
        request_id = self.next_request_id
        self.next_request_id += 1
        self.waiting[request_id] = tag
        context = RequestContext(request_id, version, client_id, "/127.0.0.1")
        before = whole_view(self.shard.state) if self.checks_undo else None
        return self._carry_out(self.shard.handle(request, context, self.now), before)

    def advance(self, delta_ms: int) -> list[Effects]:
        """Let time pass, ticking whenever the shard asked for it."""
        end_ms = self.now_ms + delta_ms
        happened = []
        while self.deadline_ms is not None and self.deadline_ms - 5_000 <= end_ms:
            self.now_ms = max(self.now_ms, int(self.deadline_ms) - 5_000)
            happened.append(self._carry_out(self.shard.tick(self.now)))
        self.now_ms = end_ms
        return happened

    def set_topics(self, counts: dict[str, int]) -> Effects:
        """The topics of the cluster, by number of partitions, from now on."""
        former = self.image
        topics = [TopicImage(name, topic_id(name), count) for name, count in counts.items()]
        self.image = TopicsImage.of(topics, former.version + 1)
        created = frozenset(counts) - frozenset(former.by_name)
        changed = frozenset(name for name in counts if former.by_name.get(name) != self.image.by_name[name])
        deleted = frozenset(former.by_name) - frozenset(counts)
        return self._carry_out(self.shard.on_metadata(self.image, TopicsDelta(created, changed, deleted), self.now))

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        self.log.append(LogEntry(producer_id=producer_id, marker=committed))
        self.shard.on_transaction_end(producer_id, committed=committed)
        self.check()

    def delete_topic_offsets(self, names: list[str]) -> Effects:
        return self._carry_out(self.shard.on_topics_deleted([(name, topic_id(name)) for name in names], self.now))

    def reload(self) -> Effects:
        """The coordinator moves: whoever waits is told, and a new shard loads the log."""
        self._carry_out(self.shard.on_unloaded())
        assert not self.waiting, "unloading answers everybody"
        self.shard = self.loaded_shard()
        return self._carry_out(self.shard.on_loaded(self.now))

    def compacted_log(self) -> list[LogEntry]:
        """What compaction may leave: the last value of each key. Open transactions would stay; there are none here."""
        last = {entry.key: position for position, entry in enumerate(self.log)}
        assert all(entry.producer_id == -1 for entry in self.log)
        return [
            entry for position, entry in enumerate(self.log) if last[entry.key] == position and entry.value is not None
        ]

    def loaded_shard(self, log: list[LogEntry] | None = None) -> GroupShard:
        shard = GroupShard(self.config, self.random, self.image)
        replay(shard, self.log if log is None else log)
        return shard

    def take_answers(self) -> list[tuple[Any, Message]]:
        answers, self.answers = self.answers, []
        return answers

    def _carry_out(self, effects: Effects, before: object = None) -> Effects:
        assert not effects.failures, effects.failures
        producer_id = -1 if effects.producer is None else effects.producer.producer_id
        error = self.fails(effects) if effects.records else None
        if error is not None:
            effects = self.shard.on_append_failed(error)
            assert not effects.records
            assert before is None or whole_view(self.shard.state) == before
        self.log += [LogEntry(record.key, record.value, producer_id) for record in effects.records]
        self.shard.on_appended(effects.entries, effects.producer)
        for response in effects.responses:
            assert response.request_id in self.waiting, f"request {response.request_id} answered twice"
            self.answers.append((self.waiting.pop(response.request_id), response.message))
        self.deadline_ms = effects.next_deadline_ms
        self.check()
        if self.resolves_regexes:
            for wanted in effects.regex_resolutions:
                resolved = resolve(wanted.regexes, self.image.topic_names())
                self._carry_out(self.shard.on_regexes_resolved(wanted.group_id, resolved, self.image.version, self.now))
        return effects

    def check(self) -> None:
        check_single_owners(self.shard.state)
        check_sessions(self.shard.state)
        if self.checks_reload:
            replay(self._twin, self.log[self._replayed :])
            self._replayed = len(self.log)
            check_reload_is_equal(self.shard.state, self._twin.state)


def replay(shard: GroupShard, log: list[LogEntry]) -> None:
    for entry in log:
        if entry.marker is None:
            shard.replay(entry.key, entry.value, entry.producer_id)
        else:
            shard.on_transaction_end(entry.producer_id, committed=entry.marker)


def check_single_owners(state: ShardState) -> None:
    """No partition is owned by two members of a consumer group, and the table of owners says so."""
    for group in state.groups.values():
        if isinstance(group, ConsumerGroup):
            owners: dict[tuple[bytes, int], str] = {}
            for member in group.members.values():
                for partition in (*member.assigned, *member.pending_revocation):
                    assert partition not in owners, f"{partition} owned by {owners[partition]} and {member.member_id}"
                    owners[partition] = member.member_id
            assert owners == group.owners


def check_sessions(state: ShardState) -> None:
    """Everybody's session ends some day: a member without a timer would stay for ever."""
    for group in state.groups.values():
        for member_id in group.members:
            if isinstance(group, ConsumerGroup):
                kind, waits = TimerKind.CONSUMER_SESSION, False
            else:
                kind, waits = TimerKind.CLASSIC_SESSION, member_id in {**group.awaiting_join, **group.awaiting_sync}
            assert waits or TimerKey(group.group_id, kind, member_id) in state.timers, f"{member_id} has no session"


def whole_view(state: ShardState) -> dict[str, Any]:
    """All that a request might change, but for how long sessions last and what is soft."""
    groups: dict[str, Any] = {}
    for group_id, group in state.groups.items():
        fields = asdict(group)
        for soft in ("metadata_expired", "regex_resolution_pending", "deliveries"):
            fields.pop(soft, None)
        groups[group_id] = fields
    timers = {key for key in state.timers.all_keys() if key.kind not in _SESSIONS}
    return {"groups": groups, "offsets": offsets_of(state), "timers": timers}


def check_reload_is_equal(live: ShardState, loaded: ShardState) -> None:
    assert offsets_of(live) == offsets_of(loaded)
    assert consumer_groups_of(live) == consumer_groups_of(loaded)
    for group_id, group in live.groups.items():
        if isinstance(group, ClassicGroup) and not group.is_simple:
            twin = loaded.groups.get(group_id)
            assert isinstance(twin, ClassicGroup), f"{group_id} is not classic after a reload: {twin}"
            if group.state in {ClassicState.STABLE, ClassicState.EMPTY}:
                assert classic_view(group) == classic_view(twin)
            else:
                assert twin.generation_id <= group.generation_id


def offsets_of(state: ShardState) -> dict[str, Any]:
    """Committed and pending offsets, without what only orders them."""
    store = state.offsets
    return {
        "committed": {
            (group_id, topic, index): offset._replace(sequence=0)
            for group_id, topics in store._committed.items()
            for topic, partitions in topics.items()
            for index, offset in partitions.items()
        },
        "pending": {
            (producer_id, *key): offset._replace(sequence=0)
            for producer_id, pending in store._pending.items()
            for key, offset in pending.items()
        },
        "open": store._open,
    }


def consumer_groups_of(state: ShardState) -> dict[str, Any]:
    durable = (
        "group_epoch",
        "metadata_hash",
        "assignment_epoch",
        "assignment_timestamp_ms",
        "members",
        "target",
        "resolved_regexes",
        "static_members",
        "owners",
        "assignors",
        "regex_subscribers",
        "name_subscribers",
        "regex_topics",
        "classic_support",
        "classic_count",
    )
    return {
        group.group_id: {name: getattr(group, name) for name in durable}
        for group in state.groups.values()
        if isinstance(group, ConsumerGroup)
    }


def classic_view(group: ClassicGroup) -> dict[str, Any]:
    return {
        "state": group.state,
        "generation": group.generation_id,
        "protocol": (group.protocol_type, group.protocol_name),
        "leader": group.leader_id,
        "static": group.static_members,
        "topics": group.subscribed_topics,
        "members": {
            member.member_id: (
                member.group_instance_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout_ms,
                member.session_timeout_ms,
                member.metadata(group.protocol_name),
                member.assignment,
            )
            for member in group.members.values()
        },
    }
