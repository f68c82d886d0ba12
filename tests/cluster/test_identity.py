"""Who belongs to which cluster: found out without anybody formatting anything, and refused where it would go wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from moldau.broker.config import load_broker_config
from moldau.broker.node.identity import WrongDirectory, derived_cluster_id, format_voter
from moldau.broker.quorum.errors import LostHistory
from moldau.net import new_event_loop
from moldau.seams import RealDisk, SystemRandom
from moldau.testing import AsyncCluster


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(asyncio.wait_for(main(), 50))


def test_founders_derive_one_id_and_whoever_joins_is_told_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncCluster(3, data_dir=str(tmp_path)) as cluster:
            ids = {node.broker.cluster_id for node in cluster.nodes.values()}
            assert ids == {derived_cluster_id(load_broker_config(cluster.settings[1]))}
            await cluster.add_broker(4)
            assert cluster.nodes[4].broker.cluster_id in ids

    run(main)


def test_a_fixed_voter_that_lost_its_disk_does_not_come_back_by_itself(tmp_path: Path) -> None:
    """It may have acknowledged what is committed, and voted: with its word the others would elect who lacks it."""

    async def main() -> None:
        async with AsyncCluster(3, data_dir=str(tmp_path)) as cluster:
            cluster_id = cluster.nodes[1].broker.cluster_id
            await cluster.stop_node(2)
            cluster.settings[2]["log.dirs"] = str(tmp_path / "new-disk")
            with pytest.raises(LostHistory, match=f"Restore the folder.*moldau format --cluster-id {cluster_id}"):
                await cluster.start_node(2)
            config = load_broker_config(cluster.settings[2])
            with pytest.raises(WrongDirectory, match="is not empty"):
                format_voter(load_broker_config(cluster.settings[1]), cluster_id, RealDisk(), SystemRandom())
            format_voter(config, cluster_id, RealDisk(), SystemRandom())
            await cluster.start_node(2)
            assert cluster.nodes[2].broker.cluster_id == cluster_id
            assert sorted(cluster.nodes[2].broker.image.brokers) == [1, 2, 3]

    run(main)


def test_a_node_of_another_cluster_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncCluster(1, data_dir=str(tmp_path / "a")) as first:
            await first.add_broker(7)
            await first.stop_node(7)
            strange = first.settings[7]["log.dirs"]
            async with AsyncCluster(1, data_dir=str(tmp_path / "b")) as second:
                with pytest.raises(WrongDirectory, match="of that cluster, or empty ones"):
                    await second.add_broker(7, {"log.dirs": strange})

    run(main)


def test_a_new_broker_waits_for_a_controller_that_knows(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncCluster(1, data_dir=str(tmp_path)) as cluster:
            await cluster.stop_node(1)
            waiting = asyncio.ensure_future(cluster.add_broker(2))
            await asyncio.sleep(0.5)
            assert not waiting.done()
            await cluster.start_node(1)
            await waiting
            assert sorted(cluster.nodes[1].broker.image.brokers) == [1, 2]

    run(main)
