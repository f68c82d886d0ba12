"""What others may ask of the requests' room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from moldau.broker.requests.telemetry import Telemetry
    from moldau.seams.network import Connection


class HasTelemetry(Protocol):
    @property
    def telemetry(self) -> Telemetry: ...


class HearsOfDisconnects(Protocol):
    def on_disconnect(self, connection: Connection) -> None: ...
