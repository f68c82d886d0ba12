"""Whether this node lives, is ready, and who it is: for orchestrators, load balancers and people.

Live means that the event loop turns and nothing has failed that a restart would mend. Ready means that clients are
served: the cluster has this broker unfenced, and a log dir works. A controller alone is ready when it knows a leader.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau.broker.controller.parts import HasController
    from moldau.broker.parts import HasConfig, HasIdentity, HasImage, HasLogs
    from moldau.broker.quorum.parts import HasQuorum

    class Needs(HasConfig, HasController, HasIdentity, HasImage, HasLogs, HasQuorum, Protocol):
        """What this file may touch."""


def why_not_ready(broker: Needs) -> str | None:
    """None: it is. Asked of a node whose start is over."""
    if not broker.config.is_broker:
        return None if broker.metadata_log.leader_id is not None else "the quorum has no leader"
    registered = broker.image.brokers.get(broker.node_id)
    if registered is None or registered.epoch != broker.broker_epoch:
        return "this broker is not registered"
    if registered.fenced:
        return "this broker is fenced: the controller does not hear from it, or it has not caught up"
    if not broker.logs.online_dirs:
        return "all log dirs failed"
    return None


def status(broker: Needs, addresses: Mapping[str, tuple[str, int]]) -> dict[str, Any]:
    """Of a node whose start is over, as JSON would have it."""
    quorum, image = broker.metadata_log, broker.image
    return {
        "node_id": broker.node_id,
        "cluster_id": broker.cluster_id,
        "roles": [
            name
            for name, has_it in (("broker", broker.config.is_broker), ("controller", broker.config.is_controller))
            if has_it
        ],
        "broker_epoch": broker.broker_epoch,
        "listeners": {name: f"{host}:{port}" for name, (host, port) in addresses.items()},
        "log_dirs": [
            {"path": os.path.abspath(path), "online": each.is_online, "error": str(each.error) if each.error else None}
            for path, each in broker.logs.dirs.items()
        ],
        "replicas": len(broker.logs.logs),
        "controller": {"active": broker.controller.is_active},
        "quorum": {
            "leader_id": quorum.leader_id,
            "epoch": quorum.epoch,
            "high_watermark": quorum.high_watermark,
            "log_end_offset": quorum.next_offset,
        },
        "brokers": {
            "active": sorted(each.broker_id for each in image.brokers.values() if not each.fenced),
            "fenced": sorted(each.broker_id for each in image.brokers.values() if each.fenced),
        },
        "topics": len(image.topics),
        "metadata_offset": image.offset,
    }
