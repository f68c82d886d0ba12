"""DeleteAcls (key 31), versions 1-3. All rules that a filter finds are deleted.

Without an authorizer there are none: SECURITY_DISABLED for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from moldau.broker.requests.handlers.common import NO_AUTHORIZER
from moldau.controller.acls import delete_acls, words
from moldau.controller.image import Acl
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.controller.parts import HasController
    from moldau.broker.parts import HasAudit, HasAuthorizer

    class Needs(HasAudit, HasAuthorizer, HasController, Protocol):
        """What this file may touch."""


async def handle(broker: Needs, call: Call, request: m.DeleteAclsRequest) -> m.DeleteAclsResponse:
    if broker.authorizer is None:
        refused = m.DeleteAclsResponse.DeleteAclsFilterResult(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
        return m.DeleteAclsResponse(filter_results=[refused] * len(request.filters))
    response = await broker.controller.submit(delete_acls, request)
    for result in response.filter_results:
        for gone in result.matching_acls:
            rule = Acl(
                gone.resource_type,
                gone.resource_name,
                gone.pattern_type,
                gone.principal,
                gone.host,
                gone.operation,
                gone.permission_type,
            )
            broker.audit.changed(
                call.principal, address=call.session.client_address, api=call.api.name, target=words(rule)
            )
    return response
