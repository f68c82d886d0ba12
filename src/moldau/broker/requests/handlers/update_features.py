"""UpdateFeatures (key 57), versions 0-2. Raises or lowers the cluster's feature levels, all of a request or none.

Version 0 says `allow_downgrade`; from 1 on the kind of change is said, and `validate_only` changes nothing. Versions 0
and 1 are answered with every feature, 2 with one error for the request. The level of `kraft.version` is the
quorum's: it is written there, with the voters, which can change from then on (KIP-853).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from moldau.controller.feature_updates import SAFE_DOWNGRADE, UPGRADE, update_features
from moldau.controller.features import KRAFT_VERSION
from moldau.raft.membership import VoterChangeRefused
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.controller.parts import HasController
    from moldau.broker.quorum.parts import HasQuorum
    from moldau.raft.voters import VoterSet

    class Needs(HasController, HasQuorum, Protocol):
        """What this file may touch."""


async def handle(broker: Needs, call: Call, request: m.UpdateFeaturesRequest) -> m.UpdateFeaturesResponse:
    if call.version == 0:
        for update in request.feature_updates:
            update.upgrade_type = SAFE_DOWNGRADE if update.allow_downgrade else UPGRADE
    level = next((each.max_version_level for each in request.feature_updates if each.feature == KRAFT_VERSION), 0)
    changes = broker.metadata_log.voter_changes
    is_raised = level > broker.controller.kraft_version and not request.validate_only
    voters: VoterSet | None = None

    def raise_kraft_version(response: m.UpdateFeaturesResponse) -> asyncio.Future[None] | None:
        return changes.upgrade(voters, level) if voters is not None and not response.error_code else None

    try:
        if is_raised and broker.controller.is_active:
            voters = changes.upgradable()  # refused before anything is written, and not looked at again
        response = await broker.controller.submit(update_features, request, and_append=raise_kraft_version)
    except VoterChangeRefused as refused:
        return m.UpdateFeaturesResponse(error_code=refused.code, error_message=refused.message)
    for result in response.results:
        if result.error_code == ErrorCode.NONE:
            result.error_message = ErrorCode.NONE.name  # what Kafka has there
    return response
