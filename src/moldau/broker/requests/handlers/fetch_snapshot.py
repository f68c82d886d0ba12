"""FetchSnapshot (key 59), versions 0-1. Who is behind the start of the metadata log gets a snapshot, piece by piece.

Only the leader answers; a snapshot it no longer has is SNAPSHOT_NOT_FOUND, and the next Fetch names a newer one.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from moldau.broker.quorum.messages import QuorumRequestRefused, decode_fetch_snapshot, encode_fetched_snapshot
from moldau.broker.quorum.snapshots import serve_snapshot
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.parts import HasConfig
    from moldau.broker.quorum.parts import HasQuorum

    class Needs(HasConfig, HasQuorum, Protocol):
        """What this file may touch."""


def handle(broker: Needs, _call: Call, request: m.FetchSnapshotRequest) -> m.FetchSnapshotResponse:
    quorum = broker.metadata_log
    try:
        wanted = decode_fetch_snapshot(request, quorum.cluster_id)
    except QuorumRequestRefused as error:
        return m.FetchSnapshotResponse(error_code=error.code)
    limit_bytes = broker.config.get_int("controller.quorum.fetch.snapshot.max.bytes")
    max_bytes = max(1, min(request.max_bytes, limit_bytes))
    return encode_fetched_snapshot(quorum.ask(partial(serve_snapshot, quorum, request=wanted, max_bytes=max_bytes)))
