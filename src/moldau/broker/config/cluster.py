"""Settings for several nodes that form a cluster on one machine, each broker and controller at once.

Replication is what people expect of a cluster of that size: three copies, two of which must have a record, from three
nodes on; as many as there are otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class NodePorts(NamedTuple):
    broker: int
    controller: int


def cluster_settings(
    host: str, ports: Sequence[NodePorts], data_dir: str, *, listener: str = "PLAINTEXT"
) -> list[dict[str, str]]:
    """server.properties of node 1, 2, …; the data of each is in a folder of its own."""
    count = len(ports)
    voters = ",".join(f"{number}@{host}:{each.controller}" for number, each in enumerate(ports, start=1))
    copies, in_sync = str(min(3, count)), str(min(2, max(1, count - 1)))
    common = {
        "process.roles": "broker,controller",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": voters,
        "default.replication.factor": copies,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": in_sync,
    }
    return [
        {
            **common,
            "node.id": str(number),
            "listeners": f"{listener}://{host}:{each.broker},CONTROLLER://{host}:{each.controller}",
            "log.dirs": f"{data_dir}/node-{number}",
        }
        for number, each in enumerate(ports, start=1)
    ]
