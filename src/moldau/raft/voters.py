"""Who votes. The set is fixed by the settings (kraft.version 0), or is in the log itself (kraft.version 1).

In the log, the newest set counts from the moment it is appended, committed or not (section 6 of the Raft paper);
truncating the log brings the former one back. `VoterHistory` keeps that straight.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from moldau.raft.settings import RaftViolation
from moldau.wire import ZERO_UUID

NO_NODE = -1


class Address(NamedTuple):
    host: str
    port: int


class ReplicaKey(NamedTuple):
    """A node and its metadata directory: the same node with another disk is another replica (KIP-853)."""

    id: int
    directory_id: bytes = ZERO_UUID

    def is_same(self, other: ReplicaKey) -> bool:
        """As far as is known: with kraft.version 0 directories are not told, or not kept."""
        return self.id == other.id and (
            self.directory_id == other.directory_id or ZERO_UUID in (self.directory_id, other.directory_id)
        )


class Voter(NamedTuple):
    """One voter, where it listens, and what it can speak."""

    key: ReplicaKey
    # Listener name -> where; the first is the one to use.
    endpoints: tuple[tuple[str, Address], ...] = ()
    first_kraft_version: int = 0
    last_kraft_version: int = 1

    @property
    def address(self) -> Address | None:
        return self.endpoints[0][1] if self.endpoints else None


@dataclass(slots=True, frozen=True)
class VoterSet:
    """Voters by node id, in the order of their ids."""

    voters: tuple[Voter, ...] = ()
    _by_id: dict[int, Voter] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        ordered = tuple(sorted(self.voters, key=lambda voter: voter.key.id))
        object.__setattr__(self, "voters", ordered)
        object.__setattr__(self, "_by_id", {voter.key.id: voter for voter in ordered})
        if len(self._by_id) != len(ordered):
            raise ValueError("a node is in the voter set twice")

    def __len__(self) -> int:
        return len(self.voters)

    def __iter__(self) -> Iterator[Voter]:
        return iter(self.voters)

    def get(self, node_id: int) -> Voter | None:
        return self._by_id.get(node_id)

    def __contains__(self, key: ReplicaKey) -> bool:
        """Voters without a directory id (kraft.version 0) are known by their node id alone."""
        voter = self._by_id.get(key.id)
        return voter is not None and voter.key.directory_id in (ZERO_UUID, key.directory_id)

    def is_only(self, key: ReplicaKey) -> bool:
        return len(self.voters) == 1 and key in self

    @property
    def majority(self) -> int:
        return len(self.voters) // 2 + 1

    def address(self, node_id: int) -> Address | None:
        voter = self._by_id.get(node_id)
        return None if voter is None else voter.address

    def with_voter(self, voter: Voter) -> VoterSet:
        """Added, or replaced."""
        return VoterSet((*(each for each in self.voters if each.key.id != voter.key.id), voter))

    def without(self, key: ReplicaKey) -> VoterSet:
        return VoterSet(tuple(each for each in self.voters if each.key != key))

    def overlaps(self, other: VoterSet) -> bool:
        """Whether the two differ by one voter at most, so that their majorities share one."""
        mine, theirs = {each.key for each in self}, {each.key for each in other}
        return len(mine - theirs) <= 1 and len(theirs - mine) <= 1


def static_voters(voters: Iterable[tuple[int, str, int]], listener: str) -> VoterSet:
    """The set of `controller.quorum.voters`: (id, host, port) each."""
    return VoterSet(
        tuple(Voter(ReplicaKey(node_id), ((listener, Address(host, port)),)) for node_id, host, port in voters)
    )


class VoterHistory:
    """The voter sets and kraft versions of the log, by the offset of their record; the settings' set before all."""

    __slots__ = ("_sets", "_static", "_versions")

    def __init__(self, static: VoterSet | None = None) -> None:
        self._static = static or VoterSet()
        self._sets: list[tuple[int, VoterSet]] = []
        self._versions: list[tuple[int, int]] = []

    @property
    def latest(self) -> VoterSet:
        return self._sets[-1][1] if self._sets else self._static

    @property
    def latest_offset(self) -> int:
        """Where the newest set is in the log; -1 if it comes from the settings."""
        return self._sets[-1][0] if self._sets else -1

    @property
    def kraft_version(self) -> int:
        return self._versions[-1][1] if self._versions else 0

    def at(self, offset: int) -> tuple[VoterSet, int]:
        """What counted just before `offset`: for a snapshot that ends there."""
        sets = [voters for at, voters in self._sets if at < offset]
        versions = [version for at, version in self._versions if at < offset]
        return sets[-1] if sets else self._static, versions[-1] if versions else 0

    def add_voters(self, offset: int, voters: VoterSet) -> None:
        """RaftViolation if majorities of this set and of the one before could decide without each other."""
        if self._sets and not self.latest.overlaps(voters):
            raise RaftViolation(f"the voters at offset {offset} are not those before but for one: {voters}")
        self._sets.append((offset, voters))

    def add_kraft_version(self, offset: int, version: int) -> None:
        self._versions.append((offset, version))

    def truncate_to(self, offset: int) -> None:
        """The log was truncated: what it said from `offset` on was never said."""
        self._sets = [each for each in self._sets if each[0] < offset]
        self._versions = [each for each in self._versions if each[0] < offset]

    def forget_before(self, offset: int) -> None:
        """A snapshot covers everything before: only the last of what it covers is needed still."""
        for history in (self._sets, self._versions):
            covered = sum(1 for each in history if each[0] < offset)
            del history[: max(0, covered - 1)]

    def clear(self) -> None:
        """The log was replaced by a snapshot."""
        self._sets.clear()
        self._versions.clear()
