"""Which limit a client has: of its user and client id together, or of one of them, or a default.

Kafka's precedence, the most specific first:

    user and client id, user and default client id, user, default user and client id, default user and default client
    id, default user, client id, default client id

All connections that share the entity they are measured by share the limit: those of one user if the limit is a user's
(or that of the default user), of one client id if it is a client id's, of both together if it is both's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from moldau.controller.addresses import plain_address
from moldau.controller.image import QuotaEntity
from moldau.controller.quotas import CLIENT_ID, IP, USER

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"

_DEFAULT = None
_REMEMBERED_MAX = 10_000


class _Nobody:
    """Not part of an entity."""


_NOBODY = _Nobody()
_Name = str | _Nobody | None


class Limit(NamedTuple):
    per_second: float
    user: str | None
    """Whose: None if the limit is not of a user, so that all users of the client id share it."""
    client_id: str | None


class ClientLimits:
    """The limits of one quota, by user and client id."""

    __slots__ = ("_found", "_limits")

    def __init__(self, quotas: Iterable[tuple[QuotaEntity, Mapping[str, float]]], key: str) -> None:
        self._found: dict[tuple[str, str], Limit | None] = {}  # of those who asked; limits never change
        self._limits: dict[tuple[_Name, _Name], float] = {}
        for entity, values in quotas:
            parts = dict(entity)
            if key in values and IP not in parts:
                self._limits[parts.get(USER, _NOBODY), parts.get(CLIENT_ID, _NOBODY)] = values[key]

    def __bool__(self) -> bool:
        return bool(self._limits)

    def find(self, user: str, client_id: str) -> Limit | None:
        try:
            return self._found[user, client_id]
        except KeyError:
            if len(self._found) >= _REMEMBERED_MAX:
                self._found.clear()
            found = self._found[user, client_id] = self._look_up(user, client_id)
            return found

    def _look_up(self, user: str, client_id: str) -> Limit | None:
        limits = self._limits
        for user_key, client_key in (
            (user, client_id),
            (user, _DEFAULT),
            (user, _NOBODY),
            (_DEFAULT, client_id),
            (_DEFAULT, _DEFAULT),
            (_DEFAULT, _NOBODY),
            (_NOBODY, client_id),
            (_NOBODY, _DEFAULT),
        ):
            found = limits.get((user_key, client_key))
            if found is not None:
                return Limit(found, None if user_key is _NOBODY else user, None if client_key is _NOBODY else client_id)
        return None


class AddressLimits:
    """Connections per second of single addresses, and of all that have no limit of their own."""

    __slots__ = ("_default", "_limits")

    def __init__(self, quotas: Iterable[tuple[QuotaEntity, Mapping[str, float]]]) -> None:
        self._limits: dict[str | None, float] = {}
        for entity, values in quotas:
            parts = dict(entity)
            if IP in parts and CONNECTION_CREATION_RATE in values:
                name = parts[IP]
                self._limits[None if name is None else plain_address(name)] = values[CONNECTION_CREATION_RATE]
        self._default = self._limits.pop(None, None)

    def __bool__(self) -> bool:
        return bool(self._limits) or self._default is not None

    def find(self, address: str) -> float | None:
        return self._limits.get(address, self._default)
