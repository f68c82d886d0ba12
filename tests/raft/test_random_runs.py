"""Random drops, delays, one-way cuts, crashes, slow disks, snapshots and voters that come and go: safety always,
liveness once the trouble is over.

The checks are in `tests.raft.cluster`. Every run is replayed exactly by its seed.
"""

from __future__ import annotations

import pytest

from tests.raft.cluster import Cluster

STEPS = 40


def _disturb(cluster: Cluster) -> None:
    chance = cluster.chance
    kind = chance.randrange(10)
    node = chance.choice(cluster.nodes)
    if kind == 0 and node.is_up:
        node.crash()
    elif kind == 1 and not node.is_up:
        node.start()
    elif kind == 2 and not cluster.cut:
        cluster.isolate(node.id)
    elif kind == 3 and len(cluster.cut) < 2:
        cluster.cut.add((node.id, chance.choice(cluster.nodes).id))
    elif kind in (4, 9):
        cluster.cut.clear()
    elif kind == 5:
        cluster.lose = chance.choice([0.0, 0.0, 0.05, 0.3])
    elif kind == 6:
        cluster.delay_ms = chance.choice([(0.5, 2.0), (0.5, 2.0), (1.0, 300.0), (100.0, 900.0)])
    elif kind == 7:
        node.flush_ms = chance.choice([1.0, 1.0, 50.0, 700.0])
    elif node.is_up:
        node.raft.resign(cluster.now_ms)
        node.carry_out_effects()


def run(seed: int) -> Cluster:
    size = (3, 5, 3, 2, 4)[seed % 5]
    changes_voters = seed % 3 == 0
    cluster = Cluster(size, seed, observers=2 if changes_voters else seed % 2)
    cluster.fetch_max = cluster.chance.choice([1, 3, 50])
    appended = changed = 0
    for _ in range(STEPS):
        _disturb(cluster)
        for node in cluster.nodes:
            for _ in range(cluster.chance.choice([0, 0, 1, 5])):
                appended += node.append(appended)
        if cluster.chance.random() < 0.15:
            _snapshot(cluster)
        if changes_voters and cluster.chance.random() < 0.3:
            node_id = cluster.chance.choice(cluster.nodes).id
            for node in cluster.nodes:
                changed += node.add_voter(node_id) or node.remove_voter(node_id)
        cluster.run(cluster.chance.choice([5.0, 100.0, 1500.0, 4000.0]))
        cluster.check_log_matching()
    cluster.heal()
    for node in cluster.nodes:
        node.flush_ms = 1.0
        if not node.is_up:
            node.start()
    cluster.run(10_000)  # whoever leads then has had its last election
    cluster.elect().append("the end")
    cluster.run_until(lambda: cluster.is_caught_up() and cluster.committed[-1].value == "the end")
    cluster.check_log_matching()
    cluster.voter_changes = changed
    return cluster


def _snapshot(cluster: Cluster) -> None:
    """Some node takes a snapshot of what is committed there, and cuts its log behind it."""
    node = cluster.chance.choice(cluster.nodes)
    if not node.is_up or not node.raft.high_watermark:
        return
    offset = node.raft.high_watermark
    latest = node.log.latest_snapshot
    if offset > node.log.start and offset <= node.log.flushed and (latest is None or latest.end_offset < offset):
        node.log.take_snapshot(offset)
        if cluster.chance.random() < 0.7:
            node.log.cut_before(offset)


@pytest.mark.parametrize("first_seed", range(0, 30, 5))
def test_nothing_committed_is_lost_and_the_quorum_recovers(first_seed: int) -> None:
    runs = [run(seed) for seed in range(first_seed, first_seed + 5)]
    # The runs do something.
    assert sum(len(each.committed) for each in runs) > 50
    assert sum(each.voter_changes for each in runs) > 0


@pytest.mark.parametrize("seed", [447, 528])
def test_a_voter_whose_removal_is_not_committed_still_campaigns(seed: int) -> None:
    """Otherwise nobody can win: the others lack the record that removes it (Raft dissertation, section 4.2.2)."""
    assert run(seed).voter_changes > 0
