"""The controller of this node: active while this node leads the quorum, silent otherwise.

Handlers say `await broker.controller.submit(create_topics, request)`: the command is decided on the newest image, its
records are appended, and the answer comes back once they are committed and this node has acted on them. A node that is
not the active controller gets NotController; `broker.controller_channel` finds the one that is.

Invariants
- A command is decided on an image that has everything before it, and its records follow that image in the log: nothing
  comes between.
- An answer is given only when what it rests on is committed: its records, or, if there is nothing to do, what says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from moldau.broker.controller.long_commands import Command, LongCommands
from moldau.controller.context import ControllerContext
from moldau.controller.effort import check_records, exceeds
from moldau.controller.errors import NotController
from moldau.controller.feature_updates import activation_records
from moldau.controller.features import bootstrap_records
from moldau.controller.image import ClusterImage
from moldau.controller.sessions import BrokerSessions
from moldau.wire import Message
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.controller.duties import Duties
    from moldau.broker.parts import HasConfig, HasIdentity, HasLoop, HasTime
    from moldau.broker.quorum.parts import HasQuorum

    class Needs(HasConfig, HasIdentity, HasLoop, HasTime, HasQuorum, Protocol):
        """What this file may touch."""


_log = logging.getLogger(__name__)

RequestT = TypeVar("RequestT")
R = TypeVar("R")
_AT_ONCE_MAX = 200  # records; about five milliseconds


class LocalController:
    """Belongs to the event loop."""

    def __init__(self, broker: Needs, context: ControllerContext, sessions: BrokerSessions) -> None:
        self._broker = broker
        self._log = broker.metadata_log
        self._context = context
        self._active_epoch = -1
        self._changed: asyncio.Future[None] | None = None
        self._duties: Duties | None = None
        self._long = LongCommands(broker)
        self.sessions = sessions
        self.at_once_max = _AT_ONCE_MAX

    @property
    def epoch(self) -> int:
        return self._log.epoch

    @property
    def kraft_version(self) -> int:
        """The level of the quorum's own feature, which is not in the image but in the quorum's log."""
        return self._log.kraft_version

    @property
    def is_active(self) -> bool:
        return self._active_epoch == self._log.epoch and self._log.is_leader

    def on_leader_change(self, leader_id: int | None, epoch: int) -> None:
        """The quorum has a leader, or lost it. If it is this node, `latest` has everything that was committed."""
        if leader_id == self._broker.node_id:
            self._activate(epoch)
        else:
            self._active_epoch = -1
            if self._duties is not None:
                self._duties.stop()
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set_result(None)

    def _activate(self, epoch: int) -> None:
        broker = self._broker
        self._active_epoch = epoch
        now_ms = broker.clock.monotonic_ms()
        self.sessions.activate(self._log.latest, now_ms, broker.node_id, broker.broker_epoch)
        latest = self._log.latest
        bootstrap = None if latest.features else [*bootstrap_records(), *self._log.first_users()]
        if first := activation_records(latest, self.context(), bootstrap):
            self.append_unasked(first)
        if not broker.config.standalone:
            from moldau.broker.controller.duties import Duties

            self._duties = self._duties or Duties(broker, self)
            self._duties.start()

    async def leader_changed(self) -> None:
        """Returns at the next change of the quorum's leader."""
        if self._changed is None:
            self._changed = self._broker.loop.create_future()
        await asyncio.shield(self._changed)

    def context(self) -> ControllerContext:
        config = self._broker.config
        return replace(
            self._context,
            next_offset=self._log.next_offset,
            quorum_ids=tuple(voter.key.id for voter in self._log.voters),
            kraft_version=self._log.kraft_version,
            now_ms=self._broker.clock.monotonic_ms(),
            default_partitions=config.get_int("num.partitions"),
            default_replication_factor=config.get_int("default.replication.factor"),
            delete_topic_enable=config.get_bool("delete.topic.enable"),
        )

    async def submit(
        self,
        command: Command[RequestT, R],
        request: RequestT,
        *,
        and_append: Callable[[R], asyncio.Future[None] | None] | None = None,
        context: ControllerContext | None = None,
    ) -> R:
        """Decide, commit, and give back the answer. NotController if another node must be asked.

        `and_append` is given the answer when its records are appended and may append what belongs to them: nothing
        comes between, and the answer waits for both. `context` is this controller's, with what is known of the
        client."""
        if not self.is_active:
            raise NotController
        asked = context or self.context()
        if exceeds(self.at_once_max, self._log.latest, request, asked):
            result, pending = await self._long.carry_out(command, request, asked)
        else:
            if self._long.holds_others:
                await self._long.wait()
                if not self.is_active:
                    raise NotController
                asked = replace(asked, next_offset=self._log.next_offset)
            charges = asked.rehearse_charges()
            result = command(self._log.latest, request, replace(asked, charge_partitions=charges.charge))
            check_records(request, result.records)
            # Without records the answer rests on what it read, which the next controller may not have.
            pending = self._log.append(result.records) if result.records else self._log.commit_pending()
            charges.pay()
        if result.refusal is not None:
            _log.info("refused %s: %s", type(request).__name__, result.refusal)
        self.sessions.update(result.sessions)
        more = and_append(result.response) if and_append is not None else None
        for each in (pending, more):
            if each is not None:
                await asyncio.shield(each)
        if result.records and self._duties is not None:
            self._duties.on_command()
        return result.response

    async def execute(self, request: Message) -> Any:
        """Carry out one of the requests that brokers make of the active controller."""
        return await self.submit(_command_for(request, self.sessions), request)

    def decide(self, decide: Callable[[ClusterImage, ControllerContext], Sequence[Message]]) -> int:
        """A change nobody asked for: append what `decide` finds necessary, and say how many records that was."""
        records = decide(self._log.latest, self.context())
        if records:
            self.append_unasked(records)
        return len(records)

    def append_unasked(self, records: Sequence[Message]) -> None:
        """Append without anybody waiting. If leadership is lost meanwhile, the next controller decides anew."""
        try:
            done = self._log.append(records)
        except NotController:  # the disk failed under it, and the node is stopping
            return
        done.add_done_callback(_log_failure)

    def stop(self) -> None:
        self._active_epoch = -1
        if self._duties is not None:
            self._duties.stop()


def _log_failure(future: asyncio.Future[None]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None and not isinstance(error, NotController):
        _log.error("a change of the metadata failed: %s", error)


def _command_for(request: Message, sessions: BrokerSessions) -> Command[Any, Any]:
    """Loaded when first needed: most nodes never decide most of these."""
    from moldau.controller import brokers, directories, isr, producer_ids, topics

    commands: dict[type[Message], Command[Any, Any]] = {
        m.AllocateProducerIdsRequest: producer_ids.allocate_producer_ids,
        m.AlterPartitionRequest: isr.alter_partition,
        m.AssignReplicasToDirsRequest: directories.assign_replicas_to_dirs,
        m.BrokerHeartbeatRequest: partial(brokers.broker_heartbeat, sessions=sessions),
        m.BrokerRegistrationRequest: partial(brokers.register_broker, sessions=sessions),
        m.ControllerRegistrationRequest: brokers.register_controller,
        m.CreateTopicsRequest: topics.create_topics,
        m.UnregisterBrokerRequest: brokers.unregister_broker,
    }
    return commands[type(request)]
