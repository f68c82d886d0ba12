"""Controllers and brokers in processes of their own, as larger clusters have them; and what each listener serves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from moldau.broker.channels import Channels, UnsupportedVersion
from moldau.broker.config import load_broker_config
from moldau.broker.config.definition import ResourceType
from moldau.broker.node.node import Node
from moldau.broker.requests.handlers import envelope
from moldau.net import RealNetwork, new_event_loop
from moldau.wire import ErrorCode, Message, apis, decode_request, encode
from moldau.wire import messages as m
from moldau.wire.headers import encode_request_header
from tests.support.broker_process import free_port

Address = tuple[str, int]
TOPIC, BROKER = ResourceType.TOPIC, ResourceType.BROKER
_TOO_MANY = "Unable to perform excessively large batch operation."


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(asyncio.wait_for(main(), 50))


class World:
    """Three controllers, two brokers, and a client of both."""

    def __init__(self, data_dir: Path) -> None:
        self.ports = {number: free_port() for number in (1, 2, 3)}
        voters = ",".join(f"{number}@127.0.0.1:{port}" for number, port in self.ports.items())
        common = {
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": voters,
            "controller.quorum.election.timeout.ms": "500",
            "request.timeout.ms": "3000",
        }
        self.nodes = {}
        for number in (1, 2, 3, 11, 12):
            role = "broker" if number > 10 else "controller"
            listener = "PLAINTEXT://127.0.0.1:0" if number > 10 else f"CONTROLLER://127.0.0.1:{self.ports[number]}"
            own = {"node.id": str(number), "process.roles": role, "listeners": listener}
            self.nodes[number] = Node(load_broker_config(common | own | {"log.dirs": str(data_dir / str(number))}))

    def address(self, number: int) -> Address:
        (address,) = self.nodes[number].addresses.values()
        return address

    async def __aenter__(self) -> World:
        await asyncio.gather(*(node.start() for node in self.nodes.values()))
        self.network = RealNetwork()
        self.channels = Channels(self.network, "test")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channels.close()
        await self.network.stop(0)
        await asyncio.gather(*(node.abort() for node in self.nodes.values()))

    async def ask(self, number: int, request: Any, lane: str | None = None) -> Any:
        return await self.channels.call(*self.address(number), request, lane=lane)

    @property
    def active(self) -> int:
        (found,) = [number for number, node in self.nodes.items() if node.broker.controller.is_active]
        return found

    @property
    def passive(self) -> int:
        return next(number for number in (1, 2, 3) if number != self.active)


def create(name: str) -> m.CreateTopicsRequest:
    return m.CreateTopicsRequest(topics=[m.CreateTopicsRequest.CreatableTopic(name, 2, 2)])


def test_brokers_serve_clients_and_controllers_decide(tmp_path: Path) -> None:
    async def main() -> None:
        async with World(tmp_path) as world:
            created = await world.ask(11, create("t"))
            assert [each.error_code for each in created.topics] == [0]
            cluster = await world.ask(12, m.DescribeClusterRequest())
            assert sorted(each.broker_id for each in cluster.brokers) == [11, 12]
            controllers = await world.ask(world.passive, m.DescribeClusterRequest(endpoint_type=2))
            assert sorted(each.broker_id for each in controllers.brokers) == [1, 2, 3]
            assert controllers.controller_id == world.active
            while sorted(world.nodes[11].broker.image.controllers) != [1, 2, 3]:
                await world.nodes[11].broker.next_image(1)

    run(main)


def test_each_listener_serves_what_kafka_serves_there(tmp_path: Path) -> None:
    async def main() -> None:
        async with World(tmp_path) as world:
            for number, kind in ((11, "broker"), (1, "controller")):
                told = await world.ask(number, m.ApiVersionsRequest("test", "1"))
                assert all(kind in apis()[each.api_key].listeners for each in told.api_keys)
                assert {each.api_key for each in told.api_keys} >= {1, 18, 19, 60}
            with pytest.raises(UnsupportedVersion, match="right listener"):
                await world.ask(11, m.VoteRequest())
            with pytest.raises(UnsupportedVersion, match="right listener"):
                await world.ask(1, m.MetadataRequest())

    run(main)


def test_a_controller_that_is_not_active_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with World(tmp_path) as world:
            for request in (
                create("t"),
                m.CreatePartitionsRequest(topics=[m.CreatePartitionsRequest.CreatePartitionsTopic("t", 3)]),
            ):
                refused = await world.ask(world.passive, request)
                items = refused.topics if isinstance(refused, m.CreateTopicsResponse) else refused.results
                assert [each.error_code for each in items] == [ErrorCode.NOT_CONTROLLER]
            for call in (
                m.BrokerHeartbeatRequest(11, 0),
                m.AllocateProducerIdsRequest(11, 0),
                m.UnregisterBrokerRequest(11),
            ):
                refused = await world.ask(world.passive, call)
                assert refused.error_code == ErrorCode.NOT_CONTROLLER
            active = world.active
            accepted = await world.ask(active, create("u"))
            assert [each.error_code for each in accepted.topics] == [0]

    run(main)


def packed(request: Any, version: int) -> m.EnvelopeRequest:
    api = apis()[request.number]
    frame = encode_request_header(api, version, 77, "inner") + encode(request, version)
    return m.EnvelopeRequest(frame, None, b"\x7f\0\0\1")


def test_an_envelope_carries_commands_and_nothing_else(tmp_path: Path) -> None:
    async def main() -> None:
        async with World(tmp_path) as world:
            answer = await world.ask(world.active, packed(create("t"), 7))
            assert answer.error_code == 0
            assert int.from_bytes(answer.response_data[:4], "big") == 77
            assert (await world.ask(world.passive, packed(create("u"), 7))).error_code == ErrorCode.NOT_CONTROLLER
            answer = await world.ask(world.active, packed(retention("t", "1"), 1))
            assert answer.error_code == 0
            assert world.nodes[world.active].broker.image.config(TOPIC, "t") == {"retention.ms": "1"}
            for request in (m.DescribeClusterRequest(), m.BrokerHeartbeatRequest(11, 0)):
                refused = await world.ask(world.active, packed(request, 0))
                assert refused.error_code == ErrorCode.INVALID_REQUEST
            broken = m.EnvelopeRequest(b"\0\x13\0\7\0", None, b"")
            assert (await world.ask(world.active, broken)).error_code == ErrorCode.INVALID_REQUEST

    run(main)


def test_a_long_command_is_read_and_answered_by_a_thread_at_the_controller_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker reads it, and passes it on; the controller's loop must not read it either."""
    readers: list[str] = []

    def noted(kind: Any, version: int, frame: Any) -> Any:
        readers.append(threading.current_thread().name)
        return decode_request(kind, version, frame)

    async def main() -> None:
        async with World(tmp_path) as world:
            monkeypatch.setattr(envelope, "decode_request", noted)
            names = [f"{'n' * 200}-{number}" for number in range(1_000)]
            kind = m.DeleteTopicsRequest
            answer = await world.ask(11, kind([kind.DeleteTopicState(name) for name in names]))
            assert [each.name for each in answer.responses] == names
            assert {each.error_code for each in answer.responses} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
            assert len(readers) == 1
            assert readers[0].startswith("moldau_")

    run(main)


def test_more_records_than_one_request_may_make_are_refused(tmp_path: Path) -> None:
    quota = m.AlterClientQuotasRequest

    def limits(count: int) -> m.AlterClientQuotasRequest:
        return quota(
            [
                quota.EntryData([quota.EntityData("user", f"u{at}")], [quota.OpData("producer_byte_rate", 1.0)])
                for at in range(count)
            ]
        )

    async def main() -> None:
        async with World(tmp_path) as world:
            for node_id in (11, world.active):
                answer = await world.ask(node_id, limits(10_001))
                assert {each.error_code for each in answer.entries} == {ErrorCode.POLICY_VIOLATION}
                assert {each.error_message for each in answer.entries} == {_TOO_MANY}
            assert not world.nodes[world.active].broker.image.quotas
            answer = await world.ask(11, limits(300))
            assert {each.error_code for each in answer.entries} == {ErrorCode.NONE}
            assert len(world.nodes[world.active].broker.image.quotas) == 300

    run(main)


def metadata_of(topic: str) -> m.MetadataRequest:
    return m.MetadataRequest([m.MetadataRequest.MetadataRequestTopic(name=topic)])


def retention(topic: str, value: str) -> m.IncrementalAlterConfigsRequest:
    kind = m.IncrementalAlterConfigsRequest
    return kind([kind.AlterConfigsResource(TOPIC, topic, [kind.AlterableConfig("retention.ms", 0, value)])])


def test_what_a_broker_asks_for_in_the_name_of_a_client_travels_in_an_envelope(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Message] = []
    call = Channels.call

    async def noted(self: Channels, host: str, port: int, request: Message, **options: Any) -> Any:
        sent.append(request)
        return await call(self, host, port, request, **options)

    async def main() -> None:
        async with World(tmp_path) as world:
            await world.ask(11, create("t"))
            await until_known(world, "t")
            monkeypatch.setattr(Channels, "call", noted)
            request = retention("t", "5")
            request.resources.insert(0, m.IncrementalAlterConfigsRequest.AlterConfigsResource(BROKER, "12", []))
            answer = await world.ask(11, request)
            codes = [(each.resource_type, each.error_code) for each in answer.responses]
            assert codes == [(BROKER, ErrorCode.INVALID_REQUEST), (TOPIC, ErrorCode.NONE)]
            old = m.AlterConfigsRequest
            resource = old.AlterConfigsResource(TOPIC, "t", [old.AlterableConfig("retention.bytes", "7")])
            answer = await world.ask(11, old([resource]))
            assert [each.error_code for each in answer.responses] == [ErrorCode.NONE]
            assert world.nodes[world.active].broker.image.config(TOPIC, "t") == {"retention.bytes": "7"}
            known = await world.ask(11, metadata_of("auto"))
            assert [(each.name, each.error_code) for each in known.topics] == [("auto", ErrorCode.NONE)]
            wrapped = [each.request_data for each in sent if isinstance(each, m.EnvelopeRequest)]
            assert [int.from_bytes(frame[:2], "big") for frame in wrapped] == [44, 33, 19]

    run(main)


async def until_known(world: World, topic: str) -> None:
    while topic not in world.nodes[11].broker.image.topics:
        await world.nodes[11].broker.next_image(1)


def test_without_a_quorum_commands_wait_and_then_fail(tmp_path: Path) -> None:
    async def main() -> None:
        async with World(tmp_path) as world:
            waiting_for = world.active
            for number in (world.passive, waiting_for):
                await world.nodes[number].abort()
            created, changed, metadata, found = await asyncio.gather(
                world.ask(11, create("t"), lane="topics"),
                world.ask(11, retention("t", "5"), lane="configs"),
                world.ask(11, metadata_of("auto"), lane="metadata"),
                world.ask(11, m.FindCoordinatorRequest(coordinator_keys=["g"]), lane="groups"),
            )
            assert [each.error_code for each in created.topics] == [ErrorCode.REQUEST_TIMED_OUT]
            assert [each.error_code for each in changed.responses] == [ErrorCode.REQUEST_TIMED_OUT]
            # What would be created just for being mentioned is not there, and the rest of the answer is.
            assert [each.error_code for each in metadata.topics] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
            assert sorted(each.node_id for each in metadata.brokers) == [11, 12]
            assert [each.error_code for each in found.coordinators] == [ErrorCode.COORDINATOR_NOT_AVAILABLE]

    run(main)
