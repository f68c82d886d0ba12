"""What others may ask of the coordinators' room. Coordinators are made when first asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from moldau.broker.coordinators.groups import GroupCoordinator
    from moldau.broker.coordinators.producer_ids import ProducerIds
    from moldau.broker.coordinators.transactions import TransactionCoordinator
    from moldau.broker.coordinators.txn_verifier import RemoteCoordinators


class HasGroups(Protocol):
    @property
    def groups(self) -> GroupCoordinator: ...


class HasTransactions(Protocol):
    @property
    def transactions(self) -> TransactionCoordinator: ...


class HasProducerIds(Protocol):
    @property
    def producer_ids(self) -> ProducerIds: ...


class HasRemoteCoordinators(Protocol):
    """Transaction coordinators on other brokers."""

    @property
    def remote_coordinators(self) -> RemoteCoordinators: ...
