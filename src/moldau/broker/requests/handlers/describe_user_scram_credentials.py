"""DescribeUserScramCredentials (key 50), version 0. Which users have a password of which mechanism; never the keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.controller.scram import describe_user_scram_credentials
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.parts import HasImage


def handle(
    broker: HasImage, _call: Call, request: m.DescribeUserScramCredentialsRequest
) -> m.DescribeUserScramCredentialsResponse:
    return describe_user_scram_credentials(broker.image, request)
