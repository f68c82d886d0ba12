"""Changes of the voters: carried out by the leader, and asked for by a controller that wants to join, or has moved.

One change at a time; whoever comes meanwhile is told to try again (REQUEST_TIMED_OUT), as Kafka does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from moldau.broker.supervision import keep_going
from moldau.controller.errors import NotController
from moldau.controller.features import KRAFT_VERSION
from moldau.raft import Address, Raft, ReplicaKey, Voter, VoterSet
from moldau.raft.membership import (
    Add,
    Remove,
    Update,
    VoterChange,
    VoterChangeRefused,
    changeable,
    upgraded,
    wanted_change,
    with_added,
    with_updated,
    without,
)
from moldau.seams import Clock
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.channels import Channels
    from moldau.broker.config import BrokerConfig

    class Needs(Protocol):
        """What of the quorum this file may touch."""

        cluster_id: str

        @property
        def raft(self) -> Raft: ...

        @property
        def voters(self) -> VoterSet: ...

        @property
        def epoch(self) -> int: ...

        @property
        def channels(self) -> Channels: ...

        def leader_endpoint(self) -> Address | None: ...

        def append_voters(self, voters: VoterSet, *, kraft_version: int | None = None) -> asyncio.Future[None]: ...


_log = logging.getLogger(__name__)
_SOFTWARE = ("moldau", "0.1")


class VoterChanges:
    """Belongs to the event loop."""

    def __init__(self, quorum: Needs, config: BrokerConfig, clock: Clock) -> None:
        self._quorum = quorum
        self._config = config
        self._clock = clock
        self._is_busy = False
        self._asking: asyncio.Task[None] | None = None

    # -- as the leader

    async def add(
        self, key: ReplicaKey, endpoints: tuple[tuple[str, Address], ...], timeout_ms: float, *, wait: bool
    ) -> None:
        """Returns when the voter is added, and the change committed if `wait`. VoterChangeRefused otherwise."""
        quorum = self._quorum
        if self._is_busy:
            raise _busy()
        self._is_busy = True
        try:
            changeable(quorum.raft)
            if quorum.voters.get(key.id) is not None:
                raise VoterChangeRefused(ErrorCode.DUPLICATE_VOTER, f"Node {key.id} is a voter already.")
            voter = await self._look_at(Voter(key, endpoints), timeout_ms)
            await self._change(lambda: with_added(quorum.raft, self._clock.monotonic_ms(), voter), timeout_ms, wait)
        finally:
            self._is_busy = False

    async def remove(self, key: ReplicaKey, timeout_ms: float) -> None:
        if self._is_busy:
            raise _busy()
        self._is_busy = True
        try:
            await self._change(lambda: without(self._quorum.raft, key), timeout_ms, True)
        finally:
            self._is_busy = False

    def update(self, voter: Voter) -> None:
        """Returns when the record is appended."""
        if self._is_busy:
            raise _busy()
        self._quorum.append_voters(with_updated(self._quorum.raft, voter))

    def upgradable(self) -> VoterSet:
        """The voters as they can be written into the log. VoterChangeRefused if not all are known."""
        return upgraded(self._quorum.raft)

    def upgrade(self, voters: VoterSet, kraft_version: int) -> asyncio.Future[None]:
        """Write the voters into the log, which makes them changeable. Done when that is committed."""
        return self._quorum.append_voters(voters, kraft_version=kraft_version)

    async def _look_at(self, voter: Voter, timeout_ms: float) -> Voter:
        """Ask the new voter itself which kraft.version it knows; a voter that cannot be reached is no help."""
        from moldau.broker.channels import UnsupportedVersion

        if voter.address is None:
            raise VoterChangeRefused(ErrorCode.INVALID_REQUEST, "The new voter's endpoints are missing.")
        try:
            request = m.ApiVersionsRequest(*_SOFTWARE)
            answer: Any = await self._quorum.channels.call(
                *voter.address, request, timeout_ms=min(timeout_ms, self._request_timeout_ms), lane="raft-voters"
            )
        except (OSError, UnsupportedVersion) as error:
            raise VoterChangeRefused(ErrorCode.REQUEST_TIMED_OUT, f"The new voter does not answer: {error}") from error
        levels = next((each for each in answer.supported_features if each.name == KRAFT_VERSION), None)
        first, last = (0, 0) if levels is None else (levels.min_version, levels.max_version)
        return voter._replace(first_kraft_version=first, last_kraft_version=last)

    async def _change(self, decide: Callable[[], VoterSet], timeout_ms: float, wait: bool) -> None:
        committed = self._quorum.append_voters(decide())
        if not wait:
            return
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await asyncio.shield(committed)
        except TimeoutError:
            raise VoterChangeRefused(
                ErrorCode.REQUEST_TIMED_OUT, "The change is not committed yet; it may be, later."
            ) from None
        except NotController as error:
            raise VoterChangeRefused(ErrorCode.NOT_LEADER_OR_FOLLOWER, str(error)) from error

    # -- as one who wants to join, or has moved

    def start(self) -> None:
        self._asking = keep_going(asyncio.get_running_loop(), "asking for voters", self._keep_asking)

    async def stop(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._asking

    async def _keep_asking(self) -> None:
        interval = self._config.get_int("controller.quorum.fetch.timeout.ms") / 1000 / 2
        may_join = self._config.get_bool("controller.quorum.auto.join.enable")
        while True:
            await asyncio.sleep(interval)
            wanted = wanted_change(self._quorum.raft, self._quorum.raft.endpoints, may_join=may_join)
            if wanted is not None:
                try:
                    await self._ask(wanted)
                except Exception as error:
                    _log.info("%s was not answered: %s", wanted, error)

    async def _ask(self, wanted: VoterChange) -> None:
        quorum = self._quorum
        leader = quorum.leader_endpoint()
        if leader is None:
            return
        request = _request(wanted, quorum.cluster_id, quorum.epoch, int(self._request_timeout_ms))
        answer = await quorum.channels.call(*leader, request, timeout_ms=self._request_timeout_ms, lane="raft-voters")
        if answer.error_code:
            _log.info("%s was refused: %s", wanted, ErrorCode(answer.error_code).name)

    @property
    def _request_timeout_ms(self) -> float:
        return self._config.get_int("controller.quorum.request.timeout.ms")


def _busy() -> VoterChangeRefused:
    return VoterChangeRefused(ErrorCode.REQUEST_TIMED_OUT, "Another voter change is under way: try again.")


def _request(
    wanted: VoterChange, cluster_id: str, epoch: int, timeout_ms: int
) -> m.AddRaftVoterRequest | m.RemoveRaftVoterRequest | m.UpdateRaftVoterRequest:
    match wanted:
        case Add(voter):
            listeners = [m.AddRaftVoterRequest.Listener(name, *address) for name, address in voter.endpoints]
            return m.AddRaftVoterRequest(cluster_id, timeout_ms, *voter.key, listeners, False)
        case Remove(key):
            return m.RemoveRaftVoterRequest(cluster_id, *key)
        case Update(voter):
            moved = [m.UpdateRaftVoterRequest.Listener(name, *address) for name, address in voter.endpoints]
            levels = m.UpdateRaftVoterRequest.KRaftVersionFeature(voter.first_kraft_version, voter.last_kraft_version)
            return m.UpdateRaftVoterRequest(cluster_id, epoch, *voter.key, moved, levels)
