"""What a node tells others to reach it by is never an address that means every interface."""

from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path

import pytest

from moldau.broker.config import load_broker_config
from moldau.broker.node.addresses import needs_own_name, own_name, told_to_clients, told_to_nodes
from moldau.broker.node.node import Node
from moldau.broker.quorum import catching_up
from moldau.broker.quorum.catching_up import CatchingUp
from moldau.net import new_event_loop
from tests.broker.node.test_node_seams import controller_settings

NODE = {
    "process.roles": "broker,controller",
    "node.id": "2",
    "controller.listener.names": "CONTROLLER,SECOND",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECOND:PLAINTEXT",
    "controller.quorum.voters": "1@kafka1:9093,2@kafka2:9093,3@kafka3:9093",
    "log.dirs": "data",
}
PORTS = {"PLAINTEXT": 9092, "CONTROLLER": 9093, "SECOND": 9094}


@pytest.mark.parametrize(
    ("changes", "clients", "nodes", "asks"),
    [
        (
            {"listeners": "PLAINTEXT://a:9092,CONTROLLER://b:9093,SECOND://c:9094"},
            ["a:9092"],
            ["b:9093", "c:9094"],
            False,
        ),
        ({"listeners": "PLAINTEXT://a:9092,CONTROLLER://0.0.0.0:9093"}, ["a:9092"], ["kafka2:9093"], False),
        ({"listeners": "PLAINTEXT://a:9092,CONTROLLER://[::]:9093"}, ["a:9092"], ["kafka2:9093"], False),
        ({"listeners": "PLAINTEXT://:0,CONTROLLER://:9093"}, ["me:9092"], ["kafka2:9093"], True),
        (
            {"listeners": "PLAINTEXT://a:9092,CONTROLLER://:9093,SECOND://0.0.0.0:0"},
            ["a:9092"],
            ["kafka2:9093", "me:9094"],
            True,
        ),
        (
            {
                "listeners": "PLAINTEXT://0.0.0.0:9092,CONTROLLER://0.0.0.0:9093",
                "advertised.listeners": "PLAINTEXT://a:1,CONTROLLER://b:2",
            },
            ["a:1"],
            ["b:2"],
            False,
        ),
    ],
)
def test_what_is_told(changes: dict[str, str], clients: list[str], nodes: list[str], asks: bool) -> None:
    names = ",".join(each.partition(":")[0] for each in changes["listeners"].split(",")[1:])
    config = load_broker_config(NODE | changes | {"controller.listener.names": names})
    assert [f"{each.host}:{each.port}" for each in told_to_clients(config, PORTS, "me")] == clients
    assert [f"{each.host}:{each.port}" for each in told_to_nodes(config, PORTS, "me")] == nodes
    assert needs_own_name(config) is asks


def test_a_name_nobody_knows_is_not_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(socket, "getfqdn", lambda: "no-such-host.invalid")
    assert own_name() == "localhost"
    assert "advertised.listeners" in caplog.text
    monkeypatch.setattr(socket, "getfqdn", lambda: "127.0.0.1")
    assert own_name() == "127.0.0.1"


def test_a_controller_that_listens_everywhere_is_registered_where_voters_find_it(tmp_path: Path) -> None:
    settings = controller_settings(tmp_path)
    settings["listeners"] = settings["listeners"].replace("CONTROLLER://127.0.0.1", "CONTROLLER://0.0.0.0")
    config = load_broker_config(settings)

    async def main() -> None:
        node = Node(config)
        await node.start()
        try:
            while not (controllers := node.broker.image.controllers):
                await asyncio.sleep(0.01)
            assert [each.host for each in controllers[config.node_id].endpoints] == ["127.0.0.1"]
            at = node.broker.metadata_log.leader_endpoint()
            assert at is not None
            assert at.host == "127.0.0.1"
        finally:
            await node.stop()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(asyncio.wait_for(main(), 30))


def test_a_node_without_quorum_says_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(catching_up, "_PATIENCE_SECONDS", 0.001)

    async def main() -> None:
        catching = CatchingUp()
        waiting = asyncio.create_task(catching.wait(lambda: "no leader; kafka3 does not answer"))
        while len(caplog.records) < 2:
            await asyncio.sleep(0)
        catching.applied(0, 0)
        await waiting

    with caplog.at_level(logging.WARNING):
        asyncio.run(asyncio.wait_for(main(), 10))
    assert "no leader; kafka3 does not answer" in caplog.text
