"""One change of one partition: who leads, who is in sync, who may be elected, and which epochs move.

Every change of a partition comes through `change_partition`: ISR updates, elections, fencing, reassignment. The caller
says what it wants changed; the rules that follow from it are applied here, always in the same order:

1. A reassignment is completed once what it adds is in sync (or all that stay, if it removes more than it adds).
2. While the ISR is smaller than min.insync.replicas, those that leave it stay eligible leader replicas (KIP-966): they
   have every committed record, since nothing is committed with fewer than min.insync.replicas in sync.
3. A leader is elected: the present one if it may stay, else the first replica in sync, else (ISR empty) an eligible
   one, else the last known leader, else, if the topic allows it, any that is alive.
4. What changed is written down; naming a leader starts a leader epoch.

Invariants: the ISR and the ELR are disjoint subsets of the replicas; the leader is in the ISR; nobody is in the ELR
while the ISR has min.insync.replicas members; without ELR the ISR never becomes empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from moldau.controller.context import ControllerContext, default_directory, effective_min_isr
from moldau.controller.features import DIRECTORY_ASSIGNMENT_FROM, LEADER_EPOCH_BUMP_ON_SHRINK_BELOW
from moldau.controller.image import (
    NO_LEADER,
    RECOVERING,
    UNASSIGNED_DIR,
    ClusterImage,
    PartitionImage,
    TopicImage,
)
from moldau.wire import messages as m

NO_LEADER_CHANGE = -2
_NO_RECOVERY_STATE_CHANGE = -1


class Election(Enum):
    ONLINE = auto()  # from the ISR, the present leader first
    PREFERRED = auto()  # from the ISR, the first replica first
    UNCLEAN = auto()  # from the ISR if possible, else from whoever is alive


@dataclass(slots=True)
class _Target:
    """What the partition shall look like."""

    isr: list[int]
    elr: list[int]
    replicas: list[int]
    removing: list[int]
    adding: list[int]


def change_partition(
    image: ClusterImage,
    context: ControllerContext,
    topic: TopicImage,
    partition_id: int,
    *,
    may_lead: Callable[[int], bool] | None = None,
    election: Election = Election.ONLINE,
    isr: Iterable[int] | None = None,
    replicas: Iterable[int] | None = None,
    removing: Iterable[int] | None = None,
    adding: Iterable[int] | None = None,
    recovery_state: int | None = None,
    directories: Mapping[int, bytes] | None = None,
    unclean_shutdown: int | None = None,
    made_anew: int | None = None,
) -> m.PartitionChangeRecord | None:
    """The record for this change, or None when nothing changes. `may_lead` defaults to "is active". `made_anew`: this
    replica's disk is lost, and its log begins again with nothing."""
    partition = topic.partitions[partition_id]
    target = _Target(
        isr=list(partition.isr if isr is None else isr),
        elr=list(partition.elr),
        replicas=list(partition.replicas if replicas is None else replicas),
        removing=list(partition.removing_replicas if removing is None else removing),
        adding=list(partition.adding_replicas if adding is None else adding),
    )
    record = m.PartitionChangeRecord(partition_id, topic.topic_id)
    acceptable = _leader_test(image, partition, may_lead or image.is_active)
    elr_enabled = image.is_elr_enabled

    _complete_reassignment(target)
    min_isr = effective_min_isr(image, context, topic.name, len(target.replicas)) if elr_enabled else 0
    if elr_enabled:
        _populate_elr(target, partition, min_isr, unclean_shutdown)
    last_known = [replica for replica in partition.last_known_elr if replica != made_anew] if elr_enabled else []
    leader, clean = _choose(target, partition, election, acceptable, last_known)
    if leader != partition.leader:
        _write_leader(record, target, partition, leader, clean)
        if len(target.isr) >= min_isr:
            # The new leader may commit on its own: the others would soon lack what it has.
            target.elr = []
    if record.leader == NO_LEADER_CHANGE and not set(partition.replicas) <= set(target.replicas):
        # Replicas that go must not be able to fetch in the old epoch.
        record.leader = partition.leader
    _write_isr_and_elr(record, target, partition, elr_enabled)
    if (
        image.metadata_version < LEADER_EPOCH_BUMP_ON_SHRINK_BELOW
        and record.leader == NO_LEADER_CHANGE
        and record.isr is not None
        and not set(partition.isr) <= set(record.isr)
    ):
        record.leader = partition.leader
    if elr_enabled:
        if unclean_shutdown is not None and not target.isr and not target.elr:
            last_known = _last_resort(image, partition, last_known, unclean_shutdown)
        _write_last_known_leader(record, partition, last_known)
    _write_assignment(record, target, partition, image, directories or {})
    if recovery_state is not None and recovery_state != partition.leader_recovery_state:
        record.leader_recovery_state = recovery_state
    return None if _changes_nothing(record) else record


def _leader_test(
    image: ClusterImage, partition: PartitionImage, may_lead: Callable[[int], bool]
) -> Callable[[int], bool]:
    places = dict(zip(partition.replicas, partition.directories, strict=True))

    def acceptable(broker_id: int) -> bool:
        if not may_lead(broker_id):
            return False
        broker = image.brokers.get(broker_id)
        directory = places.get(broker_id)
        return broker is not None and (directory is None or broker.has_online_dir(directory))

    return acceptable


def _complete_reassignment(target: _Target) -> None:
    if not target.removing and not target.adding:
        return
    isr = [replica for replica in target.isr if replica not in target.removing]
    replicas = [replica for replica in target.replicas if replica not in target.removing]
    # With fewer replicas than before, each of those that stay must be in sync: nobody is there to make up for it.
    must_be_in_sync = set(replicas) if len(target.adding) < len(target.removing) else set(target.adding)
    if isr and replicas and must_be_in_sync <= set(isr):
        target.isr, target.replicas, target.removing, target.adding = isr, replicas, [], []


def _populate_elr(target: _Target, partition: PartitionImage, min_isr: int, unclean_shutdown: int | None) -> None:
    if len(target.isr) >= min_isr:
        target.elr = []
        return
    candidates = {*target.elr, *partition.isr} & set(target.replicas)
    target.elr = sorted(candidates - set(target.isr) - {unclean_shutdown})


def _write_leader(
    record: m.PartitionChangeRecord, target: _Target, partition: PartitionImage, leader: int, clean: bool
) -> None:
    record.leader = leader
    if leader in target.elr:
        target.isr = [leader]
        target.elr.remove(leader)
    if not clean:
        # Whatever the others have that the new leader does not is lost; they must truncate to it.
        record.isr = [leader]
        if partition.leader_recovery_state != RECOVERING:
            record.leader_recovery_state = RECOVERING


def _choose(
    target: _Target,
    partition: PartitionImage,
    election: Election,
    acceptable: Callable[[int], bool],
    last_known: list[int],
) -> tuple[int, bool]:
    """(leader, whether it has every committed record)."""
    eligible = target.isr or target.elr
    order = [partition.leader, *target.replicas]
    if election is Election.PREFERRED:
        order.insert(0, target.replicas[0])
    for replica in order:
        if replica in eligible and acceptable(replica):
            return replica, True
    if not eligible and last_known and last_known[0] in target.replicas and acceptable(last_known[0]):
        return last_known[0], False
    if election is Election.UNCLEAN:
        for replica in target.replicas:
            if acceptable(replica):
                return replica, False
    return NO_LEADER, True


def _write_isr_and_elr(
    record: m.PartitionChangeRecord, target: _Target, partition: PartitionImage, elr_enabled: bool
) -> None:
    unclean = record.isr is not None
    elr = target.elr if elr_enabled and not unclean else []
    if elr != list(partition.elr):
        record.eligible_leader_replicas = elr
    if not unclean and (target.isr or elr_enabled) and target.isr != list(partition.isr):
        record.isr = target.isr


def _last_resort(
    image: ClusterImage, partition: PartitionImage, last_known: list[int], unclean_shutdown: int
) -> list[int]:
    """Nobody is left who surely has everything. Kafka relies on who led last, then, and so do we. Should that one's
    disk be gone, the last to leave the eligible ones, by nothing but an unclean end, is next: it lost nothing, or only
    what it had not flushed."""
    places = dict(zip(partition.replicas, partition.directories, strict=True))
    kept = [
        replica
        for replica in last_known
        if replica not in image.brokers or image.brokers[replica].has_online_dir(places.get(replica, UNASSIGNED_DIR))
    ]
    was_eligible = unclean_shutdown in partition.isr or unclean_shutdown in partition.elr
    if was_eligible and unclean_shutdown not in kept:
        kept.append(unclean_shutdown)
    return kept or last_known


def _write_last_known_leader(record: m.PartitionChangeRecord, partition: PartitionImage, last_known: list[int]) -> None:
    if record.leader == NO_LEADER and partition.leader != NO_LEADER and not partition.last_known_elr:
        last_known = [partition.leader, *(replica for replica in last_known if replica != partition.leader)]
    elif record.leader >= 0:
        last_known = []
    if last_known != list(partition.last_known_elr):
        record.last_known_elr = last_known


def _write_assignment(
    record: m.PartitionChangeRecord,
    target: _Target,
    partition: PartitionImage,
    image: ClusterImage,
    directories: Mapping[int, bytes],
) -> None:
    if image.metadata_version >= DIRECTORY_ASSIGNMENT_FROM:
        places = dict(zip(partition.replicas, partition.directories, strict=True)) | dict(directories)
        wanted = [places.get(replica) or default_directory(image, replica) for replica in target.replicas]
        if wanted != list(partition.directories):
            record.directories = wanted
    if target.replicas != list(partition.replicas):
        record.replicas = target.replicas
    if target.removing != list(partition.removing_replicas):
        record.removing_replicas = target.removing
    if target.adding != list(partition.adding_replicas):
        record.adding_replicas = target.adding


def _changes_nothing(record: m.PartitionChangeRecord) -> bool:
    return (
        record.leader == NO_LEADER_CHANGE
        and record.leader_recovery_state == _NO_RECOVERY_STATE_CHANGE
        and record.isr is None
        and record.replicas is None
        and record.removing_replicas is None
        and record.adding_replicas is None
        and record.directories is None
        and record.eligible_leader_replicas is None
        and record.last_known_elr is None
    )
