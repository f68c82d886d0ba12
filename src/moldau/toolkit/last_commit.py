"""The last commit of a member that leaves, although the group may be in the middle of a rebalance."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from confluent_kafka import KafkaError, KafkaException

log = logging.getLogger("moldau.toolkit")
_SECONDS_MAX = 10.0
_AGAIN_SECONDS = 0.02
_PASSING = (
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.ILLEGAL_GENERATION,  # we are about to learn the new one
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError._WAIT_COORD,
)


async def commit_last(commit: Callable[[], Awaitable[None]]) -> None:
    """While members come and go the group refuses commits; as polling goes on, it takes them a moment later, or takes
    the partitions, and then they are committed as those are given back."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _SECONDS_MAX
    while True:
        try:
            await asyncio.wait_for(commit(), max(0.0, deadline - loop.time()))
        except Exception as error:  # what was finished last will be repeated
            if not _is_passing(error) or loop.time() > deadline:
                log.warning("the last commit failed: %r; what was finished since the one before is repeated", error)
                return
            await asyncio.sleep(_AGAIN_SECONDS)  # a group tells nobody that it takes commits again
        else:
            return


def _is_passing(error: Exception) -> bool:
    """Whether a commit that was refused so is worth another try."""
    return isinstance(error, KafkaException) and error.args[0].code() in _PASSING
