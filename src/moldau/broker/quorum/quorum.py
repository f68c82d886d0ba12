"""This node's part in the quorum that keeps the cluster's metadata: Raft with a disk, a network and a clock.

A node of its own is a quorum of one and takes the same path: it elects itself while it opens its log. Commands are
appended at once, in order, and flushed by one fsync for all that came meanwhile; what a majority has flushed is
committed, becomes the published image, and ends the wait of whoever appended it.

Invariants
- The image that is published never runs ahead of what is committed.
- A vote is on disk before it is given. Each leadership is a new epoch, in `quorum-state` before its first record.
- A fetch claims only what was flushed.
- `is_leader` becomes true only when everything that could have been committed before is in `latest`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, TypeVar

from moldau.broker.quorum.appends import QuorumAppends
from moldau.broker.quorum.catching_up import CatchingUp
from moldau.broker.quorum.control_records import leader_change_records, voter_records
from moldau.broker.quorum.errors import LostHistory, QuorumStopped
from moldau.broker.quorum.images import MetadataImages, Publish
from moldau.broker.quorum.metadata_log import TOPIC, TOPIC_ID, QuorumLog
from moldau.broker.quorum.prepared import Ground, PreparedAppend, prepare
from moldau.broker.quorum.settings import (
    bootstrap_servers,
    founds_quorum,
    how_to_restore,
    is_formatted,
    log_config,
    lost_history,
    own_endpoints,
    raft_settings,
    voters_of,
)
from moldau.broker.quorum.snapshot_files import CorruptSnapshot
from moldau.broker.quorum.snapshots import SnapshotDownload, SnapshotKeeper
from moldau.broker.supervision import begin
from moldau.controller.errors import NotController
from moldau.controller.image import ClusterImage
from moldau.log.context import LogContext
from moldau.log.errors import LogError
from moldau.log.flush import FlushJob
from moldau.log.partition_log import PartitionLog
from moldau.raft import (
    Address,
    Append,
    AppendLeaderChange,
    Effect,
    HighWatermarkChanged,
    HistoryFound,
    InstallSnapshot,
    LeaderChanged,
    Persist,
    Raft,
    ReplicaKey,
    Send,
    SnapshotChunk,
    SnapshotId,
    Truncate,
    VoterSet,
)
from moldau.raft.effects import without_repetition
from moldau.raft.leader import Leader
from moldau.raft.roles import NEVER
from moldau.raft.voters import Voter
from moldau.records import ControlType, build_control_batch
from moldau.wire import ZERO_UUID, Message

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.channels import Channels
    from moldau.broker.config import BrokerConfig
    from moldau.broker.quorum.fetches import QuorumFetches
    from moldau.broker.quorum.requests import QuorumRequests
    from moldau.broker.quorum.voters import VoterChanges
    from moldau.wire.fetch import FetchFrame

_log = logging.getLogger(__name__)
AnswerT = TypeVar("AnswerT")
_RESIGN_WAIT_MS = 2_000.0
_FOUNDING_WARNING_SECONDS = 5.0
_STALL_MS = 200.0  # a timer that late did not wait for its turn: the process did


class MetadataQuorum:
    """Belongs to the event loop. `open`, then `start` when requests of others can be served, then `stop`, `close`.

    `publish` is called whenever more is committed (`MetadataImages`), `on_leader_change` listeners when another node
    leads, or nobody is known to, or this node has become or ceased to be the active controller.
    """

    def __init__(
        self,
        context: LogContext,
        config: BrokerConfig,
        publish: Publish,
        executor: Executor,
        *,
        cluster_id: str = "",
        directory_id: bytes = ZERO_UUID,
        channels: Callable[[], Channels] | None = None,
    ) -> None:
        self._context = context
        self._clock = context.clock
        self._config = config
        self._executor = executor
        self.cluster_id = cluster_id
        self._channels = channels
        self._me = ReplicaKey(config.node_id, directory_id)
        self.files = QuorumLog(
            context, config.metadata_log_dir, log_config(config), voters_of(config), how_to_restore(config)
        )
        # Where this node's controller listens; known for sure once its listeners are bound (`set_endpoints`).
        self._raft = Raft(
            self._me,
            self.files,
            self.files.history,
            raft_settings(config),
            context.random,
            bootstrap=bootstrap_servers(config),
            endpoints=own_endpoints(config),
        )
        self.on_leader_change: list[Callable[[int | None, int], None]] = []
        # Called once when the disk of the metadata fails: a node without metadata is of no use.
        self.on_failure: list[Callable[[Exception], None]] = []
        self.is_leader = False
        self._appends = QuorumAppends()
        self._flushing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER
        self._forgiven_until_ms = -1.0
        self._is_started = False
        self._is_stopped = False
        self._is_carrying_out = False
        # The epoch given up, and whoever waits for the next one.
        self._resigned: tuple[int, asyncio.Future[None]] | None = None
        self._catching_up = CatchingUp()
        self._fetches: QuorumFetches | None = None
        self._requests: QuorumRequests | None = None
        self._voter_changes: VoterChanges | None = None
        self._download = SnapshotDownload(context.disk, self.files.folder)
        self._snapshots = SnapshotKeeper(self.files, config, executor)
        self._images = MetadataImages(publish, self._snapshots)

    # -- what others see

    @property
    def latest(self) -> ClusterImage:
        """With everything appended; the next command is decided on this. Only the active controller appends."""
        return self._images.latest

    @property
    def committed(self) -> ClusterImage:
        """With everything committed; this is what the node shows and acts on."""
        return self._images.committed

    @property
    def log(self) -> PartitionLog:
        return self.files.log

    @property
    def raft(self) -> Raft:
        return self._raft

    @property
    def epoch(self) -> int:
        return self._raft.epoch

    @property
    def leader_id(self) -> int | None:
        return self._raft.leader_id

    @property
    def next_offset(self) -> int:
        return self.files.end_offset

    @property
    def kraft_version(self) -> int:
        return self.files.history.kraft_version

    @property
    def voters(self) -> VoterSet:
        return self._raft.voters

    @property
    def high_watermark(self) -> int:
        return 0 if self._raft.high_watermark is None else self._raft.high_watermark

    def leader_endpoint(self) -> Address | None:
        return None if self.leader_id is None else self._raft.leader_address

    def first_users(self) -> list[Message]:
        """Of a cluster that was formatted with some."""
        from moldau.broker.quorum.bootstrap import first_users

        return first_users(self._context.disk, self._config.metadata_log_dir)

    def set_endpoints(self, endpoints: Sequence[tuple[str, str, int]]) -> None:
        """(listener, host, port) of this node's controller, now that they are bound."""
        self._raft.endpoints = tuple((name, Address(host, port)) for name, host, port in endpoints)

    # -- from start to stop

    def open(self) -> None:
        """Read what there is. A quorum of one also begins its epoch. Blocks: the node is not serving yet.

        Nothing is published yet: `committed` is what the node begins with."""
        self.files.open()
        if founds_quorum(self._config) and self.files.is_new:
            self.files.found(VoterSet((Voter(self._me, self._raft.endpoints),)))
        newest = self.files.latest_snapshot
        if newest is not None and newest.end_offset > 0:
            self._images.replace(self.files.read_snapshot(newest).image, newest.end_offset)
        is_blank = self.files.is_new and not is_formatted(self._context.disk, self._config)
        self._raft.start(self._clock.monotonic_ms(), self.files.read_election_state(), is_blank=is_blank)
        if self._raft.voters.is_only(self._me):
            self._carry_out_effects()
            FlushJob(self.log).run_and_finish()
            self.files.checkpoint_if_due()
            self._carry_out_effects()
        self._images.show_from_now_on()

    def start(self) -> None:
        """Take part: ask, vote, fetch. Whoever is asked here may be answered from now on."""
        self._is_started = True
        self._carry_out_effects()
        if self._raft.founding is not None:
            asyncio.get_running_loop().call_later(_FOUNDING_WARNING_SECONDS, self._warn_of_founding)
        if self._config.is_controller and not self._config.standalone and not self._config.voters:
            self.voter_changes.start()

    @property
    def voter_changes(self) -> VoterChanges:
        if self._voter_changes is None:
            from moldau.broker.quorum.voters import VoterChanges

            self._voter_changes = VoterChanges(self, self._config, self._clock)
        return self._voter_changes

    @property
    def channels(self) -> Channels:
        assert self._channels is not None, "a quorum of several needs a network"
        return self._channels()

    async def wait_until_caught_up(self) -> None:
        """Until `committed` has everything that this node can ever have acted upon: what a leader had committed in its
        own epoch when it first told."""
        await self._catching_up.wait(self.what_is_missing)

    def what_is_missing(self) -> str:
        """While it has not caught up: whom it waits for."""
        raft = self._raft
        at = raft.leader_address
        leader = "no leader" if at is None else f"node {raft.leader_id} leads from {at.host}:{at.port}"
        troubles = self._requests.troubles.values() if self._requests is not None else ()
        return "; ".join((f"epoch {raft.epoch}, {leader}", *troubles))

    async def resign(self) -> None:
        """Let another lead, if this node does: tell the others, and give them a moment to elect."""
        raft = self._raft
        if not isinstance(raft.role, Leader) or raft.voters.is_only(self._me):
            return
        self._resigned = (raft.epoch, asyncio.get_running_loop().create_future())
        raft.resign(self._clock.monotonic_ms())
        self._carry_out_effects()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_RESIGN_WAIT_MS / 1000):
                await self._resigned[1]

    async def close(self, *, is_clean: bool = True) -> None:
        """No more elections, fetches or appends; the log is left at rest, or as it is."""
        if is_clean and self._flushing is not None:
            await self._flushing  # a quorum of one keeps its word to those who wait
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._fetches is not None:
            self._fetches.stop()
        if self._voter_changes is not None:
            await self._voter_changes.stop()
        if self._requests is not None:
            await self._requests.stop()
        await self._snapshots.stop()
        self._appends.fail(NotController("this node stops"))
        self._catching_up.stop()
        self.files.close()

    # -- appending

    def append(self, records: Sequence[Message]) -> asyncio.Future[None]:
        """Append records that belong together; the future is done when they are committed and acted upon here."""
        done = self.append_prepared(prepare(self.ground(), records))
        assert done is not None, "nothing comes between"
        return done

    def ground(self) -> Ground:
        """What the next records are decided upon. NotController if that is not for this node to do."""
        if not self.is_leader or self._is_stopped:
            raise NotController("ask the active controller")
        return Ground(self.latest, self.epoch, self.next_offset, self._clock.wall_ms())

    def append_prepared(self, prepared: PreparedAppend) -> asyncio.Future[None] | None:
        """Append what was prepared, maybe elsewhere and a while ago, or None: other records were appended since, so it
        has to be decided again. NotController if this is not the leadership it was decided in."""
        ground, now = prepared.ground, self.ground()
        if ground.epoch != now.epoch:
            raise NotController("another controller led meanwhile")
        if ground.image is not now.image or ground.next_offset != now.next_offset:
            return None
        try:
            last_offset = self.files.append_as_leader(prepared.batch, self.epoch)
        except LogError as error:
            self._fail(error)
            raise NotController("the disk of this controller failed: ask the next one") from error
        self._images.latest = prepared.image
        done = self._appends.add(last_offset, prepared)
        self._after_append()
        return done

    def commit_pending(self) -> asyncio.Future[None] | None:
        """Done when `latest`, as it is now, is committed; None if it is."""
        return self._appends.newest()

    def append_voters(self, voters: VoterSet, *, kraft_version: int | None = None) -> asyncio.Future[None]:
        """Another set of voters, which counts at once; the future is done when it is committed."""
        records = voter_records(voters, kraft_version)
        offset = self.append_control(records)
        done = self._appends.add_control(offset)
        self._after_append()
        return done

    def append_control(self, values: list[tuple[ControlType, bytes]]) -> int:
        """Control records of this leader; the offset of the last. What they say about voters counts at once."""
        batch = build_control_batch(values, timestamp_ms=self._clock.wall_ms())
        last_offset = self.files.append_control(batch, self.epoch)
        self._raft.voters_changed(self._clock.monotonic_ms())
        return last_offset

    def _after_append(self) -> None:
        self._flush_soon()
        if self._fetches is not None:
            self._fetches.wake_soon()

    def _flush_soon(self) -> None:
        if self._flushing is None and self.files.flushed_offset < self.files.end_offset and not self._is_stopped:
            self._flushing = begin(asyncio.get_running_loop(), "flushing metadata", self._flush())

    async def _flush(self) -> None:
        """One fsync for everything appended before it, again and again while there is more."""
        loop = asyncio.get_running_loop()
        try:
            while self.files.flushed_offset < self.files.end_offset:
                job = FlushJob(self.log)
                await loop.run_in_executor(self._executor, job.run)
                job.finish()
                self.files.checkpoint_if_due()
                self._carry_out_effects()
        except Exception as error:  # a log that may not be on disk is no ground for promises
            self._fail(error)
        finally:
            self._flushing = None

    def _fail(self, error: Exception) -> None:
        """Nothing appended since can be trusted to be on disk, and no promise can be kept: be silent from now on."""
        if not self._is_stopped:
            _log.error("this node no longer takes part in the metadata quorum, restart it", exc_info=error)
        first = not self._is_stopped
        self._is_stopped = True
        self.is_leader = False
        self._appends.fail(error)
        if first:
            for listener in self.on_failure:
                listener(error)

    # -- Raft's effects

    def ask(self, question: Callable[[float], AnswerT]) -> AnswerT:
        """Let Raft answer a request of another replica. What the answer promises is on disk when it is returned."""
        if self._is_stopped:
            raise QuorumStopped("this node takes no part in the quorum: it stops, or the disk of its metadata failed")
        answer = question(self._clock.monotonic_ms())
        self._carry_out_effects()
        if self._is_stopped:  # what the answer promises is not on disk
            raise QuorumStopped("the disk of this node's metadata failed")
        return answer

    def _carry_out_effects(self, due_ms: float | None = None) -> None:
        """`due_ms` is when a timer was due that called. The controller may append while it acts on what was committed;
        but Raft is asked again, and waiting fetches are answered, only when all effects are carried out."""
        if self._is_stopped:
            return
        if self._is_carrying_out:
            raise RuntimeError("Raft was asked while its last effects are carried out")
        self._is_carrying_out = True
        self._forgive_own_stall(self._timer_at if due_ms is None else due_ms)
        try:
            while True:
                self._raft.poll(self._clock.monotonic_ms())
                effects = self._raft.take_effects()
                if not effects:
                    break
                for effect in without_repetition(effects):
                    self._run(effect)
        except Exception as error:  # half done: a leader that cannot read its log must not lead without acting
            self._fail(error)
            return
        finally:
            self._is_carrying_out = False
        self._note_caught_up()
        if self._is_started:
            self._flush_soon()
            self._set_timer()
            if self._fetches is not None:
                self._fetches.wake_soon()

    def _forgive_own_stall(self, due_ms: float) -> None:
        """A timer that is long due and was not run: the loop stood still, and the others' words with it. Once for each
        time somebody was heard of, so that a node which stalls all the time still notices who is gone."""
        now_ms = self._clock.monotonic_ms()
        deadline_ms = self._raft.role.deadline_ms
        if now_ms - due_ms < _STALL_MS or deadline_ms > now_ms or deadline_ms == self._forgiven_until_ms:
            return
        self._raft.forgive_silence(now_ms, self._raft.settings.fetch_timeout_ms / 2)
        self._forgiven_until_ms = self._raft.role.deadline_ms

    def _set_timer(self) -> None:
        at_ms = self._raft.deadline_ms
        if at_ms == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = at_ms
        if at_ms < NEVER:
            delay = max(0.0, at_ms - self._clock.monotonic_ms()) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        due_ms, self._timer_at = self._timer_at, NEVER
        self._timer = None
        self._carry_out_effects(due_ms)

    def _run(self, effect: Effect) -> None:
        match effect:
            case Send():
                self._send(effect)
            case Persist(state):
                self.files.write_election_state(state)
            case AppendLeaderChange():
                self._append_leader_change(effect)
            case Append(records, epoch):
                self._append_followed(records, epoch)
            case Truncate(offset):
                self.files.truncate_to(offset)
                self._raft.voters_changed(self._clock.monotonic_ms())
            case HighWatermarkChanged(offset):
                self._on_high_watermark(offset)
            case LeaderChanged(leader_id, epoch):
                self._on_leader_changed(leader_id, epoch)
            case SnapshotChunk():
                self._download.add(effect)
            case InstallSnapshot(snapshot):
                self._install(snapshot)
            case HistoryFound(node_id, epoch):
                self._catching_up.refuse(LostHistory(lost_history(self._config, node_id, epoch, self.cluster_id)))

    def _warn_of_founding(self) -> None:
        """All voters are needed to found a quorum: say who is missing."""
        founding = self._raft.founding
        if founding is None or founding.history is not None or self._is_stopped:
            return
        _log.warning(
            "this voter has no history, and founds the quorum only with all others: waiting for node %s to answer",
            ", ".join(map(str, founding.missing())),
        )
        asyncio.get_running_loop().call_later(_FOUNDING_WARNING_SECONDS * 6, self._warn_of_founding)

    def _append_leader_change(self, effect: AppendLeaderChange) -> None:
        records = leader_change_records(self._me, effect, self.files.history)
        self.append_control(records)

    def _append_followed(self, records: bytes | memoryview, epoch: int) -> None:
        try:
            if self.files.append_as_follower(records, epoch):
                self._raft.voters_changed(self._clock.monotonic_ms())
        except LogError as error:
            if self.log.is_offline:
                raise
            _log.warning("what the leader of epoch %s sent cannot be appended: %s", epoch, error)
            self._raft.pause_fetching(self._clock.monotonic_ms())

    def _on_leader_changed(self, leader_id: int | None, epoch: int) -> None:
        if self.is_leader and leader_id != self._me.id:
            self.is_leader = False
            self._appends.fail(NotController("another controller leads now"))
            self._images.forget_uncommitted()
        if self._resigned is not None and epoch > self._resigned[0] and not self._resigned[1].done():
            self._resigned[1].set_result(None)
        if leader_id != self._me.id:  # of our own leadership is told when it can be used
            self._tell(leader_id, epoch)

    def _tell(self, leader_id: int | None, epoch: int) -> None:
        for listener in self.on_leader_change:
            listener(leader_id, epoch)

    # -- committed records

    def _on_high_watermark(self, offset: int) -> None:
        self.log.update_high_watermark(offset)
        if self.is_leader:
            for pending in self._appends.take_committed(offset):
                self._images.commit(pending)
            self._images.commit_control(offset)
        else:
            self._images.replay(self.files, offset)
        self._appends.finish_control(offset)
        if self._is_started:
            self._snapshots.take_if_due(self.committed, self._images.applied)
        role = self._raft.role
        if not self.is_leader and isinstance(role, Leader) and offset > role.epoch_start_offset:
            self._images.forget_uncommitted()
            self.is_leader = True
            self._tell(self._me.id, role.epoch)

    def _note_caught_up(self) -> None:
        if not self._catching_up.is_over:
            role, told = self._raft.role, self._raft.leader_high_watermark
            committed = role.high_watermark if isinstance(role, Leader) else told if told >= 0 else None
            self._catching_up.applied(self._images.applied, committed)

    def _install(self, snapshot: SnapshotId) -> None:
        """The leader's snapshot replaces the log, and the image with it, if it is whole."""
        now_ms = self._clock.monotonic_ms()
        try:
            content = self._download.finish(snapshot)
        except CorruptSnapshot as error:
            _log.error("the leader (node %s) sent a damaged snapshot, it is fetched again: %s", self.leader_id, error)
            self._raft.on_damaged_snapshot(now_ms)
            return
        self.files.start_after(snapshot, content)
        self._raft.voters_changed(now_ms)
        self._raft.on_installed(snapshot)
        self._images.replace(content.image, snapshot.end_offset)

    # -- the others: what is asked of them, and what they fetch

    def _send(self, send: Send) -> None:
        if self._requests is None:
            from moldau.broker.quorum.requests import QuorumRequests

            self._requests = QuorumRequests(self, self._raft, self._config)
        self._requests.send(send)

    def fail(self, error: Exception) -> None:
        """Something broke that must not: see `on_failure`."""
        if not self._is_stopped:
            self._fail(error)

    def fetch(self, call: Call, request: FetchFrame) -> None:
        """Somebody fetches the metadata log; answered now or later."""
        if self._fetches is None:
            from moldau.broker.quorum.fetches import QuorumFetches

            self._fetches = QuorumFetches(self)
        self._fetches.fetch(call, request)


__all__ = ["TOPIC", "TOPIC_ID", "MetadataQuorum", "NotController"]
