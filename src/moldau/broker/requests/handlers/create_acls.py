"""CreateAcls (key 30), versions 1-3. Rules about who may do what, kept in the metadata log.

Without an authorizer that would obey a rule: SECURITY_DISABLED for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from moldau.broker.requests.handlers.common import NO_AUTHORIZER
from moldau.controller.acls import create_acls, words
from moldau.controller.image import Acl
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.controller.parts import HasController
    from moldau.broker.parts import HasAudit, HasAuthorizer

    class Needs(HasAudit, HasAuthorizer, HasController, Protocol):
        """What this file may touch."""


async def handle(broker: Needs, call: Call, request: m.CreateAclsRequest) -> m.CreateAclsResponse:
    if broker.authorizer is None:
        refused = m.CreateAclsResponse.AclCreationResult(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
        return m.CreateAclsResponse(results=[refused] * len(request.creations))
    response = await broker.controller.submit(create_acls, request)
    for creation, result in zip(request.creations, response.results, strict=True):
        if result.error_code == ErrorCode.NONE:
            rule = Acl(
                creation.resource_type,
                creation.resource_name,
                creation.resource_pattern_type,
                creation.principal,
                creation.host,
                creation.operation,
                creation.permission_type,
            )
            broker.audit.changed(
                call.principal, address=call.session.client_address, api=call.api.name, target=words(rule)
            )
    return response
