"""UpdateFeatures: raise or lower the levels of features, all of them or none."""

from __future__ import annotations

from collections.abc import Mapping

from moldau.controller.context import MIN_INSYNC_REPLICAS, ControllerContext, ControllerResult
from moldau.controller.errors import ApiError
from moldau.controller.features import (
    ELR_VERSION,
    FEATURES,
    KRAFT_VERSION,
    METADATA_VERSION,
    METADATA_VERSION_FIRST,
    METADATA_VERSION_LATEST,
    NOT_SUPPORTED,
    VersionRange,
    bootstrap_records,
    loses_metadata,
    release_name,
)
from moldau.controller.image import CLUSTER_DEFAULTS, ClusterImage, ResourceType
from moldau.wire import messages as m
from moldau.wire.errors import ErrorCode
from moldau.wire.message import Message

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


def update_features(
    image: ClusterImage, request: m.UpdateFeaturesRequest, context: ControllerContext
) -> ControllerResult[m.UpdateFeaturesResponse]:
    """Versions 0 and 1 of the response list every feature; from 2 on there is one error for the request."""
    updates = {update.feature: update for update in request.feature_updates}
    proposed = {**image.features, METADATA_VERSION: image.metadata_version}
    proposed |= {name: update.max_version_level for name, update in updates.items()}
    records: list[Message] = []
    try:
        for update in updates.values():
            records += _update(image, update, proposed, context)
    except ApiError as error:
        message = f"The update failed for all features since the following feature had an error: {error.message}"
        return ControllerResult(m.UpdateFeaturesResponse(0, error.code, message), [], message)
    if updates.get(ELR_VERSION) is not None and updates[ELR_VERSION].max_version_level > 0:
        records += elr_safety_records(image, context)
    results = [m.UpdateFeaturesResponse.UpdatableFeatureResult(name, ErrorCode.NONE, None) for name in updates]
    response = m.UpdateFeaturesResponse(0, ErrorCode.NONE, None, results)
    return ControllerResult(response, [] if request.validate_only else records)


def _update(
    image: ClusterImage,
    update: m.UpdateFeaturesRequest.FeatureUpdateKey,
    proposed: Mapping[str, int],
    context: ControllerContext,
) -> list[Message]:
    name, level = update.feature, update.max_version_level
    if update.upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        raise _invalid(name, level, "The controller does not support the given upgrade type.")
    current = _current(image, name, context)
    if level < 0:
        raise _invalid(name, level, "A feature version cannot be less than 0.")
    reason = reason_not_supported(image, name, level, context)
    if reason is not None:
        raise _invalid(name, level, reason)
    if level < current and update.upgrade_type == UPGRADE:
        raise _invalid(
            name,
            level,
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
            "downgrade.",
        )
    if level > current and update.upgrade_type != UPGRADE:
        raise _invalid(name, level, "Can't downgrade to a newer version.")
    if name == METADATA_VERSION:
        return _metadata_version_records(current, level, unsafe=update.upgrade_type == UNSAFE_DOWNGRADE)
    if name == KRAFT_VERSION:
        if level < current:
            raise _invalid(name, level, "Can't downgrade the version of this feature.")
        # The level itself is a control record of the Raft log, which the quorum writes.
        return []
    _check_dependencies(name, level, proposed)
    return [m.FeatureLevelRecord(name, level)]


def _current(image: ClusterImage, name: str, context: ControllerContext) -> int:
    if name == METADATA_VERSION:
        return image.metadata_version
    return context.kraft_version if name == KRAFT_VERSION else image.features.get(name, 0)


def reason_not_supported(image: ClusterImage, name: str, level: int, context: ControllerContext) -> str | None:
    """Why the cluster cannot go to this level: some node would not understand it."""
    nodes: list[tuple[str, Mapping[str, VersionRange]]]
    nodes = [(f"Local controller {context.node_id}", context.supported_features)]
    nodes += [(f"Broker {broker.broker_id}", broker.features) for broker in image.brokers.values()]
    nodes += [
        (f"Controller {controller.controller_id}", controller.features)
        for controller in image.controllers.values()
        if controller.controller_id != context.node_id
    ]
    for who, features in nodes:
        levels = features.get(name, NOT_SUPPORTED)
        if level not in levels:
            if levels.last == 0:
                return f"{who} does not support this feature."
            return f"{who} only supports versions {levels}"
    for controller_id in context.quorum_ids:
        if controller_id != context.node_id and controller_id not in image.controllers:
            return f"controller {controller_id} has not registered, and may not support this feature"
    return None


def _metadata_version_records(current: int, level: int, *, unsafe: bool) -> list[Message]:
    if not METADATA_VERSION_FIRST <= level <= METADATA_VERSION_LATEST:
        raise ApiError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"Invalid metadata.version {level}. Valid versions are from {METADATA_VERSION_FIRST} to "
            f"{METADATA_VERSION_LATEST}.",
        )
    if level < current and loses_metadata(current, level):
        why = (
            "Unsafe metadata downgrade is not supported in this version."
            if unsafe
            else "Refusing to perform the requested downgrade because it might delete metadata information."
        )
        raise ApiError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"Unsupported metadata.version downgrade from {current} to {level}. {why}",
        )
    return [m.FeatureLevelRecord(METADATA_VERSION, level)]


def _check_dependencies(name: str, level: int, proposed: Mapping[str, int]) -> None:
    feature = FEATURES.get(name)
    if feature is None:
        raise _invalid(name, level, f"Feature {name} not found.")
    for other, needed in feature.needs.get(level, {}).items():
        if proposed.get(other, 0) < needed:
            what = f"metadata.version={needed} ({release_name(needed)})"
            if other != METADATA_VERSION:
                what = f"{other} level {needed}"
            raise _invalid(name, level, f"{name} could not be set to {level} because it depends on {what}")


def _invalid(name: str, level: int, why: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_UPDATE_VERSION, f"Invalid update version {level} for feature {name}. {why}")


def elr_safety_records(image: ClusterImage, context: ControllerContext) -> list[Message]:
    """With eligible leader replicas, min.insync.replicas must be one value for all: the cluster's, not a broker's."""
    records: list[Message] = []
    broker = ResourceType.BROKER
    if MIN_INSYNC_REPLICAS not in image.config(*CLUSTER_DEFAULTS):
        value = context.rules.static_topic_default(MIN_INSYNC_REPLICAS)
        records.append(m.ConfigRecord(broker, CLUSTER_DEFAULTS.name, MIN_INSYNC_REPLICAS, value))
    records += [
        m.ConfigRecord(broker, resource.name, MIN_INSYNC_REPLICAS, None)
        for resource, settings in image.configs.items()
        if resource.type == broker and resource != CLUSTER_DEFAULTS and MIN_INSYNC_REPLICAS in settings
    ]
    return records


def activation_records(
    image: ClusterImage, context: ControllerContext, bootstrap: list[Message] | None = None
) -> list[Message]:
    """What a controller writes first when it becomes the active one.

    In a new cluster: the bootstrap records, as one metadata transaction. A transaction that its predecessor left
    open is aborted.
    """
    records: list[Message] = []
    if image.in_transaction:
        records.append(m.AbortTransactionRecord("Controller failover"))
    if image.features:
        return records
    first = bootstrap_records() if bootstrap is None else bootstrap
    records.append(m.BeginTransactionRecord("Bootstrap records"))
    records += first
    if any(isinstance(record, m.FeatureLevelRecord) and record.name == ELR_VERSION for record in first):
        records += elr_safety_records(image, context)
    records.append(m.EndTransactionRecord())
    return records
