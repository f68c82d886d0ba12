"""Random lives of one partition: crashes, late news, elections, changes of the ISR; and always the promises kept.

Each broken variant below must be caught: a test that finds nothing there would find nothing anywhere.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from moldau.replication.leader import IsrChange, LeaderState
from moldau.wire import ErrorCode
from tests.replication.world import CheckFailed, Life, World

_STEPS = 250
# The rarest of the broken variants needs 395.
_SEEDS_UNTIL_CAUGHT = 800


class _Run:
    """One seed. The controller elects from the ISR only, and takes those who lost records out of it first."""

    def __init__(self, seed: int, *, truncate_by_high_watermark: bool = False) -> None:
        self.random = random.Random(seed)
        self.world = World(
            [1, 2, 3],
            min_isr=self.random.choice([1, 2]),
            truncate_by_high_watermark=truncate_by_high_watermark,
        )
        self.asked: list[tuple[Life, IsrChange]] = []
        self.values = 0

    def run(self) -> None:
        steps: list[tuple[int, Callable[[], None]]] = [
            (30, self.produce),
            (80, self.fetch),
            (2, self.crash),
            (8, self.restart),
            (3, self.elect),
            (16, self.tell),
            (20, self.ask),
            (10, self.answer),
            (6, self.wait),
            (3, self.flush),
        ]
        weights = [weight for weight, _ in steps]
        for _ in range(_STEPS):
            self.random.choices(steps, weights)[0][1]()
            self.world.check()
        self.end_faults()

    def some_node(self) -> int:
        return self.random.choice([1, 2, 3])

    def produce(self) -> None:
        self.values += 1
        self.world.produce(self.some_node(), f"v{self.values}")

    def fetch(self) -> None:
        self.world.fetch(self.some_node(), self.random.choice([1, 2, 100]))

    def crash(self) -> None:
        world, node_id = self.world, self.some_node()
        if not world.nodes[node_id].is_up or sum(each.is_up for each in world.nodes.values()) == 1:
            return
        others = [each for each in world.role.isr if each != node_id]
        is_power_loss = self.random.random() < 0.5 and others
        world.crash(node_id, lose=5 if is_power_loss else 0)
        if is_power_loss and node_id in world.role.isr:
            leader_id = world.leader_id if world.leader_id != node_id else self.random.choice(others)
            world.elect(leader_id, others, leader_id)

    def restart(self) -> None:
        node_id = self.some_node()
        if not self.world.nodes[node_id].is_up:
            self.world.restart(node_id)

    def elect(self) -> None:
        """Some members may have left the ISR in the election, as the dead do; news travel at their own speed."""
        world = self.world
        alive = [each for each in world.role.isr if world.nodes[each].is_up]
        if alive:
            world.elect(self.random.choice(alive), alive, self.some_node())

    def tell(self) -> None:
        self.world.tell(self.some_node())

    def ask(self) -> None:
        change = self.world.shrink() if self.random.random() < 0.4 else self._expand()
        if change is not None:
            self.asked.append((self.world.life_of(self.world.leader_id), change))

    def _expand(self) -> IsrChange | None:
        world = self.world
        node_id = self.some_node()
        return None if node_id == world.leader_id else world.expand(node_id)

    def answer(self) -> None:
        if not self.asked:
            return
        world = self.world
        life, change = self.asked.pop(self.random.randrange(len(self.asked)))
        error = world.commit(change, sender=life, is_told=self.random.random() < 0.7)
        if error == ErrorCode.STALE_BROKER_EPOCH:
            return  # it was sent in another incarnation, and nobody waits for the answer any more
        lead = world.nodes[world.leader_id].lead
        if error and lead is not None and (again := lead.on_refused(change, error)) is not None:
            self.asked.append((world.life_of(world.leader_id), again))

    def wait(self) -> None:
        self.world.now_ms += self.random.choice([10, 300, 1_100])

    def flush(self) -> None:
        log = self.world.nodes[self.some_node()].log
        log.flushed_offset = log.end_offset

    def end_faults(self) -> None:
        """Faults stop: everybody comes back, and soon all replicas are equal and in sync."""
        world = self.world
        for node_id, node in world.nodes.items():
            if not node.is_up:
                world.restart(node_id)
        world.elect(world.leader_id, list(world.role.isr))
        for _ in range(20):
            for node_id in world.nodes:
                world.fetch(node_id)
                change = world.expand(node_id) if node_id != world.leader_id else None
                if change is not None and (error := world.commit(change)):
                    lead = world.nodes[world.leader_id].lead
                    assert lead is not None
                    lead.on_refused(change, error)
        world.check()
        logs = {str(node.log) for node in world.nodes.values()}
        if len(logs) > 1 or sorted(world.role.isr) != [1, 2, 3]:
            raise CheckFailed(f"no agreement: {logs}, ISR {world.role.isr}")
        leader = world.nodes[world.leader_id]
        if leader.log.high_watermark != leader.log.end_offset:
            raise CheckFailed("the high watermark stands still")


def test_a_change_asked_for_in_a_former_life_is_refused() -> None:
    _Run(911_934).run()


@pytest.mark.parametrize("block", range(5))
def test_nothing_acknowledged_is_lost_and_replicas_agree(block: int) -> None:
    acked = 0
    for seed in range(block * 100, block * 100 + 100):
        run = _Run(seed)
        run.run()
        acked += len(run.world.acked)
    assert acked > 500


def _run_until_caught(*, truncate_by_high_watermark: bool = False) -> None:
    for seed in range(_SEEDS_UNTIL_CAUGHT):
        try:
            _Run(seed, truncate_by_high_watermark=truncate_by_high_watermark).run()
        except CheckFailed:
            print(seed)
            return
    raise AssertionError(f"{_SEEDS_UNTIL_CAUGHT} seeds did not show what is broken")


def test_truncation_by_high_watermark_is_caught() -> None:
    _run_until_caught(truncate_by_high_watermark=True)


def test_a_high_watermark_that_ignores_the_pending_isr_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newcomer may be elected as soon as the controller has it in the ISR, which the leader hears later."""
    real = LeaderState.high_watermark

    def broken(self: LeaderState, end: int, now_ms: float, lag_max_ms: float, min_isr: int) -> int:
        pending, self.pending_isr = self.pending_isr, frozenset()
        try:
            return real(self, end, now_ms, -1.0, min_isr)
        finally:
            self.pending_isr = pending

    monkeypatch.setattr(LeaderState, "high_watermark", broken)
    _run_until_caught()


def test_a_shrink_that_counts_before_it_is_committed_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """`ack before ISR`: the one left out may still be elected."""
    real = LeaderState.shrinkage

    def broken(self: LeaderState, end: int, now_ms: float, lag_max_ms: float) -> IsrChange | None:
        change = real(self, end, now_ms, lag_max_ms)
        if change is not None:
            self.isr = frozenset(each for each, _ in change.isr)
        return change

    monkeypatch.setattr(LeaderState, "shrinkage", broken)
    _run_until_caught()


def test_a_follower_added_before_it_has_the_committed_records_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = LeaderState.expansion

    def broken(self: LeaderState, broker_id: int, high_watermark: int) -> IsrChange | None:
        self.epoch_start_offset = 0
        return real(self, broker_id, 0)

    monkeypatch.setattr(LeaderState, "expansion", broken)
    _run_until_caught()
