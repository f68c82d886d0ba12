"""Real nodes in worlds full of trouble, a seed each. `make simulate SEEDS=n` plays more and longer ones."""

from dataclasses import replace

import pytest

from tests.simulation.scenario import QUICK_ELECTIONS, SNAPSHOTS, Plan, play

_ALONE = Plan(nodes=1, trouble_s=4.0)
_THREE = Plan(nodes=3, trouble_s=4.0)
# By turns: a classic group, a group of the new protocol, elections in which candidates meet.
_TURNS = (
    replace(_THREE, consumers=0),
    replace(_THREE, members=0),
    replace(_THREE, members=0, consumers=0, settings=QUICK_ELECTIONS + SNAPSHOTS),
)
_CHANGING = Plan(
    spare_nodes=2,
    trouble_s=10.0,
    members=0,
    consumers=0,
    readers=False,
    settings=SNAPSHOTS,
    kinds=("node joins", "node leaves", "new disk", "crash", "isolate", "leader move"),
)
_HOUSEKEEPING = Plan(
    trouble_s=6.0, writers=1, transactional_writers=0, members=0, consumers=0, readers=False, housekeeping=True
)
# One of each of what only some worlds have.
_RARE = {
    "apart": replace(_THREE, controllers=3, writers=1, members=0),
    "racks": replace(_THREE, racks=True, quiet=True, members=0, consumers=0),
    "bystanders": replace(_THREE, bystanders=True, writers=1, readers=False, kinds=("append failures",)),
    "power of all": replace(_THREE, flushes=True, members=0, readers=False, kinds=("blackout", "power", "isolate")),
    "power of one": replace(_ALONE, flushes=True, kinds=("blackout", "crash")),
    "broad": replace(_HOUSEKEEPING, broad=True),
    "unmounted": replace(_HOUSEKEEPING, dirs=3, kinds=("dir unmounted", "dir vanishes", "crash")),
    "rot": replace(_HOUSEKEEPING, dirs=2, kinds=("file rot", "header rot", "restart", "power")),
    "threads": replace(_THREE, members=0, consumers=0, scribe=True, thoughtful=True),
    "voters": replace(
        _THREE, members=0, consumers=0, scribe=True, kinds=("voter's new disk", "metadata rot", "isolate")
    ),
}
# Whatever stops a test stops it inside a simulated node, and then looks like a failure of that node.
pytestmark = pytest.mark.timeout(600)
_PER_TEST = 5  # a test may take a minute, also on a busy machine


@pytest.mark.parametrize("first", range(0, 40, _PER_TEST))
def test_a_node_of_its_own_keeps_its_promises(first: int) -> None:
    for seed in range(first, first + _PER_TEST):
        verdict = play(seed, _ALONE)
        assert not verdict.violations, f"seed {seed}: {verdict.violations[:5]}"
        assert verdict.acked > 10
        assert verdict.transactions > 2


@pytest.mark.parametrize("first", range(0, 80, _PER_TEST))
def test_a_cluster_keeps_its_promises(first: int) -> None:
    for seed in range(first, first + _PER_TEST):
        verdict = play(seed, _TURNS[seed % len(_TURNS)])
        assert not verdict.violations, f"seed {seed}: {verdict.violations[:5]}"
        assert verdict.acked > 10
        assert verdict.transactions > 2


@pytest.mark.parametrize("first", range(0, 30, _PER_TEST))
def test_nothing_is_lost_by_housekeeping(first: int) -> None:
    for seed in range(first, first + _PER_TEST):
        verdict = play(seed, replace(_HOUSEKEEPING, dirs=1 + seed % 3))
        assert not verdict.violations, f"seed {seed}: {verdict.violations[:5]}"
        assert verdict.acked > 10


@pytest.mark.parametrize("kind", _RARE)
def test_rare_worlds_keep_their_promises(kind: str) -> None:
    for seed in range(2):
        verdict = play(seed, _RARE[kind])
        assert not verdict.violations, f"seed {seed}: {verdict.violations[:5]}"
        assert verdict.acked > 5


@pytest.mark.parametrize("first", range(0, 20, _PER_TEST))
def test_a_cluster_whose_members_come_and_go_keeps_its_promises(first: int) -> None:
    changes = 0
    for seed in range(first, first + _PER_TEST):
        verdict = play(seed, _CHANGING)
        assert not verdict.violations, f"seed {seed}: {verdict.violations[:5]}"
        assert verdict.acked > 10
        changes += sum(verdict.faults[kind] for kind in ("node joins", "node leaves", "new disk"))
    assert changes > 0


@pytest.mark.parametrize(
    "plan",
    [_ALONE, _THREE, _CHANGING, replace(_HOUSEKEEPING, dirs=2)],
    ids=["alone", "three", "changing", "housekeeping"],
)
def test_a_seed_replays_exactly(plan: Plan) -> None:
    first, again = play(7, plan), play(7, plan)
    assert first.trace == again.trace
    assert first.events == again.events
    assert play(8, plan).trace != first.trace
