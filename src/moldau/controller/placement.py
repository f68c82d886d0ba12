"""Where the replicas of new partitions go: spread over racks first, then over the brokers of a rack.

Racks are taken in turn, each partition starting one further than the last, and so are the brokers within a rack; the
starts are random. Leaders are therefore spread evenly, and no rack has two replicas of a partition while another has
none. Fenced brokers come last, and never first in the list: the first replica leads, and must be there to do so.
When every unfenced broker has led once, racks and brokers are shuffled, lest the same neighbours meet again.
"""

from collections.abc import Iterable
from typing import NamedTuple, TypeVar

from moldau.controller.errors import ApiError
from moldau.seams import Random
from moldau.wire.errors import ErrorCode

T = TypeVar("T")


class UsableBroker(NamedTuple):
    broker_id: int
    rack: str | None
    fenced: bool


class _Ring:
    """Brokers handed out in turn. Each partition (`round_`) starts one further and gets every broker at most once."""

    __slots__ = ("_brokers", "_round", "_start", "_taken")

    def __init__(self, brokers: list[int], random: Random) -> None:
        self._brokers = sorted(brokers)
        self._start = random.below(len(brokers)) if brokers else 0
        self._taken = 0
        self._round = 0

    def shuffle(self, random: Random) -> None:
        shuffle(self._brokers, random)

    def next(self, round_: int) -> int | None:
        count = len(self._brokers)
        if not count:
            return None
        if round_ != self._round:
            self._round = round_
            self._taken = 0
            self._start = (self._start + 1) % count
        if self._taken >= count:
            return None
        broker = self._brokers[(self._taken + self._start) % count]
        self._taken += 1
        return broker


class _Rack:
    __slots__ = ("fenced", "unfenced")

    def __init__(self, brokers: list[UsableBroker], random: Random) -> None:
        self.fenced = _Ring([b.broker_id for b in brokers if b.fenced], random)
        self.unfenced = _Ring([b.broker_id for b in brokers if not b.fenced], random)

    def next(self, round_: int) -> int | None:
        broker = self.unfenced.next(round_)
        return self.fenced.next(round_) if broker is None else broker


def place(brokers: Iterable[UsableBroker], partitions: int, replication_factor: int, random: Random) -> list[list[int]]:
    """Replica lists for so many partitions, or ApiError INVALID_REPLICATION_FACTOR."""
    usable = sorted(brokers)
    unfenced = sum(not broker.fenced for broker in usable)
    if replication_factor <= 0:
        raise _invalid(f"Invalid replication factor {replication_factor}: the replication factor must be positive.")
    if not unfenced:
        raise _invalid("All brokers are currently fenced.")
    if replication_factor > len(usable):
        raise _invalid(
            f"The target replication factor of {replication_factor} cannot be reached because only {len(usable)} "
            "broker(s) are registered or some brokers have all their log directories cordoned."
        )
    by_rack: dict[str, list[UsableBroker]] = {}
    for broker in usable:
        by_rack.setdefault(broker.rack or "", []).append(broker)
    racks = [_Rack(by_rack[name], random) for name in sorted(by_rack)]
    start = random.below(len(racks))
    round_ = 0
    placed = []
    for _ in range(partitions):
        # A single broker would be shuffled forever.
        if round_ == unfenced and unfenced > 1:
            shuffle(racks, random)
            for rack in racks:
                rack.fenced.shuffle(random)
                rack.unfenced.shuffle(random)
            round_ = 0
        placed.append(_place_one(racks, start % len(racks), round_, replication_factor))
        round_ += 1
        start = start % len(racks) + 1
    return placed


def _place_one(racks: list[_Rack], start: int, round_: int, replication_factor: int) -> list[int]:
    count = len(racks)
    replicas: list[int] = []
    leader_rack = start
    while not replicas:
        leader = racks[leader_rack].unfenced.next(round_)
        if leader is None:
            leader_rack = (leader_rack + 1) % count
        else:
            replicas.append(leader)
    rack = start
    skip_leader_rack = True
    while len(replicas) < replication_factor:
        if rack == leader_rack and skip_leader_rack:
            # It has its replica; its turn comes again once every other rack has had one.
            skip_leader_rack = False
        else:
            broker = racks[rack].next(round_)
            if broker is not None:
                replicas.append(broker)
        rack = (rack + 1) % count
    return replicas


def shuffle(items: list[T], random: Random) -> None:
    for index in range(len(items) - 1, 0, -1):
        other = random.below(index + 1)
        items[index], items[other] = items[other], items[index]


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, message)
