"""Real nodes in worlds full of trouble, a seed each. `make simulate SEEDS=n` plays more and longer ones."""

import pytest

from tests.simulation.scenario import Plan, play

_ALONE = Plan(nodes=1, trouble_s=4.0)
_THREE = Plan(nodes=3, trouble_s=4.0)
_PER_TEST = 10


@pytest.mark.parametrize("first", range(0, 40, _PER_TEST))
def test_a_node_of_its_own_keeps_its_promises(first: int) -> None:
    for seed in range(first, first + _PER_TEST):
        verdict = play(seed, _ALONE)
        assert not verdict.violations, f"seed {seed}: {verdict.violations[:5]}"
        assert verdict.acked > 10
        assert verdict.transactions > 2


@pytest.mark.parametrize("first", range(0, 160, _PER_TEST))
def test_a_cluster_keeps_its_promises(first: int) -> None:
    for seed in range(first, first + _PER_TEST):
        verdict = play(seed, _THREE)
        assert not verdict.violations, f"seed {seed}: {verdict.violations[:5]}"
        assert verdict.acked > 10
        assert verdict.transactions > 2


@pytest.mark.parametrize("plan", [_ALONE, _THREE], ids=["alone", "three"])
def test_a_seed_replays_exactly(plan: Plan) -> None:
    first, again = play(7, plan), play(7, plan)
    assert first.trace == again.trace
    assert first.events == again.events
    assert play(8, plan).trace != first.trace
