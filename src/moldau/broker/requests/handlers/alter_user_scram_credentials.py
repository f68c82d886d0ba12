"""AlterUserScramCredentials (key 51), version 0. Passwords for listeners with SASL/SCRAM, kept in the metadata log.

Each user gets all of its changes or none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.controller.scram import alter_user_scram_credentials
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.controller.parts import HasController


async def handle(
    broker: HasController, _call: Call, request: m.AlterUserScramCredentialsRequest
) -> m.AlterUserScramCredentialsResponse:
    return await broker.controller.submit(alter_user_scram_credentials, request)
