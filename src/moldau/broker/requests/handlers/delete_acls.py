"""DeleteAcls (key 31), versions 1-3. There is no authorizer, hence no rule to delete: SECURITY_DISABLED for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.broker.requests.handlers.common import NO_AUTHORIZER
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call


def handle(_broker: object, _call: Call, request: m.DeleteAclsRequest) -> m.DeleteAclsResponse:
    refused = m.DeleteAclsResponse.DeleteAclsFilterResult(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
    return m.DeleteAclsResponse(filter_results=[refused] * len(request.filters))
