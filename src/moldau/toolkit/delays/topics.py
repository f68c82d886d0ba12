"""The topics of the delays: what clients ask for, what is pending, and what could not be delivered.

`moldau-delays` takes the commands: a delayed message under its id, or no value to cancel it. The relay that owns the
partition carries them over, in transactions, to the same partition of `moldau-delays-pending`, which is compacted and
written by nobody else. So everything that happens to an id happens in one order, which one process decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from moldau.toolkit import letters
from moldau.toolkit.errors import SendFailed, SetupError

DELAYS = "moldau-delays"
PARTITIONS = 4
POSITION = b"\0position"
"""The key under which a pending partition says how far the commands were carried over."""

_SECONDS = 15.0
# Commands are kept until they were carried over, and then deleted by the relay.
_COMMANDS = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
# The active segment is never compacted: keep it small.
_PENDING = {"cleanup.policy": "compact", "segment.bytes": "67108864", "min.cleanable.dirty.ratio": "0.2"}


@dataclass(slots=True, frozen=True)
class DelayTopics:
    """The names that follow from one."""

    commands: str = DELAYS

    @property
    def pending(self) -> str:
        return f"{self.commands}-pending"

    @property
    def dead(self) -> str:
        return letters.dead_letter_topic(self.commands)

    @property
    def group(self) -> str:
        """The consumer group that decides which relay owns a partition."""
        return f"{self.commands}-relay"

    def transactional_id(self, index: int) -> str:
        """Whoever begins with it last is the only one who can write to that partition of `pending`."""
        return f"{self.commands}-{index}"


def make_topics(config: Mapping[str, Any], topics: DelayTopics, partitions: int = PARTITIONS) -> int:
    """Have the topics; returns how many partitions they have. Blocks; raises `SendFailed` if the cluster is away."""
    admin = AdminClient({"log_level": 0, **config})
    try:
        found = admin.list_topics(timeout=_SECONDS).topics
        if topics.commands in found:
            partitions = len(found[topics.commands].partitions)
        settings = {topics.commands: _COMMANDS, topics.pending: _PENDING, topics.dead: {}}
        missing = [NewTopic(name, partitions, -1, config=settings[name]) for name in settings if name not in found]
        for future in admin.create_topics(missing).values() if missing else ():
            try:
                future.result(_SECONDS)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
    except KafkaException as error:
        raise SendFailed(f"{topics.commands} cannot be made: {error.args[0].str()}", is_retriable=True) from error
    if topics.pending in found and len(found[topics.pending].partitions) != partitions:
        raise SetupError(
            f"{topics.commands} has {partitions} partitions and {topics.pending} has "
            f"{len(found[topics.pending].partitions)}: they must have as many, and their number stays as it is"
        )
    return partitions
