"""DescribeAcls (key 29), versions 1-3. There is no authorizer, hence there are no rules: SECURITY_DISABLED."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call


_MESSAGE = "No Authorizer is configured on the broker"


def handle(_broker: object, _call: Call, _request: m.DescribeAclsRequest) -> m.DescribeAclsResponse:
    return m.DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=_MESSAGE)
