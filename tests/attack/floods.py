"""Crowds of strangers: half-open handshakes, requests that trickle in, connections by the thousand, nonsense instead of
logins; and a user who logs in and asks all the while.

    python -m tests.attack.floods [COUNT]       # make floods; 10,000 of each, a minute or two

Fails if the user is refused, if the broker dies, if a stranger costs more memory than docs/security.md says, or if any
of them is still there when their time is over. `tests/security/test_floods.py` is the small form of it.
"""

from __future__ import annotations

import contextlib
import random
import resource
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from moldau.client.connection import Connection, Disconnected
from moldau.client.settings import parse_client_settings
from moldau.wire import Message, apis, encode
from moldau.wire import messages as m
from moldau.wire.headers import encode_request_header
from tests.net.certificates import as_pkcs8, make_identity
from tests.support.broker_process import read_ready, spawn_serve

KIB_OF_A_STRANGER_MAX = 64.0
SECONDS = 30.0
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
Connect = Callable[[], socket.socket]


def half_open(connect: Connect, count: int, stack: contextlib.ExitStack) -> None:
    """Connections that say nothing, the beginning of a ClientHello, or all of it and nothing more; and stay."""
    hello = client_hello()
    for number in range(count):
        sock = stack.enter_context(connect())
        if number % 3:
            sock.sendall(hello if number % 3 == 2 else hello[:6])


def client_hello() -> bytes:
    context = ssl.create_default_context()
    said = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), said, server_hostname="localhost").do_handshake()
    return said.read()


def trickle(connect: Connect, count: int, stack: contextlib.ExitStack) -> None:
    """Frames said to be as long as allowed, of which a byte comes (slow-loris)."""
    for _ in range(count):
        sock = stack.enter_context(connect())
        sock.sendall((500_000).to_bytes(4, "big") + b"\0")


def come_and_go(connect: Connect, count: int) -> None:
    for _ in range(count):
        connect().close()


def nonsense(connect: Connect, count: int, seed: int) -> tuple[int, int]:
    """Frames and tokens that are none, or nearly some, before the login. (answered, closed): nobody is left waiting."""
    chance = random.Random(seed)
    answered = closed = 0
    for _ in range(count):
        with contextlib.closing(connect()) as sock:
            sock.settimeout(SECONDS)
            try:
                for frame in _frames(chance):
                    sock.sendall(len(frame).to_bytes(4, "big") + frame)
                sock.shutdown(socket.SHUT_WR)  # that was all: whatever is answered comes now, and then the end
                got = False
                while sock.recv(65_536):
                    got = True
            except (ConnectionResetError, BrokenPipeError):
                got = False
            answered += got
            closed += not got
    return answered, closed


def _frames(chance: random.Random) -> list[bytes]:
    def framed(request: Message, version: int) -> bytes:
        return encode_request_header(apis()[request.number], version, 1, "stranger") + encode(request, version)

    mechanism = chance.choice(MECHANISMS)
    handshake = framed(m.SaslHandshakeRequest(mechanism), 1)
    name = "admin" if chance.random() < 0.5 else chance.randbytes(chance.randrange(50)).decode("latin-1")
    token = chance.choice(
        (
            f"\0{name}\0wrong".encode(),
            f"n,,n={name},r=nonce".encode(),
            f"n,,n={name},r=nonce,tokenauth=true".encode(),
            b"n,,\x01auth=Bearer e30.e30.e30\x01\x01",
            chance.randbytes(chance.randrange(2_000)),
            b"",
        )
    )
    login = framed(m.SaslAuthenticateRequest(_mutated(token, chance)), 2)
    kind = chance.randrange(5)
    if kind == 0:
        return [chance.randbytes(chance.randrange(200))]
    if kind == 1:
        return [_mutated(handshake, chance), login]
    if kind == 2:
        return [handshake, _mutated(login, chance)]
    if kind == 3:
        return [handshake, login, login, framed(m.MetadataRequest(topics=None), 9)]
    return [handshake, chance.randbytes(chance.randrange(3_000))]  # a bare token, as old clients send it


def _mutated(data: bytes, chance: random.Random) -> bytes:
    if not data or chance.random() < 0.3:
        return data
    changed = bytearray(data)
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(changed))
        match chance.randrange(3):
            case 0:
                changed[at] = chance.randrange(256)
            case 1:
                changed[at:at] = chance.randbytes(chance.randrange(1, 20))
            case _:
                del changed[at : at + chance.randrange(1, 10)]
                if not changed:
                    return b""
    return bytes(changed)


# ---- the large form -------------------------------------------------------------------------------------------------


class Target:
    """A broker in a process of its own, and what it holds."""

    def __init__(self, pid: int, ports: dict[str, int], ca_file: str) -> None:
        self.pid = pid
        self.ports = ports
        self._ca_file = ca_file

    def connect(self, listener: str) -> Connect:
        """Patiently: when more come than fit the backlog, the system lets them knock again, later and later."""
        return lambda: socket.create_connection(("127.0.0.1", self.ports[listener]), 5 * SECONDS)

    def shaken(self) -> socket.socket:
        """With TLS, and no login."""
        context = ssl.create_default_context(cafile=self._ca_file)
        plain = socket.create_connection(("127.0.0.1", self.ports["SASL_SSL"]), SECONDS)
        return context.wrap_socket(plain, server_hostname="localhost")

    def sockets(self) -> int:
        return sum(1 for _ in Path(f"/proc/{self.pid}/fd").iterdir())

    def resident_kib(self) -> int:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))

    def ask(self) -> float:
        """A user logs in and asks: seconds."""
        settings = {
            "bootstrap.servers": f"127.0.0.1:{self.ports['SASL_SSL']}",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "admin",
            "sasl.password": "right",
            "ssl.truststore.location": self._ca_file,
        }
        begun = time.monotonic()
        with Connection("127.0.0.1", self.ports["SASL_SSL"], parse_client_settings(settings)) as connection:
            assert connection.call(m.MetadataRequest(topics=[]), m.MetadataResponse).brokers
        return time.monotonic() - begun


@contextlib.contextmanager
def target() -> Iterator[Target]:
    from moldau.testing.ports import free_ports

    plain, tls = free_ports(2)
    with tempfile.TemporaryDirectory(prefix="moldau-floods-") as folder:
        home = Path(folder)
        authority = make_identity([("CN", "authority")])
        server = make_identity([("CN", "localhost")], authority)
        (home / "ca.pem").write_text(authority.certificate)
        (home / "server.pem").write_text(as_pkcs8(server) + server.certificate)
        users = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_admin="right";'
        settings = {
            "listeners": f"PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:{plain},SASL_SSL://127.0.0.1:{tls}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(home / "server.pem"),
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": users,
            "listener.name.sasl_ssl.plain.sasl.jaas.config": users,
            "connection.failed.authentication.delay.ms": "0",
        }
        told = (f"--set={key}={value}" for key, value in settings.items())
        broker = spawn_serve("--data-dir", str(home / "data"), *told, stderr=subprocess.DEVNULL)
        try:
            read_ready(broker)
            yield Target(broker.pid, {"SASL_PLAINTEXT": plain, "SASL_SSL": tls}, str(home / "ca.pem"))
            assert broker.poll() is None, "the broker has died"
        finally:
            broker.kill()
            broker.wait()


def _held(name: str, to: Target, count: int, fill: Callable[[contextlib.ExitStack], None], seconds: float) -> None:
    """A crowd that stays, as far as the broker has descriptors: what each of those costs, how a user fares meanwhile,
    and that all of them are gone in time."""
    before_kib, before = to.resident_kib(), to.sockets()
    with contextlib.ExitStack() as stack:
        begun = time.monotonic()
        fill(stack)
        took = time.monotonic() - begun
        waits = max(to.ask() for _ in range(5))
        held = to.sockets() - before
        each_kib = (to.resident_kib() - before_kib) / max(held, 1)
        print(f"{name}: {count:,} in {took:.1f} s, {held:,} held, {each_kib:.1f} KiB each; a login takes {waits:.2f} s")
        assert each_kib <= KIB_OF_A_STRANGER_MAX, "a stranger costs more than it may"
        while to.sockets() > before + 10:
            assert time.monotonic() < begun + took + seconds, f"{to.sockets() - before} are still there"
            time.sleep(0.2)
        print(f"{name}: all sent away {time.monotonic() - begun - took:.0f} s after the last had come")


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if most < count + 500:
        print(f"this needs {count + 500} open files (ulimit -n), and may have {most}: give a smaller COUNT")
        return 2
    with target() as to:
        print(f"a login before: {max(to.ask() for _ in range(5)):.3f} s")
        _held("half-open handshakes", to, count, lambda stack: half_open(to.connect("SASL_SSL"), count, stack), 45)
        few = count // 10
        _held("TLS and no login", to, few, lambda stack: _shake(to, few, stack), 45)
        _held("trickling frames", to, count, lambda stack: trickle(to.connect("SASL_PLAINTEXT"), count, stack), 45)
        begun = time.monotonic()
        come_and_go(to.connect("SASL_SSL"), 2 * count)
        print(f"come and gone: {2 * count:,} in {time.monotonic() - begun:.1f} s; a login takes {to.ask():.3f} s")
        begun = time.monotonic()
        answered, closed = nonsense(to.connect("SASL_PLAINTEXT"), count, seed=1)
        print(f"nonsense: {answered:,} answered, {closed:,} closed, in {time.monotonic() - begun:.1f} s")
        print(f"a login after: {to.ask():.3f} s; memory {to.resident_kib() / 1024:.0f} MiB")
    return 0


def _shake(to: Target, count: int, stack: contextlib.ExitStack) -> None:
    for _ in range(count):
        with contextlib.suppress(Disconnected):
            stack.enter_context(to.shaken())


if __name__ == "__main__":
    sys.exit(main())
