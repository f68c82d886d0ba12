"""TLS listeners: the same connection behind, and every way a handshake can fail."""

from __future__ import annotations

import asyncio
import random
import ssl
import struct
from dataclasses import dataclass
from pathlib import Path

import pytest

from moldau.net import LoopTimers, Reactor, client, handshakes
from moldau.net.tls import TlsChannel, subject_name
from moldau.seams.clock import SystemClock
from moldau.seams.disk import FileRegion, RealDisk
from moldau.seams.network import Connection, Disconnected, ResponseSlot
from tests.net.certificates import Identity, make_context, make_identity
from tests.net.conftest import Run
from tests.net.support import World, echo, frame, park, until


@dataclass(frozen=True)
class Contexts:
    authority: Identity
    server: ssl.SSLContext
    demanding_server: ssl.SSLContext
    client: ssl.SSLContext
    named_client: ssl.SSLContext
    stranger: ssl.SSLContext


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Contexts:
    folder = tmp_path_factory.mktemp("tls")
    authority = make_identity([("CN", "Test Authority")])
    other_authority = make_identity([("CN", "Somebody Else")])
    server = make_identity([("O", "Moldau"), ("CN", "broker")], authority)
    alice = make_identity([("C", "CZ"), ("O", "Moldau, Inc."), ("OU", "Brno+Praha"), ("CN", "alice")], authority)
    mallory = make_identity([("CN", "mallory")], other_authority)
    return Contexts(
        authority,
        make_context(folder, server, authority, server_side=True),
        make_context(folder, server, authority, server_side=True, ask_for_client=True),
        make_context(folder, None, authority, server_side=False),
        make_context(folder, alice, authority, server_side=False),
        make_context(folder, mallory, other_authority, server_side=False),
    )


async def connect(world: World, context: ssl.SSLContext) -> client.FrameClient:
    return await client.connect(world.reactor, "127.0.0.1", world.listener.port, tls=context)


def test_requests_and_responses_of_all_sizes_pipelined(run: Run, tls: Contexts) -> None:
    source = random.Random(3)
    payloads = [source.randbytes(source.choice([0, 1, 500, 16_384, 40_000, 300_000, 2_000_000])) for _ in range(20)]

    async def main() -> None:
        async with World(tls=tls.server, max_in_flight=3) as world:
            peer = await connect(world, tls.client)
            answers = [peer.request([payload]) for payload in payloads]
            assert [bytes(await answer) for answer in answers] == payloads
            (connection,) = world.handler.connections
            assert connection.is_tls
            assert connection.tls_peer_name is None
            assert world.counters.tls_handshakes == 1
            total = sum(map(len, payloads)) + 4 * len(payloads)
            assert world.counters.bytes_in == world.counters.bytes_out == total
            await peer.close()
            await until(lambda: world.handler.ends)

    run(main())


def test_regions_are_read_and_encrypted(run: Run, tls: Contexts, tmp_path: Path) -> None:
    content = random.Random(4).randbytes(1_000_000)
    file = RealDisk().open(str(tmp_path / "segment"))
    file.append(content)

    def answer(_: Connection, __: memoryview, slot: ResponseSlot) -> None:
        slot.complete([b"head", FileRegion(file, 5, 10_000), FileRegion(file, 7, 900_000), b"tail"])

    async def main() -> None:
        async with World(answer, tls=tls.server, send_buffer_bytes=8192) as world:
            peer = await connect(world, tls.client)
            expected = b"head" + content[5:10_005] + content[7:900_007] + b"tail"
            assert bytes(await peer.request([b"x"])) == expected
            await peer.close()

    run(main())
    file.close()


def test_the_name_in_the_clients_certificate_is_known(run: Run, tls: Contexts) -> None:
    async def main() -> None:
        async with World(tls=tls.demanding_server) as world:
            peer = await connect(world, tls.named_client)
            assert bytes(await peer.request([b"a"])) == b"a"
            assert world.handler.connections[0].tls_peer_name == r"CN=alice,OU=Brno\+Praha,O=Moldau\, Inc.,C=CZ"
            await peer.close()

    run(main())


@pytest.mark.parametrize("who", ["nobody", "stranger"])
def test_a_client_without_a_good_certificate_is_refused_where_one_is_asked_for(
    run: Run, tls: Contexts, who: str
) -> None:
    context = tls.client if who == "nobody" else tls.stranger
    if who == "stranger":
        context.load_verify_locations(cadata=tls.authority.certificate)  # it trusts us; we do not trust it

    async def main() -> None:
        async with World(tls=tls.demanding_server) as world:
            # In TLS 1.3 a client learns of its refusal only after its own handshake is done.
            async def ask() -> None:
                peer = await connect(world, context)
                await peer.request([b"a"])

            with pytest.raises(Disconnected, match=r"(?i)alert"):
                await ask()
            await until(lambda: world.counters.tls_failures)
            assert world.handler.connections == []
            assert world.handler.ends == []

    run(main())


def test_a_client_that_does_not_trust_us_says_so(run: Run, tls: Contexts, tmp_path: Path) -> None:
    distrusting = make_context(tmp_path, None, make_identity([("CN", "Other")]), server_side=False)

    async def main() -> None:
        async with World(tls=tls.server) as world:
            with pytest.raises(Disconnected, match="certificate verify failed"):
                await connect(world, distrusting)
            await until(lambda: world.counters.tls_failures == 1)

    run(main())


@pytest.mark.parametrize("data", [frame(b"plain Kafka request"), b"\x00" * 100, b"GET / HTTP/1.0\r\n\r\n"])
def test_plain_text_to_a_tls_listener_is_closed_and_counted(run: Run, tls: Contexts, data: bytes) -> None:
    async def main() -> None:
        async with World(tls=tls.server) as world:
            peer = await world.peer()
            await peer.send(data)
            await until(lambda: world.counters.tls_failures == 1)
            await until(lambda: world.counters.connections_open == 0)
            assert world.handler.connections == []

    run(main())


def test_tls_to_a_plain_listener_is_closed_with_a_hint(run: Run, tls: Contexts) -> None:
    async def main() -> None:
        async with World() as world:
            with pytest.raises(Disconnected):
                await connect(world, tls.client)
            await until(lambda: world.handler.ends)
            assert "TLS" in world.handler.reasons[0]

    run(main())


def test_a_handshake_that_does_not_get_done_is_cut_off(run: Run, tls: Contexts) -> None:
    async def main() -> None:
        async with World(tls=tls.server, max_stall_ms=5_000) as world:
            silent, halfway = await world.peer(), await world.peer()
            await halfway.send(b"\x16\x03\x01\x02\x00\x01")
            await until(lambda: world.counters.connections_open == 2)
            world.pass_time(4_999)
            assert world.counters.connections_open == 2
            world.pass_time(1)
            assert await silent.is_ended()
            assert await halfway.is_ended()
            assert world.counters.stalled_closed == 2
            assert world.handler.connections == []

    run(main())


def hello_of(context: ssl.SSLContext) -> bytes:
    """What a client says first."""
    answers, said = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(answers, said, server_hostname="broker").do_handshake()
    return said.read()


def test_a_hello_may_come_byte_by_byte_and_until_it_is_whole_openssl_is_not_asked(
    run: Run, tls: Contexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    wrap = ssl.SSLContext.wrap_bio

    def counted(*args: object, **options: object) -> ssl.SSLObject:
        asked.append(args)
        return wrap(*args, **options)  # type: ignore[arg-type]  # handed on as they are

    async def main() -> None:
        hello = hello_of(tls.client)
        monkeypatch.setattr(ssl.SSLContext, "wrap_bio", counted)
        async with World(tls=tls.server) as world:
            peer = await world.peer()
            for at in range(len(hello) - 1):
                await peer.send(hello[at : at + 1])
                if at < 10 or at > len(hello) - 10:
                    await asyncio.sleep(0.001)  # so that some are read one by one
            (newcomer,) = world.reactor.newcomers.values()
            await until(lambda: len(newcomer._hello) == len(hello) - 1)
            assert not asked
            await peer.send(hello[-1:])
            assert (await peer.read(1))[0] == 22  # the server's hello
            assert len(asked) == 1

    run(main())


@pytest.mark.parametrize("nonsense", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff\x01"])
def test_what_is_no_hello_is_sent_away_at_once(run: Run, tls: Contexts, nonsense: bytes) -> None:
    async def main() -> None:
        async with World(tls=tls.server) as world:
            peer = await world.peer()
            await peer.send(nonsense)
            await until(lambda: world.counters.tls_failures == 1)
            assert not world.reactor.newcomers

    run(main())


def test_only_so_many_handshakes_are_under_way_and_who_stops_halfway_keeps_nobody_waiting(
    run: Run, tls: Contexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshakes, "UNDER_WAY_MAX", 2)

    async def main() -> None:
        hello = hello_of(tls.client)
        async with World(tls=tls.server) as world:
            halfway = [await world.peer() for _ in range(2)]
            for peer in halfway:
                await peer.send(hello)
                assert (await peer.read(1))[0] == 22
            world.pass_time(5_000)  # time does them no harm while nobody waits
            user = asyncio.ensure_future(connect(world, tls.client))
            await until(lambda: len(world.reactor.newcomers) == 3 and world.reactor.handshakes.has_waiting)
            assert not user.done()
            world.pass_time(1)
            known = await user
            assert bytes(await known.request([b"a"])) == b"a"
            assert world.counters.connections_open == 2  # one made room, the other was not in the way
            await known.close()

    run(main())


def test_handshakes_are_computed_in_turns(run: Run, tls: Contexts, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many ask at once: between two that take long, the loop turns."""

    async def main() -> None:
        hello = hello_of(tls.client)
        async with World(tls=tls.server) as world:
            turn, at = 0, list[int]()

            def count() -> None:
                nonlocal turn
                turn += 1
                asyncio.get_running_loop().call_soon(count)

            def slow(_: TlsChannel) -> None:
                at.append(turn)
                world.clock.now_ms += 10
                raise BlockingIOError

            monkeypatch.setattr(TlsChannel, "handshake", slow)
            peers = [await world.peer() for _ in range(5)]
            await until(lambda: len(world.reactor.newcomers) == 5)
            for peer in peers:
                peer.sock.send(hello)  # all of them are there when the loop looks
            count()
            await until(lambda: len(at) == 5)
            assert len(set(at)) == 5
            monkeypatch.undo()

    run(main())


def test_stopping_does_not_wait_for_handshakes(run: Run, tls: Contexts) -> None:
    async def main() -> None:
        async with World(tls=tls.server) as world:
            await world.peer()
            await until(lambda: world.counters.connections_open == 1)
            await world.reactor.stop(60_000)

    run(main())


def test_closing_with_flush_says_goodbye_properly(run: Run, tls: Contexts) -> None:
    def answer_and_close(connection: Connection, _: memoryview, slot: ResponseSlot) -> None:
        slot.complete([b"x" * 200_000])
        connection.close("authentication failed", flush=True)

    async def main() -> None:
        async with World(answer_and_close, tls=tls.server, send_buffer_bytes=8192) as world:
            peer = await connect(world, tls.client)
            answer = peer.request([b"a"])
            behind = peer.request([b"b" * 300_000])
            assert bytes(await answer) == b"x" * 200_000
            with pytest.raises(Disconnected):
                await behind
            assert world.handler.reasons == ["authentication failed"]

    run(main())


def test_what_openssl_has_already_decrypted_is_not_forgotten_while_muted(run: Run, tls: Contexts) -> None:
    """The socket is empty by then, so it will never announce these bytes again."""

    def throttle(connection: Connection, payload: memoryview, slot: ResponseSlot) -> None:
        connection.mute_until(world.clock.now_ms + 100)
        echo(connection, payload, slot)

    world: World

    async def main() -> None:
        nonlocal world
        async with World(throttle, tls=tls.server) as world:
            peer = await connect(world, tls.client)
            payloads = [b"%d" % number * 30_000 for number in range(8)]
            answers = [peer.request([payload]) for payload in payloads]
            for number, answer in enumerate(answers):
                assert bytes(await answer) == payloads[number]
                assert len(world.handler.frames) == number + 1
                world.pass_time(100)
            await peer.close()

    run(main())


def test_a_slow_reader_over_tls_is_held_back(run: Run, tls: Contexts) -> None:
    def answer_large(_: Connection, payload: memoryview, slot: ResponseSlot) -> None:
        slot.complete([bytes(payload) * 50_000])

    async def main() -> None:
        async with World(answer_large, tls=tls.server, send_buffer_bytes=65_536) as world:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", world.listener.port, ssl=tls.client, limit=2**12, server_hostname="localhost"
            )
            writer.write(frame(b"ab") * 90)
            await until(lambda: world.handler.frames)
            for _ in range(20):
                await asyncio.sleep(0)
            assert len(world.handler.frames) < 50
            for _ in range(90):
                (length,) = struct.unpack(">i", await reader.readexactly(4))
                assert await reader.readexactly(length) == b"ab" * 50_000
            writer.close()
            await until(lambda: world.handler.ends)

    run(main())


def test_old_protocol_peers_negotiate_down_to_what_the_context_allows(run: Run, tls: Contexts, tmp_path: Path) -> None:
    context = make_context(tmp_path, None, tls.authority, server_side=False)
    context.maximum_version = ssl.TLSVersion.TLSv1_2

    async def main() -> None:
        async with World(tls=tls.server) as world:
            peer = await connect(world, context)
            assert bytes(await peer.request([b"1.2"])) == b"1.2"
            await peer.close()

    run(main())


def test_connecting_gives_up_on_a_handshake_that_gets_no_answer(run: Run, tls: Contexts) -> None:
    async def main() -> None:
        async with World(park) as world:  # a plain listener: it never answers, it waits for a frame
            world.listener.handler = world.handler
            clock = SystemClock()
            timers = LoopTimers(asyncio.get_running_loop(), clock)
            reactor = Reactor(asyncio.get_running_loop(), clock, timers.wheel)
            world.reactor.gate.limits.max_connections = 0
            with pytest.raises(TimeoutError, match="did not take the connection within 50 ms"):
                await client.connect(reactor, "127.0.0.1", world.listener.port, tls=tls.client, timeout_ms=50)
            timers.close()

    run(main())


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        (((("commonName", "a"),),), "CN=a"),
        (((("countryName", "CZ"),), (("commonName", "x"), ("userId", "7"))), "CN=x+UID=7,C=CZ"),
        (((("commonName", ' a;b<c>\\"d '),),), 'CN=\\ a\\;b\\<c\\>\\\\\\"d\\ '),
        (((("commonName", "#1"),),), "CN=\\#1"),
        (((("emailAddress", "a@b"),),), "1.2.840.113549.1.9.1=#1603614062"),
        (((("serialNumber", "5"),),), "serialNumber=5"),
    ],
)
def test_subject_names_are_written_as_kafka_writes_them(subject: object, expected: str) -> None:
    assert subject_name({"subject": subject}) == expected


def test_no_certificate_no_name() -> None:
    assert subject_name(None) is None
    assert subject_name({}) is None
    assert subject_name({"subject": ()}) is None
