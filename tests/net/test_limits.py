"""How many may connect, from where, how fast; and what an idle one costs."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import socket
import struct
import sys
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.broker.config.registry import broker_definitions
from moldau.net import ConnectionLimits
from moldau.net.gate import Gate
from moldau.net.listener import bind
from moldau.net.settings import NetSettings
from moldau.seams.network import Connection, ResponseSlot
from tests.net.conftest import Run
from tests.net.support import Recorder, World, frame, resident_bytes, until


def test_one_address_with_too_many_connections_is_turned_away(run: Run) -> None:
    async def main() -> None:
        limits = ConnectionLimits(max_per_address=2, per_address_overrides={"127.0.0.3": 3})
        async with World(limits=limits) as world:
            peers = [await world.peer() for _ in range(2)]
            await until(lambda: len(world.handler.connections) == 2)
            refused = await world.peer()
            assert await refused.is_ended()
            assert world.counters.connections_rejected == 1
            elsewhere = await world.peer(source="127.0.0.2")
            await elsewhere.send(frame(b"a"))
            assert await elsewhere.read_frame() == b"a"
            for _ in range(3):
                await (await world.peer(source="127.0.0.3")).send(frame(b"a"))
            assert await (await world.peer(source="127.0.0.3")).is_ended()
            peers[0].close()
            await until(lambda: world.reactor.gate.count_of("127.0.0.1") == 1)
            again = await world.peer()
            await again.send(frame(b"b"))
            assert await again.read_frame() == b"b"

    run(main())


def test_a_full_node_lets_connections_wait_until_one_closes(run: Run) -> None:
    async def main() -> None:
        async with World(limits=ConnectionLimits(max_connections=2)) as world:
            first, _ = [await world.peer() for _ in range(2)]
            await until(lambda: len(world.handler.connections) == 2)
            third = await world.peer()
            await third.send(frame(b"patient"))
            await asyncio.sleep(0.01)
            assert len(world.handler.connections) == 2
            first.close()
            assert await third.read_frame() == b"patient"
            assert world.counters.connections_rejected == 0

    run(main())


def test_a_listener_has_a_limit_of_its_own(run: Run) -> None:
    async def main() -> None:
        async with World() as world:
            world.listener.max_connections = 1
            first = await world.peer()
            await until(lambda: world.handler.connections)
            second = await world.peer()
            await second.send(frame(b"patient"))
            await asyncio.sleep(0.01)
            assert len(world.handler.connections) == 1
            first.close()
            assert await second.read_frame() == b"patient"

    run(main())


def test_brokers_get_in_when_the_node_is_full_and_the_quietest_client_makes_room(run: Run) -> None:
    async def main() -> None:
        async with World(limits=ConnectionLimits(max_connections=2)) as world:
            inside = Recorder()
            protected = world.reactor.listen("127.0.0.1", 0, inside, name="INTERNAL", is_protected=True)
            quiet, busy = [await world.peer() for _ in range(2)]
            await until(lambda: len(world.handler.connections) == 2)
            world.pass_time(1000)
            await busy.send(frame(b"x"))
            assert await busy.read_frame() == b"x"
            broker = await world.peer(port=protected.port)
            await broker.send(frame(b"fetch"))
            assert await broker.read_frame() == b"fetch"
            assert await quiet.is_ended()
            assert "max.connections" in world.handler.reasons[0]
            await busy.send(frame(b"y"))
            assert await busy.read_frame() == b"y"
            # A second broker: the other client goes. A third: nobody is left to go, it waits.
            brokers = [broker, *[await world.peer(port=protected.port) for _ in range(2)]]
            assert await busy.is_ended()
            await asyncio.sleep(0.01)
            assert len(inside.connections) == 2
            for each in brokers:
                each.close()
            await until(lambda: len(inside.ends) == 3)

    run(main())


@pytest.mark.parametrize("whose", ["the node's", "the listener's"])
def test_strangers_make_room_on_a_full_node_once_they_have_had_their_second(run: Run, whose: str) -> None:
    """Whoever has logged in stays, and so does a stranger as long as there is room."""

    def log_in(connection: Connection, payload: memoryview, slot: ResponseSlot) -> None:
        connection.trust()
        slot.complete([bytes(payload)])

    async def main() -> None:
        limits = ConnectionLimits(max_connections=3) if whose == "the node's" else ConnectionLimits()
        async with World(log_in, limits=limits) as world:
            world.handler.welcome = lambda connection: connection.distrust(100)
            if whose == "the listener's":
                world.listener.max_connections = 3
            user = await world.peer()
            await user.send(frame(b"user"))
            assert await user.read_frame() == b"user"
            world.pass_time(10_000)
            first, second = [await world.peer() for _ in range(2)]
            await until(lambda: len(world.handler.connections) == 3)
            another = await world.peer()
            await another.send(frame(b"another"))
            world.pass_time(999)
            await asyncio.sleep(0.01)
            assert not world.handler.ends
            world.pass_time(1)
            assert await another.read_frame() == b"another"
            assert await first.is_ended()
            assert world.counters.strangers_closed == len(world.handler.ends) == 1
            for peer in (user, second):
                await peer.send(frame(b"still here"))
                assert await peer.read_frame() == b"still here"
            # Everybody is known now: the next one waits.
            last = await world.peer()
            world.pass_time(5_000)
            await asyncio.sleep(0.01)
            assert len(world.handler.connections) == 4
            last.close()

    run(main())


def test_connections_beyond_the_creation_rate_wait(run: Run) -> None:
    async def main() -> None:
        async with World(limits=ConnectionLimits(max_creation_rate=5)) as world:
            for _ in range(8):
                await world.peer()
            await until(lambda: len(world.handler.connections) == 5)  # one second's worth at once
            await asyncio.sleep(0.01)
            assert len(world.handler.connections) == 5
            for expected in (6, 7, 8):
                world.pass_time(200)
                await until(lambda expected=expected: len(world.handler.connections) == expected)  # type: ignore[misc]  # a bound default

    run(main())


@given(rate=st.integers(1, 50), gaps_ms=st.lists(st.integers(0, 300), min_size=1, max_size=200))
def test_no_second_sees_more_than_twice_the_rate_and_no_connection_waits_without_need(
    rate: int, gaps_ms: list[int]
) -> None:
    gate = Gate(ConnectionLimits(max_creation_rate=rate))
    now_ms = 1_000.0
    accepted: list[float] = []
    for gap_ms in gaps_ms:
        now_ms += gap_ms
        now_ms = gate.next_creation_ms("", now_ms)
        gate.created("", now_ms)
        accepted.append(now_ms)
    for index, start in enumerate(accepted):
        within = [at for at in accepted[index:] if at < start + 1000]
        assert len(within) <= 2 * rate  # a burst of one second's worth, then evenly spaced
    if len(gaps_ms) <= rate:
        assert accepted[-1] == 1_000 + sum(gaps_ms)


def test_running_out_of_descriptors_is_survived(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with World() as world:
            real = world.listener._socket
            failures = [errno.EMFILE, errno.ECONNABORTED]

            class Failing:
                def __getattr__(self, name: str) -> object:
                    return getattr(real, name)

                def accept(self) -> tuple[socket.socket, object]:
                    if failures:
                        raise OSError(failures.pop(0), "no")
                    return real.accept()

            monkeypatch.setattr(type(world.listener), "_socket", Failing())
            with caplog.at_level(logging.ERROR):
                peer = await world.peer()
                await until(lambda: world.counters.accept_errors == 1)
                await asyncio.sleep(0.01)
                assert not world.handler.connections
                world.pass_time(100)
                await peer.send(frame(b"a"))
                assert await peer.read_frame() == b"a"
            assert "raise the limit on open files" in caplog.text
            assert world.counters.accept_errors == 2
            monkeypatch.undo()
            world.listener._socket = real

    run(main())


def test_an_address_in_use_says_which(run: Run) -> None:
    async def main() -> None:
        async with World() as world:
            with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{world.listener.port}: .*in use"):
                world.reactor.listen("127.0.0.1", world.listener.port, world.handler, name="SECOND")

    run(main())


def test_an_empty_host_listens_everywhere_and_knows_ipv4_clients_by_their_own_address(run: Run) -> None:
    async def main() -> None:
        async with World() as world:
            handler = Recorder()
            everywhere = world.reactor.listen("", 0, handler, name="ALL")
            peer = await world.peer(port=everywhere.port)
            await peer.send(frame(b"a"))
            assert await peer.read_frame() == b"a"
            assert handler.connections[0].peer_host == "127.0.0.1"
            peer.close()
            await until(lambda: handler.ends)

    run(main())


def test_without_ipv6_an_empty_host_means_every_ipv4_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    sock = bind("", 0, backlog=5, receive_buffer_bytes=65536)
    assert sock.family == socket.AF_INET
    sock.close()


@pytest.mark.skipif(sys.platform != "linux", reason="others do not tell")
def test_so_many_newcomers_may_wait() -> None:
    sock = bind("127.0.0.1", 0, backlog=77, receive_buffer_bytes=-1)
    try:
        told = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
        assert struct.unpack_from("I", told, 28) == (77,)  # of a listening socket, tcpi_sacked is how many
    finally:
        sock.close()


def test_a_thousand_idle_connections_cost_little(run: Run) -> None:
    async def main() -> None:
        async with World(backlog=1000) as world:
            warm_up = await world.peer()
            await warm_up.send(frame(b"x"))
            assert await warm_up.read_frame() == b"x"
            sockets = [socket.socket() for _ in range(1000)]  # the peers' own cost is not counted
            gc.collect()
            resident_before = resident_bytes()
            tracemalloc.start()
            try:
                for sock in sockets:
                    sock.setblocking(False)
                    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", world.listener.port))
                await until(lambda: world.counters.connections_open == 1001)
                gc.collect()
                per_connection = tracemalloc.get_traced_memory()[0] / 1000
            finally:
                tracemalloc.stop()
            resident_per_connection = (resident_bytes() - resident_before) / 1000
            assert per_connection < 6_000
            assert resident_per_connection < 24_000  # with what tracemalloc itself and the loop's C code take
            # One is served as quickly as ever, and an hour of idleness costs no wake-up but the end.
            await warm_up.send(frame(b"y"))
            assert await warm_up.read_frame() == b"y"
            world.pass_time(600_000)
            assert world.counters.idle_closed == 1001
            for sock in sockets:
                sock.close()

    run(main())


def test_a_crowd_fits_the_backlog() -> None:
    """With Kafka's 50, five thousand newcomers took a minute: the kernel drops what does not fit, they ask again."""
    assert NetSettings().backlog == broker_definitions()["socket.listen.backlog.size"].default == 4096
