"""Where the replicas of new partitions go: spread over racks first, then over the brokers of a rack.

The rules are those of Kafka's striped placer: no rack has two replicas of a partition while another has none; fenced
brokers come last within their rack; the first replica, which leads, is never on a fenced one. How they are kept is our
own, and stricter about balance: within a request every unfenced broker leads equally often (give or take one), whatever
the sizes of the racks, and followers go to the least loaded. The order is drawn anew each time everybody has led once,
so that a broker's replicas are spread over many others, and its load too when it fails.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple, TypeVar

from moldau.controller.errors import ApiError
from moldau.seams import Random
from moldau.wire.errors import ErrorCode

T = TypeVar("T")
_FENCED_WEIGHT = 1 << 40  # more than anybody's load


class UsableBroker(NamedTuple):
    broker_id: int
    rack: str | None
    fenced: bool


class _Rack:
    __slots__ = ("brokers", "load")

    def __init__(self) -> None:
        self.brokers: list[UsableBroker] = []
        self.load = 0


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
    by_name: dict[str | None, _Rack] = {}
    for broker in usable:
        by_name.setdefault(broker.rack, _Rack()).brokers.append(broker)
    racks = list(by_name.values())
    rack_of = {broker.broker_id: by_name[broker.rack] for broker in usable}
    load = dict.fromkeys(rack_of, 0)
    leaders: list[int] = []
    placed = []
    for number in range(partitions):
        if number % unfenced == 0 and (number == 0 or len(usable) > 1):
            leaders = _draw_leaders(racks, random)
        replicas = [leaders[number % unfenced]]
        while len(replicas) < replication_factor:
            replicas.append(_next_follower(racks, rack_of, load, replicas))
        for replica in replicas:
            load[replica] += 1
            rack_of[replica].load += 1
        placed.append(replicas)
    return placed


def _draw_leaders(racks: list[_Rack], random: Random) -> list[int]:
    """Every unfenced broker once, racks in turn, otherwise in random order (which stays the racks' own from now on)."""
    shuffle(racks, random)
    for rack in racks:
        shuffle(rack.brokers, random)
    columns = [[broker.broker_id for broker in rack.brokers if not broker.fenced] for rack in racks]
    deepest = max(len(column) for column in columns)
    return [column[depth] for depth in range(deepest) for column in columns if depth < len(column)]


def _next_follower(racks: list[_Rack], rack_of: dict[int, _Rack], load: dict[int, int], replicas: list[int]) -> int:
    """Out of the rack with the fewest replicas of this partition, then with the least load: its least loaded broker."""
    rack = racks[0]
    if len(racks) > 1:
        present = [rack_of[replica] for replica in replicas]
        open_racks = [rack for rack in racks if present.count(rack) < len(rack.brokers)]
        rack = min(open_racks, key=lambda rack: (present.count(rack), rack.load / len(rack.brokers)))
    chosen, lightest = -1, math.inf
    for broker_id, _, fenced in rack.brokers:  # spelled out: ten thousand partitions may be placed at one go
        weight = load[broker_id] + _FENCED_WEIGHT if fenced else load[broker_id]
        if weight < lightest and broker_id not in replicas:
            chosen, lightest = broker_id, weight
    return chosen


def shuffle(items: list[T], random: Random) -> None:
    for index in range(len(items) - 1, 0, -1):
        other = random.below(index + 1)
        items[index], items[other] = items[other], items[index]


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, message)
