"""What others may ask of the controller's room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from moldau.broker.controller.channel import ControllerChannel
    from moldau.broker.controller.local import LocalController


class HasController(Protocol):
    """The controller of this very node, which may be active or not."""

    @property
    def controller(self) -> LocalController: ...


class HasControllerChannel(Protocol):
    """The way to the active controller, wherever it is."""

    @property
    def controller_channel(self) -> ControllerChannel: ...
