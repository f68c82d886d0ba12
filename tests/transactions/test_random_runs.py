"""Random runs of the small cluster in `world`, which checks itself at every step. A seed that fails replays exactly."""

import pytest

from tests.transactions.world import IDS, World

_SEEDS = 160
_BATCHES = 8


@pytest.mark.parametrize("batch", range(_BATCHES))
def test_random_orders_of_events(batch: int) -> None:
    counts: dict[str, int] = {}
    for seed in range(batch, _SEEDS, _BATCHES):
        world = World(seed)
        try:
            for _ in range(600):
                world.step()
            world.calm()
        except AssertionError as failure:
            failure.add_note(f"seed {seed}")
            raise
        for what, count in world.counts.items():
            counts[what] = counts.get(what, 0) + count
    # A run in which nothing happens proves nothing.
    for what in ("committed", "aborted", "failover", "append failed", "replayed", "PRODUCER_FENCED"):
        assert counts.get(what, 0) >= 20, (what, counts)


@pytest.mark.parametrize("seed", range(12))
def test_after_the_faults_everybody_can_work_again(seed: int) -> None:
    world = World(seed)
    for _ in range(400):
        world.step()
    world.calm()
    world.rng.seed(seed)
    for transactional_id in IDS:
        world.start_producer()
        producer = world.producers[-1]
        producer.transactional_id, producer.timeout_ms = transactional_id, 5_000
        before = world.counts.get("committed", 0)
        for _ in range(600):
            world.advance(1)
            world.tick(world.active)
            world.step_producer(producer)
            for token in list(world.active.appends):
                world.settle_append(world.active, token, is_calm=True)
            while world.active.markers:
                world.deliver_marker(world.active, world.active.markers.pop(), is_calm=True)
            assert not producer.is_dead
        assert world.counts["committed"] > before + 5
