"""Brokers register, call, are fenced, shut down and leave; controllers register too.

A broker is fenced until it has read the metadata log up to its own registration, and again when it falls silent. A
fenced broker leads nothing and is in no ISR. Its epoch is the offset of its registration: every later request of the
broker carries it, so one from an earlier incarnation is recognised as stale.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from enum import Enum, auto

from moldau.controller.context import ControllerContext, ControllerResult
from moldau.controller.elections import leader_and_isr_updates
from moldau.controller.errors import ApiError
from moldau.controller.features import (
    CORDONED_LOG_DIRS_FROM,
    DIRECTORY_ASSIGNMENT_FROM,
    KRAFT_VERSION,
    METADATA_VERSION,
)
from moldau.controller.fold import apply
from moldau.controller.image import NO_LEADER, BrokerRegistration, ClusterImage, PartitionImage, is_reserved_dir
from moldau.controller.sessions import KnownSessions
from moldau.wire import messages as m
from moldau.wire.errors import ErrorCode
from moldau.wire.message import Message

_FENCE, _UNFENCE, _IN_CONTROLLED_SHUTDOWN = 1, -1, 1


class BrokerState(Enum):
    FENCED = auto()
    UNFENCED = auto()
    CONTROLLED_SHUTDOWN = auto()  # moves its leaderships away before it goes
    SHUTDOWN_NOW = auto()


def check_broker_epoch(image: ClusterImage, broker_id: int, epoch: int) -> BrokerRegistration:
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise ApiError(ErrorCode.STALE_BROKER_EPOCH, f"No broker registration found for broker id {broker_id}")
    if broker.epoch != epoch:
        raise ApiError(
            ErrorCode.STALE_BROKER_EPOCH, f"Expected broker epoch {broker.epoch}, but got broker epoch {epoch}"
        )
    return broker


def register_broker(
    image: ClusterImage,
    request: m.BrokerRegistrationRequest,
    context: ControllerContext,
    sessions: KnownSessions,
) -> ControllerResult[m.BrokerRegistrationResponse]:
    existing = image.brokers.get(request.broker_id)
    try:
        _check_registration(image, request, context, sessions, existing)
    except ApiError as error:
        return ControllerResult(m.BrokerRegistrationResponse(0, error.code), [], error.message)
    record = m.RegisterBrokerRecord(
        broker_id=request.broker_id,
        incarnation_id=request.incarnation_id,
        broker_epoch=context.next_offset,
        end_points=[
            m.RegisterBrokerRecord.BrokerEndpoint(e.name, e.host, e.port, e.security_protocol)
            for e in request.listeners
        ],
        features=[
            m.RegisterBrokerRecord.BrokerFeature(f.name, f.min_supported_version, f.max_supported_version)
            for f in request.features
        ],
        rack=request.rack,
        log_dirs=list(request.log_dirs) if image.metadata_version >= DIRECTORY_ASSIGNMENT_FROM else [],
    )
    records: list[Message] = []
    if existing is not None and existing.incarnation_id == request.incarnation_id:
        # The same process again, its first answer was lost perhaps: it keeps its state and its epoch.
        record.broker_epoch = existing.epoch
        record.fenced, record.in_controlled_shutdown = existing.fenced, existing.in_controlled_shutdown
    else:
        clean = existing is not None and existing.epoch == request.previous_broker_epoch
        records += _records_for_shutdown(image, context, request.broker_id, clean=clean)
    records.append(record)
    session = sessions.of(request.broker_id, record.broker_epoch)
    response = m.BrokerRegistrationResponse(0, ErrorCode.NONE, record.broker_epoch)
    return ControllerResult(response, records, sessions={request.broker_id: session})


def _check_registration(
    image: ClusterImage,
    request: m.BrokerRegistrationRequest,
    context: ControllerContext,
    sessions: KnownSessions,
    existing: BrokerRegistration | None,
) -> None:
    if request.cluster_id != context.cluster_id:
        raise ApiError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"Expected cluster ID {context.cluster_id}, but got cluster ID {request.cluster_id}",
        )
    if (
        existing is not None
        and existing.incarnation_id != request.incarnation_id
        and sessions.is_alive(request.broker_id, existing.epoch, context.now_ms)
    ):
        raise ApiError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            "Another broker is registered with that broker id. If the broker was recently restarted this should "
            "self-resolve once the heartbeat manager expires the broker's session.",
        )
    if request.is_migrating_zk_broker:
        raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, "Controller does not support registering ZK brokers.")
    if image.metadata_version >= DIRECTORY_ASSIGNMENT_FROM:
        _check_log_dirs(image, request.broker_id, request.log_dirs)
    _check_features(image, request, context)


def _check_log_dirs(image: ClusterImage, broker_id: int, log_dirs: list[bytes]) -> None:
    if not log_dirs:
        raise ApiError(ErrorCode.INVALID_REGISTRATION, "No directories specified in request")
    if any(is_reserved_dir(directory) for directory in log_dirs):
        raise ApiError(ErrorCode.INVALID_REGISTRATION, "Reserved directory ID in request")
    if len(set(log_dirs)) != len(log_dirs):
        raise ApiError(ErrorCode.INVALID_REGISTRATION, "Duplicate directory ID in request")
    for other in image.brokers.values():
        for directory in log_dirs:
            if other.broker_id != broker_id and directory in other.directories:
                raise ApiError(
                    ErrorCode.INVALID_REGISTRATION,
                    f"Broker {other.broker_id} is already registered with directory {directory.hex()}",
                )


def _check_features(image: ClusterImage, request: m.BrokerRegistrationRequest, context: ControllerContext) -> None:
    """Every finalized level must be one the broker supports."""
    finalized = {**image.features, KRAFT_VERSION: context.kraft_version}
    offered = {f.name: (f.min_supported_version, f.max_supported_version) for f in request.features}
    if METADATA_VERSION not in offered:
        raise ApiError(ErrorCode.INVALID_REGISTRATION, "Request features do not contain 'metadata.version'")
    for name in {**offered, **finalized}:
        level = finalized.get(name, 0)
        first, last = offered.get(name, (0, 0))
        if not first <= level <= last:
            raise ApiError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"Unable to register because the broker does not support finalized version {level} of {name}. "
                f"The broker wants a version between {first} and {last}, inclusive.",
            )


def _records_for_shutdown(
    image: ClusterImage, context: ControllerContext, broker_id: int, *, clean: bool
) -> list[Message]:
    """A new incarnation registers: the former one is gone, and with it, perhaps, records it had not flushed."""
    if clean or not image.is_elr_enabled:
        return leader_and_isr_updates(image, context, lambda p: broker_id in p.isr, remove=broker_id)
    return leader_and_isr_updates(
        image, context, lambda p: broker_id in p.isr or broker_id in p.elr, unclean_shutdown=broker_id
    )


def broker_heartbeat(
    image: ClusterImage, request: m.BrokerHeartbeatRequest, context: ControllerContext, sessions: KnownSessions
) -> ControllerResult[m.BrokerHeartbeatResponse]:
    try:
        broker = check_broker_epoch(image, request.broker_id, request.broker_epoch)
    except ApiError as error:
        return ControllerResult(m.BrokerHeartbeatResponse(error_code=error.code), [], error.message)
    session = sessions.of(broker.broker_id, broker.epoch)
    caught_up = request.current_metadata_offset >= broker.registration_offset
    before = _state(broker)
    lost_all = bool(broker.directories) and set(broker.directories) <= set(request.offline_log_dirs)
    after = _next_state(image, request, sessions, broker, caught_up=caught_up, lost_all=lost_all)
    records: list[Message] = []
    if before is not after:
        records += _transition(image, context, broker, after)
    # Whoever is fenced is not waited for, and its next incarnation need not wait until it is forgotten.
    is_fenced = after in (BrokerState.FENCED, BrokerState.SHUTDOWN_NOW)
    if not lost_all:
        records += _directory_records(apply(image, records) if records else image, request, context)
    shutdown_offset = session.shutdown_offset if after is BrokerState.CONTROLLED_SHUTDOWN else -1
    if after is BrokerState.CONTROLLED_SHUTDOWN and shutdown_offset < 0:
        # The others need to know that the broker leads nothing any more before it may disappear.
        shutdown_offset = context.next_offset + len(records) - 1
    heard = replace(
        session,
        contact_ms=None if is_fenced else context.now_ms,
        metadata_offset=request.current_metadata_offset,
        shutdown_offset=shutdown_offset,
    )
    response = m.BrokerHeartbeatResponse(
        is_caught_up=caught_up,
        is_fenced=is_fenced,
        should_shut_down=after is BrokerState.SHUTDOWN_NOW,
    )
    return ControllerResult(response, records, sessions={broker.broker_id: heard})


def _state(broker: BrokerRegistration) -> BrokerState:
    if broker.fenced:
        return BrokerState.FENCED
    return BrokerState.CONTROLLED_SHUTDOWN if broker.in_controlled_shutdown else BrokerState.UNFENCED


def _next_state(
    image: ClusterImage,
    request: m.BrokerHeartbeatRequest,
    sessions: KnownSessions,
    broker: BrokerRegistration,
    *,
    caught_up: bool,
    lost_all: bool,
) -> BrokerState:
    """`lost_all`: no directory of the broker is online. It is fenced, since a BrokerRegistrationChangeRecord without
    directories says nothing about them: the broker would be elected on."""
    state = _state(broker)
    want_fence = request.want_fence or lost_all
    if state is BrokerState.FENCED:
        if request.want_shut_down:
            return BrokerState.SHUTDOWN_NOW
        # Who began to shut down stays fenced until it registers anew: it would be unfenced, and yet not active.
        ready = caught_up and not want_fence and not broker.in_controlled_shutdown
        return BrokerState.UNFENCED if ready else BrokerState.FENCED
    if state is BrokerState.UNFENCED:
        if want_fence:
            return BrokerState.SHUTDOWN_NOW if request.want_shut_down else BrokerState.FENCED
        if request.want_shut_down:
            leads = any(p.leader == broker.broker_id for _, _, p in image.partitions())
            return BrokerState.CONTROLLED_SHUTDOWN if leads else BrokerState.SHUTDOWN_NOW
        return BrokerState.UNFENCED
    if lost_all:
        return BrokerState.SHUTDOWN_NOW
    if any(p.leader == broker.broker_id for _, _, p in image.partitions()):
        return BrokerState.CONTROLLED_SHUTDOWN
    session = sessions.of(broker.broker_id, broker.epoch)
    lowest = sessions.lowest_active_offset(image)
    if session.shutdown_offset >= 0 and (lowest is None or session.shutdown_offset <= lowest):
        return BrokerState.SHUTDOWN_NOW
    return BrokerState.CONTROLLED_SHUTDOWN


def _transition(
    image: ClusterImage, context: ControllerContext, broker: BrokerRegistration, after: BrokerState
) -> list[Message]:
    broker_id, epoch = broker.broker_id, broker.epoch
    if after is BrokerState.UNFENCED:
        return [
            m.BrokerRegistrationChangeRecord(broker_id, epoch, fenced=_UNFENCE),
            *leader_and_isr_updates(image, context, lambda p: p.leader == NO_LEADER, add=broker_id),
        ]
    if after is BrokerState.CONTROLLED_SHUTDOWN:
        return [
            m.BrokerRegistrationChangeRecord(broker_id, epoch, in_controlled_shutdown=_IN_CONTROLLED_SHUTDOWN),
            *leader_and_isr_updates(image, context, lambda p: broker_id in p.isr, remove=broker_id),
        ]
    return fence_records(image, context, broker)


def fence_records(image: ClusterImage, context: ControllerContext, broker: BrokerRegistration) -> list[Message]:
    """Nothing is led by the broker and no ISR has it any more; then it is fenced."""
    broker_id = broker.broker_id
    records = leader_and_isr_updates(image, context, lambda p: broker_id in p.isr, remove=broker_id)
    if not broker.fenced:
        records.append(m.BrokerRegistrationChangeRecord(broker_id, broker.epoch, fenced=_FENCE))
    return records


def _directory_records(
    image: ClusterImage, request: m.BrokerHeartbeatRequest, context: ControllerContext
) -> list[Message]:
    """Directories that failed, or that shall get no new replicas."""
    broker = image.brokers[request.broker_id]
    records: list[Message] = []
    offline = [directory for directory in broker.directories if directory in request.offline_log_dirs]
    if offline and image.metadata_version >= DIRECTORY_ASSIGNMENT_FROM:

        def lies_there(partition: PartitionImage) -> bool:
            return any(
                replica == broker.broker_id and directory in offline
                for replica, directory in zip(partition.replicas, partition.directories, strict=True)
            )

        records += leader_and_isr_updates(image, context, lies_there, remove=broker.broker_id)
        online = [directory for directory in broker.directories if directory not in offline]
        records.append(m.BrokerRegistrationChangeRecord(broker.broker_id, broker.epoch, log_dirs=online))
    cordoned = request.cordoned_log_dirs
    if cordoned is not None and image.metadata_version >= CORDONED_LOG_DIRS_FROM:
        known = broker.cordoned_directories
        if known is None or set(known) != set(cordoned):
            records.append(
                m.BrokerRegistrationChangeRecord(broker.broker_id, broker.epoch, cordoned_log_dirs=list(cordoned))
            )
    return records


def fence_brokers(image: ClusterImage, context: ControllerContext, broker_ids: Iterable[int]) -> list[Message]:
    """Fence brokers whose sessions are over, each with the effects of the one before it in view."""
    records: list[Message] = []
    for broker_id in broker_ids:
        broker = image.brokers.get(broker_id)
        if broker is not None and not broker.fenced:
            fencing = fence_records(image, context, broker)
            image = apply(image, fencing)
            records += fencing
    return records


def unregister_broker(
    image: ClusterImage, request: m.UnregisterBrokerRequest, context: ControllerContext
) -> ControllerResult[m.UnregisterBrokerResponse]:
    """The broker will not come back. Its replicas stay assigned until they are moved."""
    broker_id = request.broker_id
    broker = image.brokers.get(broker_id)
    if broker is None:
        message = f"Broker ID {broker_id} is not currently registered"
        return ControllerResult(m.UnregisterBrokerResponse(0, ErrorCode.BROKER_ID_NOT_REGISTERED, message), [], message)
    records = leader_and_isr_updates(
        image, context, lambda p: broker_id in p.isr or broker_id in p.elr, remove=broker_id
    )
    records.append(m.UnregisterBrokerRecord(broker_id, broker.epoch))
    return ControllerResult(m.UnregisterBrokerResponse(0, ErrorCode.NONE, None), records, sessions={broker_id: None})


def register_controller(
    _image: ClusterImage, request: m.ControllerRegistrationRequest, _context: ControllerContext
) -> ControllerResult[m.ControllerRegistrationResponse]:
    record = m.RegisterControllerRecord(
        controller_id=request.controller_id,
        incarnation_id=request.incarnation_id,
        end_points=[
            m.RegisterControllerRecord.ControllerEndpoint(e.name, e.host, e.port, e.security_protocol)
            for e in request.listeners
        ],
        features=[
            m.RegisterControllerRecord.ControllerFeature(f.name, f.min_supported_version, f.max_supported_version)
            for f in request.features
        ],
    )
    return ControllerResult(m.ControllerRegistrationResponse(0, ErrorCode.NONE, None), [record])
