"""AlterUserScramCredentials (key 51), version 0. Passwords for listeners with SASL/SCRAM, kept in the metadata log.

Each user gets all of its changes or none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from moldau.controller.scram import alter_user_scram_credentials
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.controller.parts import HasController
    from moldau.broker.parts import HasAudit

    class Needs(HasController, HasAudit, Protocol):
        """What this file may touch."""


async def handle(
    broker: Needs, call: Call, request: m.AlterUserScramCredentialsRequest
) -> m.AlterUserScramCredentialsResponse:
    response = await broker.controller.submit(alter_user_scram_credentials, request)
    address = call.session.client_address
    for result in response.results:
        if not result.error_code:
            target = f"user {result.user}"
            broker.audit.changed(call.principal, address=address, api=call.api.name, target=target)
    return response
