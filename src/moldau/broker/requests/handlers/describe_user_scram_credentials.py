"""DescribeUserScramCredentials (key 50), version 0. Which users have a password of which mechanism; never the keys."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from moldau.broker.requests.pieces import AT_ONCE
from moldau.broker.requests.threads import in_thread
from moldau.controller.scram import describe_user_scram_credentials
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.parts import HasImage, HasLoop

    class Needs(HasImage, HasLoop, Protocol):
        """What this file may touch."""


def handle(
    broker: Needs, _call: Call, request: m.DescribeUserScramCredentialsRequest
) -> m.DescribeUserScramCredentialsResponse | Awaitable[m.DescribeUserScramCredentialsResponse]:
    if request.users and len(request.users) > AT_ONCE:
        return in_thread(broker, partial(describe_user_scram_credentials, broker.image, request))
    return describe_user_scram_credentials(broker.image, request)
