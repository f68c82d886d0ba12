"""DescribeAcls (key 29), versions 1-3. The rules that a filter finds. Without an authorizer: SECURITY_DISABLED."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from moldau.controller.acls import describe_acls
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.parts import HasAuthorizer, HasImage

    class Needs(HasAuthorizer, HasImage, Protocol):
        """What this file may touch."""


_MESSAGE = "No Authorizer is configured on the broker"


def handle(broker: Needs, _call: Call, request: m.DescribeAclsRequest) -> m.DescribeAclsResponse:
    if broker.authorizer is None:
        return m.DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=_MESSAGE)
    return describe_acls(broker.image, request)
