"""Listens on the wire to what controllers promise each other: whoever gets a vote, in which epoch, from whom.

A vote counts from the moment its answer is given, also if the answer is lost: whoever gave it must not give another.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from moldau.wire import apis, decode, decode_request
from moldau.wire import messages as m
from moldau.wire.headers import decode_request_header, decode_response_header, peek_api
from tests.simulation.history import History
from tests.simulation.network import Fabric

VOTE = 52
_QUORUM_STATE = "/data/__cluster_metadata-0/quorum-state"


class VoteWitness:
    def __init__(
        self,
        fabric: Fabric,
        history: History,
        disk_of: Callable[[str], int],
        directory_of: Callable[[str], bytes | None],
        durable: Callable[[str, str], bytes | None],
    ) -> None:
        """`disk_of` says which disk a host has: with another one it is another voter, of another directory id.
        `durable` tells what of a file survives a loss of power."""
        self._history = history
        self._disk_of = disk_of
        self._directory_of = directory_of
        self._durable = durable
        # (host, its disk, epoch) -> who got the vote
        self._votes: dict[tuple[str, int, int], int] = {}
        self.granted = 0
        self.contested = 0  # epochs in which a voter was asked by several
        self._asked: dict[tuple[str, int], set[int]] = {}
        fabric.taps[VOTE] = self._overheard

    def _overheard(self, host: str, request: bytearray, answer: bytearray) -> None:
        api = apis()[VOTE]
        _, version, _ = peek_api(memoryview(request))
        _, position = decode_request_header(memoryview(request), flexible=version in api.flexible)
        asked = decode_request(m.VoteRequest, version, request[position:])
        _, position = decode_response_header(memoryview(answer), header_version=api.response_header_version(version))
        told = decode(m.VoteResponse, version, answer[position:])
        if not told.topics or not asked.topics:
            return
        wanted, given = asked.topics[0].partitions[0], told.topics[0].partitions[0]
        if wanted.pre_vote:
            return
        candidates = self._asked.setdefault((host, wanted.replica_epoch), set())
        self.contested += wanted.replica_id not in candidates and len(candidates) == 1
        candidates.add(wanted.replica_id)
        # Who asks for votes has given itself its own.
        self._note(f"n{wanted.replica_id}", wanted.replica_epoch, wanted.replica_id)
        if given.vote_granted:
            self.granted += 1
            own = self._directory_of(host)
            if own is not None and any(wanted.voter_directory_id) and wanted.voter_directory_id != own:
                self._history.violated(
                    "a voter with another disk is another voter", f"{host} voted in epoch {wanted.replica_epoch}"
                )
            self._check_durable(host, wanted.replica_epoch, wanted.replica_id)
            self._note(host, wanted.replica_epoch, wanted.replica_id)

    def _check_durable(self, host: str, epoch: int, candidate: int) -> None:
        """Whoever votes will remember it, come what may."""
        data = self._durable(host, _QUORUM_STATE)
        state = json.loads(data) if data else {}
        if state.get("leaderEpoch", -1) < epoch or (state["leaderEpoch"] == epoch and state["votedId"] != candidate):
            self._history.violated(
                "a vote is on disk before anybody hears of it", f"{host} voted for {candidate} in {epoch}, has {state}"
            )

    def _note(self, host: str, epoch: int, candidate: int) -> None:
        other = self._votes.setdefault((host, self._disk_of(host), epoch), candidate)
        if other != candidate:
            self._history.violated("one vote per epoch", f"{host} voted for {other} and {candidate} in epoch {epoch}")
