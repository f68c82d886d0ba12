"""Which replica a consumer reads from (KIP-392): one in its own rack, if there is one that has what it wants."""

from collections.abc import Iterable
from typing import NamedTuple


class ReplicaView(NamedTuple):
    """A replica a consumer may be sent to."""

    broker_id: int
    rack: str | None
    log_end_offset: int
    since_caught_up_ms: float


def closest_replica(client_rack: str, leader_id: int, candidates: Iterable[ReplicaView]) -> int:
    """The leader, unless others share the client's rack and it does not: then the one that has most."""
    near = [each for each in candidates if client_rack and each.rack == client_rack]
    if not near or any(each.broker_id == leader_id for each in near):
        return leader_id
    best = max(near, key=lambda each: (each.log_end_offset, -each.since_caught_up_ms, each.broker_id))
    return best.broker_id
