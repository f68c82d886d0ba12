"""What CreateTopics, DeleteTopics and CreatePartitions have in common: clients may have a quota for such changes.

Newer clients are told of each topic that is beyond it (THROTTLING_QUOTA_EXCEEDED) and ask again later; older ones get
what they want and are silenced for it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.controller.parts import HasController
    from moldau.controller.context import ControllerContext


def charged_context(broker: HasController, call: Call, strict_since: int) -> ControllerContext:
    """The controller's, for a command of this client."""
    context = broker.controller.context()
    if call.meter is None:
        return context
    return replace(context, rehearse_charges=partial(call.meter.rehearse, call, is_strict=call.version >= strict_since))
