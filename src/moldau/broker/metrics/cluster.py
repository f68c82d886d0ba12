"""The quorum, the active controller, and transactions, as this node sees them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Protocol

from moldau.broker.metrics.partitions import tell_log
from moldau.broker.quorum.description import describe
from moldau.controller.image import NO_LEADER, RECOVERING
from moldau.controller.names import CLUSTER_METADATA_TOPIC
from moldau.metrics import Page
from moldau.transactions.metadata import TransactionState

if TYPE_CHECKING:
    from moldau.broker.controller.parts import HasController
    from moldau.broker.coordinators.transactions import TransactionCoordinator
    from moldau.broker.parts import HasImage, HasTime
    from moldau.broker.quorum.parts import HasQuorum
    from moldau.controller.delta import ImageDelta
    from moldau.timers.turns import Slices

    class Needs(HasController, HasImage, HasQuorum, HasTime, Protocol):
        """What this file may touch."""

        @property
        def made_transactions(self) -> TransactionCoordinator | None: ...


_PER_SLICE = 200
_RAFT = "kafka_server_raftmetrics"
_WAITS = ("follower", "unattached")  # what Kafka calls an observer, of nodes that do not vote
_OPEN = (TransactionState.ONGOING, TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)


class Elections:
    """How often somebody new led the quorum since this node started."""

    def __init__(self) -> None:
        self.count = 0
        self._epoch = -1

    def on_leader_change(self, leader_id: int | None, epoch: int) -> None:
        if leader_id is not None and epoch > self._epoch:
            self._epoch = epoch
            self.count += 1


class PartitionElections:
    """How often partitions got another leader while this node was the active controller, so that nodes add up."""

    def __init__(self) -> None:
        self.count = 0
        self.unclean = 0

    def on_published(self, delta: ImageDelta) -> None:
        for each in delta.partitions:
            before, after = each.before, each.after
            if before is None or after.leader in (NO_LEADER, before.leader):
                continue
            self.count += 1
            self.unclean += after.leader_recovery_state == RECOVERING


def collect_partition_elections(page: Page, elections: PartitionElections) -> None:
    prefix = "kafka_controller_controllerstats"
    page.counter(f"{prefix}_leaderelections_total", "Partitions that got another leader.", elections.count)
    unclean = "Those whose new leader may lack records: it was not in sync."
    page.counter(f"{prefix}_uncleanleaderelections_total", unclean, elections.unclean)


def collect_quorum(page: Page, broker: Needs, elections: Elections) -> None:
    quorum = broker.metadata_log
    leader_id = quorum.leader_id
    for name, help_text, value in (
        ("current_epoch", "The quorum's epoch.", quorum.epoch),
        ("current_leader", "Who leads it; -1: nobody.", -1 if leader_id is None else leader_id),
        ("high_watermark", "Up to where the metadata is committed.", quorum.high_watermark),
        ("log_end_offset", "Up to where this node has it.", quorum.next_offset),
        ("number_of_voters", "How many nodes vote.", len(quorum.voters.voters)),
    ):
        page.gauge(f"{_RAFT}_{name}", help_text, value)
    raft = quorum.raft
    state = type(raft.role).__name__.lower()
    if not raft.is_voter and state in _WAITS:
        state = "observer"
    page.gauge(f"{_RAFT}_current_state", "This node's role in it.", 1, {"state": state})
    tell_log(page, quorum.files.log, {"topic": CLUSTER_METADATA_TOPIC, "partition": 0})
    page.counter("moldau_quorum_elections_total", "Leaders this node has seen begin an epoch.", elections.count)
    page.gauge(
        "kafka_server_brokermetadatametrics_last_applied_record_offset",
        "Up to where the metadata is in effect here.",
        broker.image.offset,
    )
    page.gauge(
        "kafka_controller_kafkacontroller_activecontrollercount",
        "Whether this node is the active controller.",
        int(broker.controller.is_active),
    )
    described = describe(quorum, broker.clock)
    if described is None:
        return
    now_ms = broker.clock.wall_ms()
    for kind, replicas in (("voter", described.voters), ("observer", described.observers)):
        for each in replicas:
            labels = {"node": each.key.id, "kind": kind}
            if each.end_offset >= 0:
                lag = max(0, quorum.next_offset - each.end_offset)
                page.gauge("moldau_quorum_lag_records", "How far a node is behind the leader.", lag, labels)
            if each.last_caught_up_ms >= 0:
                seconds = max(0, now_ms - each.last_caught_up_ms) / 1000
                page.gauge("moldau_quorum_lag_seconds", "Since when it has not caught up.", seconds, labels)


def collect_transactions(page: Page, broker: Needs) -> Slices[None]:
    coordinator = broker.made_transactions
    states: Counter[TransactionState] = Counter()
    oldest_ms = now_ms = broker.clock.wall_ms()
    at = 0
    for shard in [] if coordinator is None else coordinator.shards:
        for each in shard.known:
            at += 1
            if at % _PER_SLICE == 0:
                yield
            states[each.metadata.state] += 1
            if each.metadata.state in _OPEN and each.metadata.start_ms >= 0:
                oldest_ms = min(oldest_ms, each.metadata.start_ms)
    for state in TransactionState:
        page.gauge(
            "moldau_transactions", "Transactional ids this node coordinates.", states[state], {"state": state.label}
        )
    page.gauge(
        "moldau_oldest_transaction_seconds",
        "How long the oldest open transaction is open.",
        (now_ms - oldest_ms) / 1000,
    )
