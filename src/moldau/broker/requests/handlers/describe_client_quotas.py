"""DescribeClientQuotas (key 48), versions 0-1. The quotas of users, clients and addresses that fit a filter.

None can be set here yet: AlterClientQuotas is not offered before quotas are enforced. Those that are shown were set
through an Apache Kafka controller of the same cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.controller.quotas import describe_client_quotas
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.parts import HasImage


def handle(broker: HasImage, _call: Call, request: m.DescribeClientQuotasRequest) -> m.DescribeClientQuotasResponse:
    return describe_client_quotas(broker.image, request)
