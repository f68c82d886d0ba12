"""ElectLeaders (key 43), versions 0-2. Gives partitions back to their preferred leaders, or revives leaderless ones.

Version 0 knows only preferred elections; an unclean one may lose records. Without partitions (null) all are looked at,
and only those that changed are reported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.controller.elections import elect_leaders
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.controller.parts import HasController


async def handle(broker: HasController, _call: Call, request: m.ElectLeadersRequest) -> m.ElectLeadersResponse:
    return await broker.controller.submit(elect_leaders, request)
