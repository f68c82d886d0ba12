"""What others may ask of the replicas' room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from moldau.broker.replicas.dir_moves import LogDirMoves
    from moldau.broker.replicas.fetch_sessions import FetchSessions
    from moldau.broker.replicas.manager import ReplicaManager
    from moldau.broker.replicas.partition import Partition


class HasReplicas(Protocol):
    @property
    def replicas(self) -> ReplicaManager: ...

    def flush_soon(self, partition: Partition) -> None:
        """Make the partition durable off the loop; whoever waits for it is woken then."""


class HasFetchSessions(Protocol):
    @property
    def fetch_sessions(self) -> FetchSessions: ...


class HasMoves(Protocol):
    @property
    def moves(self) -> LogDirMoves: ...
