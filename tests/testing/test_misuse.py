"""What people get wrong with `moldau.testing`: they are told what, at once, and nothing is left behind."""

import asyncio
import errno
import gc
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

from moldau.broker.config.errors import InvalidConfig
from moldau.records.client_headers import UNREADABLE
from moldau.testing import AsyncBroker, AsyncCluster, Broker, Cluster, Topic
from moldau.testing.ports import free_ports as find_free_ports
from tests.support.raw_records import send_raw

pytest_plugins = ["pytester"]
Act = Callable[[Any], object]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


unchecked_cluster: Any = Cluster
unchecked: Any = Broker  # what mypy would tell before the test runs

ACTS: dict[str, Act] = {
    "restart": lambda it: it.restart(),
    "create_topics": lambda it: it.create_topics(["t"]),
    "produce": lambda it: it.produce("t", ["x"]),
    "read": lambda it: it.read("t"),
}
CLUSTER_ACTS: dict[str, Act] = {**ACTS, "restart": lambda it: it.restart(1), "crash": lambda it: it.crash(1)}


@pytest.mark.parametrize("act", ACTS)
def test_a_broker_that_is_not_running_does_nothing(act: str, folder: Path) -> None:
    made = Broker()
    with pytest.raises(RuntimeError, match="broker is not started: use it as a context manager"):
        ACTS[act](made)
    made.start().stop()
    with pytest.raises(RuntimeError, match="broker is stopped"):
        ACTS[act](made)
    assert not list(folder.iterdir())


@pytest.mark.parametrize("act", CLUSTER_ACTS)
def test_a_cluster_that_is_not_running_does_nothing(act: str, folder: Path) -> None:
    made = Cluster(1)
    with pytest.raises(RuntimeError, match="cluster is not started: use it as a context manager"):
        CLUSTER_ACTS[act](made)
    made.stop()  # there is nothing to stop, and that is fine
    made.start().stop()
    made.stop()
    with pytest.raises(RuntimeError, match="cluster is stopped"):
        CLUSTER_ACTS[act](made)
    assert not list(folder.iterdir())


@pytest.mark.parametrize("kind", [Broker, Cluster])
def test_nobody_has_an_address_before_the_start(kind: Any) -> None:
    with pytest.raises(RuntimeError, match="not started"):
        print(kind().bootstrap_servers)


@pytest.mark.parametrize("kind", [AsyncBroker, AsyncCluster])
def test_in_an_event_loop_it_is_the_same(kind: Any, folder: Path) -> None:
    async def run() -> None:
        made = kind()
        await made.stop()
        for early in (made.create_topics(["t"]), made.produce("t", ["x"]), made.read("t")):
            with pytest.raises(RuntimeError, match="not started"):
                await early
        await made.start()
        with pytest.raises(RuntimeError, match="started before"):
            await made.start()
        await made.create_topics(["t"])
        await made.stop()
        restart = made.restart() if kind is AsyncBroker else made.start_node(1)
        for again in (made.create_topics(["t"]), made.produce("t", ["x"]), made.read("t"), restart):
            with pytest.raises(RuntimeError, match="stopped"):
                await again
        with pytest.raises(RuntimeError, match="started before"):
            await made.start()

    asyncio.run(run())
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    ("error", "reason", "make"),
    [
        (TypeError, "num.partitions=None: a setting is", lambda: unchecked({"num.partitions": None})),
        (TypeError, "settings='x': give them by name", lambda: unchecked("x")),
        (TypeError, "topics={'a': '3'}: give its number of partitions", lambda: unchecked(topics={"a": "3"})),
        (TypeError, "give its number of partitions, or a list", lambda: unchecked(topics={"a": Topic("b")})),
        (TypeError, r"topics=\[3\]: give names", lambda: unchecked(topics=[3])),
        (TypeError, "topics=3: give a list", lambda: unchecked(topics=3)),
        (TypeError, "give its number of partitions", lambda: unchecked(topics={"a": True})),
        (ValueError, "nodes=0: a cluster has at least one", lambda: Cluster(0)),
        (TypeError, "nodes='2': give how many there are", lambda: unchecked_cluster("2")),
    ],
)
def test_what_cannot_be_made_is_said_before_anything_is(
    error: type[Exception], reason: str, make: Callable[[], object]
) -> None:
    with pytest.raises(error, match=reason):
        make()


def test_a_path_is_a_setting(folder: Path) -> None:
    with Broker({"log.dirs": folder / "here"}):
        assert (folder / "here").is_dir()


def test_values_are_a_list(broker: Broker) -> None:
    wrong: list[Any] = ["abc", b"abc"]
    for values in wrong:
        with pytest.raises(TypeError, match="give a list of values"):
            broker.produce("t", values)


def test_a_record_that_is_not_taken_is_told_of_with_its_topic(broker: Broker) -> None:
    broker.create_topics({"taken": 1})
    with pytest.raises(KafkaException, match="taken has no partition 5"):
        broker.produce("taken", ["x"], partition=5)
    broker.create_topics([Topic("small", config={"max.message.bytes": 100})])
    with pytest.raises(KafkaException, match="small: Broker: Message size too large"):
        broker.produce("small", [b"x" * 1000])


def test_nobody_goes_on_asking_for_a_broker_that_is_gone() -> None:
    """An exception that is kept would keep the producer, which tells of every attempt to connect."""

    def producers() -> int:
        return sum(isinstance(each, Producer) for each in gc.get_objects())

    with Broker(topics=["t"]) as broker:
        broker.faults.disconnect("Produce")
        before = producers()
        with pytest.raises((KafkaException, TimeoutError), match=r"not acknowledged within 0\.5 s") as raised:
            broker.produce("t", ["x"], seconds=0.5)
        assert producers() <= before, raised


def test_faults_that_would_never_come(broker: Broker) -> None:
    faults = broker.faults
    with pytest.raises(ValueError, match="NONE is no error"):
        faults.fail("Produce", "NONE")
    for times in (0, -3):
        with pytest.raises(ValueError, match="at least 1"):
            faults.disconnect("Produce", times=times)
    with pytest.raises(ValueError, match="seconds=-1"):
        faults.delay("Fetch", seconds=-1)
    assert broker.produce("unharmed", ["x"]) == [(0, 0)]


def test_nodes_that_are_not_there() -> None:
    with Cluster(2) as cluster:
        acts: list[Any] = [
            Cluster.crash,
            Cluster.restart,
            Cluster.stop_node,
            Cluster.start_node,
            Cluster.cut,
            Cluster.address,
        ]
        for act in acts:
            with pytest.raises(ValueError, match="there is no node 9; there are 1, 2"):
                act(cluster, 9)
        with pytest.raises(ValueError, match="node 1 is running already"):
            cluster.start_node(1)
        with pytest.raises(ValueError, match="there is a node 1 already"):
            cluster.add_broker(1)
        cluster.stop_node(2)
        with pytest.raises(ValueError, match=r"node 2 is not running: start_node\(2\) starts it"):
            cluster.crash(2)
        cluster.start_node(2)
        assert cluster.controller_id() in (1, 2)


def test_a_cluster_that_cannot_start_leaves_no_node_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The port of one is taken: the others were on the way, and went on without anybody who would stop them."""
    taken: list[int] = []

    def free_ports(count: int) -> list[int]:
        ports = find_free_ports(count)
        squatter.bind(("127.0.0.1", ports[0]))
        squatter.listen()
        taken[:] = ports
        return ports

    monkeypatch.setattr("moldau.testing.cluster.free_ports", free_ports)

    async def run() -> None:
        tasks = asyncio.all_tasks()
        with pytest.raises(OSError, match="cannot listen"):
            await AsyncCluster(3).start()
        assert asyncio.all_tasks() == tasks
        assert not os.listdir(folder)
        for port in taken[1:]:
            with socket.socket() as asking:
                assert asking.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED, "nobody listens there any more"

    with socket.socket() as squatter:
        asyncio.run(run())


def test_a_restart_that_failed_can_be_tried_again() -> None:
    with Broker(topics={"t": 1}) as broker:
        broker.produce("t", [b"x"])
        broker.faults.fill_disk()
        with pytest.raises(Exception, match="No space left"):
            broker.restart(crash=True)
        broker.faults.free_disk()
        broker.restart()
        assert [each.value for each in broker.read("t")] == [b"x"]


def test_markers_that_have_no_effect_are_refused(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.moldau(topics={"orders": 3})
        def test_shared(moldau_shared_broker):
            pass

        @pytest.fixture
        def wide(request, moldau_broker_factory):
            return moldau_broker_factory(topics=request.node.get_closest_marker("moldau").kwargs["topics"])

        @pytest.mark.moldau(topics={"orders": 3})
        def test_own_fixture(wide, moldau_topic):
            pass

        @pytest.mark.moldau(security=object())
        def test_secure_cluster(moldau_cluster):
            pass

        @pytest.mark.moldau(settings={"num.partitions": 3})
        class TestMany:
            def test_shared(self, moldau_shared_broker):
                pass

            def test_own(self, moldau_broker):
                pass
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=3, errors=2)
    said = result.stdout.str()
    assert "this test uses neither" in said
    assert "security= is for moldau_broker" in said


def test_names_of_headers_that_are_no_text() -> None:
    """Sent as they are, the first would end this process; the second comes from somebody else's client."""
    with Broker(topics={"t": 1}) as broker:
        with pytest.raises(ValueError, match="no name of a header"):
            broker.produce("t", ["x"], headers={"\ud800": b"1"})
        send_raw(broker.bootstrap_servers, "t", b"x", [(b"\xff", b"1")])
        (record,) = broker.read("t")
        assert record.headers == ((UNREADABLE, b"a name is not UTF-8: b'\\xff'"),)


def test_a_broker_that_could_not_be_added_is_none_of_the_cluster() -> None:
    with Cluster(1) as cluster:
        before = cluster.bootstrap_servers
        with pytest.raises(InvalidConfig, match=r"num\.partitions"):
            cluster.add_broker(2, {"num.partitions": "many"})
        assert cluster.bootstrap_servers == before
        cluster.add_broker(2)
        assert len(cluster.bootstrap_servers.split(",")) == 2
