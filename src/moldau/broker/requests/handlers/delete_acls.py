"""DeleteAcls (key 31), versions 1-3. All rules that a filter finds are deleted.

Without an authorizer there are none: SECURITY_DISABLED for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from moldau.broker.requests.handlers.common import NO_AUTHORIZER
from moldau.controller.acls import delete_acls
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.controller.parts import HasController
    from moldau.broker.parts import HasAuthorizer

    class Needs(HasAuthorizer, HasController, Protocol):
        """What this file may touch."""


async def handle(broker: Needs, _call: Call, request: m.DeleteAclsRequest) -> m.DeleteAclsResponse:
    if broker.authorizer is None:
        refused = m.DeleteAclsResponse.DeleteAclsFilterResult(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
        return m.DeleteAclsResponse(filter_results=[refused] * len(request.filters))
    return await broker.controller.submit(delete_acls, request)
