"""Real nodes in worlds full of trouble, a seed each. `make simulate SEEDS=n` plays more and longer ones."""

import pytest

from tests.simulation.scenario import Plan, play

_ALONE = Plan(nodes=1, trouble_s=5.0)
_PER_TEST = 5


@pytest.mark.parametrize("first", range(0, 30, _PER_TEST))
def test_a_node_of_its_own_keeps_its_promises(first: int) -> None:
    for seed in range(first, first + _PER_TEST):
        verdict = play(seed, _ALONE)
        assert not verdict.violations, f"seed {seed}: {verdict.violations[:5]}"
        assert verdict.acked > 20
        assert verdict.transactions > 3


def test_a_seed_replays_exactly() -> None:
    first, again = play(7, _ALONE), play(7, _ALONE)
    assert first.trace == again.trace
    assert first.events == again.events
    assert play(8, _ALONE).trace != first.trace
