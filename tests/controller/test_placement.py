"""Replica placement: balanced, rack aware, leaders on brokers that are there. (KIP-36, and Kafka's striped placer.)"""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.controller.errors import ApiError
from moldau.controller.placement import UsableBroker, place
from moldau.seams.randomness import SeededRandom

_BROKERS = st.lists(st.tuples(st.sampled_from([None, "a", "b", "c", "d"]), st.booleans()), min_size=1, max_size=12).map(
    lambda found: [UsableBroker(number, rack, fenced) for number, (rack, fenced) in enumerate(found)]
)


def _usable(brokers: list[UsableBroker]) -> bool:
    return any(not broker.fenced for broker in brokers)


@settings(deadline=None)
@given(_BROKERS.filter(_usable), st.integers(1, 30), st.data(), st.integers(0, 1000))
def test_every_placement_is_valid(brokers: list[UsableBroker], partitions: int, data: st.DataObject, seed: int) -> None:
    factor = data.draw(st.integers(1, len(brokers)))
    placed = place(brokers, partitions, factor, SeededRandom(seed))
    by_id = {broker.broker_id: broker for broker in brokers}
    racks = {broker.rack for broker in brokers}
    assert len(placed) == partitions
    for replicas in placed:
        assert len(replicas) == len(set(replicas)) == factor
        assert not by_id[replicas[0]].fenced
        used = Counter(by_id[replica].rack for replica in replicas)
        if factor <= len(racks):
            assert max(used.values()) == 1
        else:
            assert set(used) == racks


@settings(deadline=None)
@given(_BROKERS.filter(_usable), st.integers(1, 40), st.data(), st.integers(0, 1000))
def test_leaders_are_spread_evenly(
    brokers: list[UsableBroker], partitions: int, data: st.DataObject, seed: int
) -> None:
    """Whatever the racks are like, every broker that is alive leads as often as any other, give or take one."""
    factor = data.draw(st.integers(1, len(brokers)))
    placed = place(brokers, partitions, factor, SeededRandom(seed))
    leaders = Counter(dict.fromkeys((b.broker_id for b in brokers if not b.fenced), 0))
    leaders.update(replicas[0] for replicas in placed)
    assert max(leaders.values()) - min(leaders.values()) <= 1


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 5), st.integers(1, 6), st.integers(0, 1000))
def test_replicas_are_spread_evenly_over_equal_racks(
    racks: int, per_rack: int, factor: int, cycles: int, seed: int
) -> None:
    brokers = [UsableBroker(number, f"rack-{number % racks}", False) for number in range(racks * per_rack)]
    factor = min(factor, len(brokers))
    placed = place(brokers, cycles * len(brokers), factor, SeededRandom(seed))
    replicas = Counter(replica for replicas in placed for replica in replicas)
    assert sum(replicas.values()) == cycles * len(brokers) * factor
    assert max(replicas.values()) - min(replicas.values()) <= 3


def test_when_a_broker_fails_its_followers_are_many() -> None:
    """100 partitions with two replicas on ten brokers: a dead leader's partitions are not all taken by one other."""
    brokers = [UsableBroker(number, None, False) for number in range(10)]
    placed = place(brokers, 100, 2, SeededRandom(5))
    heirs = {replicas[1] for replicas in placed if replicas[0] == 3}
    assert len(heirs) >= 4


def test_fenced_brokers_come_last() -> None:
    brokers = [UsableBroker(0, "a", True), UsableBroker(1, "a", False), UsableBroker(2, "a", False)]
    for replicas in place(brokers, 20, 3, SeededRandom(3)):
        assert replicas[-1] == 0


def test_a_rack_of_fenced_brokers_still_follows() -> None:
    brokers = [UsableBroker(0, "a", True), UsableBroker(1, "b", False), UsableBroker(2, "b", False)]
    for replicas in place(brokers, 20, 2, SeededRandom(3)):
        assert replicas[1] == 0


@pytest.mark.parametrize(
    ("brokers", "factor", "message"),
    [
        ([UsableBroker(0, None, False)], 0, "Invalid replication factor 0: the replication factor must be positive."),
        ([UsableBroker(0, None, True)], 1, "All brokers are currently fenced."),
        ([], 1, "All brokers are currently fenced."),
        ([UsableBroker(0, None, False)], 2, "The target replication factor of 2 cannot be reached"),
    ],
)
def test_what_cannot_be_placed(brokers: list[UsableBroker], factor: int, message: str) -> None:
    with pytest.raises(ApiError) as refused:
        place(brokers, 1, factor, SeededRandom(1))
    assert refused.value.message is not None
    assert refused.value.message.startswith(message)
