"""A follower's side of an incremental fetch session (KIP-227): partitions are named once, then only what changes.

Invariant: what the leader has in the session is `_sent`, as long as every response was seen; after an error, a
disconnect or a timeout the next request is a full one, which closes the former session.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from moldau.wire.errors import ErrorCode

INITIAL_EPOCH, NO_SESSION_EPOCH = 0, -1
_EPOCH_MAX = 2**31 - 1
_NO_SESSION = 0

Key = tuple[bytes, int]  # topic id, partition


class FetchFrom(NamedTuple):
    """One partition of a fetch request."""

    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    max_bytes: int


class FetchPlan(NamedTuple):
    """What a request says. `wanted` are the new and changed partitions, all of them in a full one."""

    session_id: int
    session_epoch: int
    wanted: list[tuple[Key, FetchFrom]]
    forgotten: list[Key]


class FollowerSession:
    __slots__ = ("_epoch", "_first_epoch", "_id", "_sent")

    def __init__(self, *, wants_session: bool = True) -> None:
        self._id = _NO_SESSION
        self._first_epoch = INITIAL_EPOCH if wants_session else NO_SESSION_EPOCH
        self._epoch = self._first_epoch
        self._sent: dict[Key, FetchFrom] = {}

    @property
    def is_incremental(self) -> bool:
        return self._epoch != self._first_epoch

    def plan(self, positions: Mapping[Key, FetchFrom], changed: Iterable[Key]) -> FetchPlan:
        """The next request, for all of these partitions and no others. `changed` are those that may differ from the
        request before: new, moved on, or gone."""
        if not self.is_incremental:
            self._sent = dict(positions)
            return FetchPlan(self._id, self._epoch, list(positions.items()), [])
        sent = self._sent
        wanted, forgotten = [], []
        for key in changed:
            position = positions.get(key)
            if position is None:
                if sent.pop(key, None) is not None:
                    forgotten.append(key)
            elif sent.get(key) != position:
                sent[key] = position
                wanted.append((key, position))
        return FetchPlan(self._id, self._epoch, wanted, forgotten)

    def on_response(self, error_code: int, session_id: int) -> bool:
        """Whether the answer can be used."""
        if error_code != ErrorCode.NONE:
            if error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self._id = _NO_SESSION
            self._epoch = self._first_epoch
            return False
        if session_id == _NO_SESSION:  # the leader has no room for a session, or closed this one as it was empty
            self._id, self._epoch = _NO_SESSION, self._first_epoch
        elif not self.is_incremental or session_id != self._id:
            self._id, self._epoch = session_id, 1
        else:
            self._epoch = 1 if self._epoch == _EPOCH_MAX else self._epoch + 1
        return True

    def on_failure(self) -> None:
        """No answer: whether the leader took the request is not known."""
        self._epoch = self._first_epoch
