"""The cluster a command talks to: where it is and how to get in, under the names Kafka's Java clients use.

Settings come from four places, the later one wins: the context (`moldau context`), a client.properties file
(`--config`), the environment (`MOLDAU_BOOTSTRAP_SERVER`, `MOLDAU_X_SASL_PASSWORD` for sasl.password, …), and the
command line (`-X`, `-b`).
"""

from __future__ import annotations

import os
import socket
import ssl
import struct
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from moldau.cli.client_settings import pairs, read_settings
from moldau.cli.contexts import chosen_settings
from moldau.cli.failure import ExitCode, fail, misused, no_broker

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, Producer
    from confluent_kafka.admin import AdminClient

    from moldau.client.admin import Admin

DEFAULT_BOOTSTRAP_SERVER = "127.0.0.1:9092"
TIMEOUT_SECONDS = 15.0
_CONNECT_SECONDS = 3.0
_ANSWER_SECONDS = 5.0  # to the first question; -X request.timeout.ms=… waits longer
_GLANCE_SECONDS = 1.5  # at each of several addresses, to begin with
_DEFAULT_PORT = 9092
_ENVIRONMENT = "MOLDAU_X_"
_SERVERS = "bootstrap.servers"
_WHICH_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 0, -1)  # ApiVersions, version 0, from nobody

# What Java's clients call differently.
_RENAMED = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "max.request.size": "message.max.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "buffer.memory": "",
    "default.api.timeout.ms": "",
    "request.timeout.ms": "socket.timeout.ms",
    "sasl.mechanism": "sasl.mechanisms",
}
# What only Java's clients have: classes, JVM key stores' passwords, pools. A file that is shared with them may hold it.
_JAVA_ONLY = (
    *("key.serializer", "value.serializer", "key.deserializer", "value.deserializer", "interceptor.classes"),
    *("metric.reporters", "metrics.", "partitioner.class", "partition.assignment.strategy", "max.poll.records"),
    *("max.block.ms", "exclude.internal.topics", "sasl.jaas.config", "sasl.client.callback", "sasl.login."),
    *("ssl.protocol", "ssl.enabled.protocols", "ssl.provider", "ssl.keymanager", "ssl.trustmanager"),
    *("ssl.engine.factory.class", "ssl.secure.random", "auto.include.jmx", "socket.connection.setup.timeout.max.ms"),
    *("enable.metrics.push", "config.providers", "security.providers"),
    # Confluent's serializers; where their registry is, `--registry` reads here.
    *("schema.registry.", "basic.auth.", "bearer.auth.", "auto.register.schemas", "use.latest.version"),
    *("specific.avro.reader", "key.subject.name.strategy", "value.subject.name.strategy"),
)


class Target:
    """Made by the frame from a command's options; clients are made only once somebody has answered."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        """`settings` under Kafka's names, `bootstrap.servers` among them."""
        self.settings = dict(settings)
        self.bootstrap_servers = self.settings[_SERVERS]
        self.was_reached = False
        self._answered: tuple[str, int] | None = None

    def reach(self) -> None:
        """Make sure that a broker answers and lets us in; a client would try for a long time and not say why not."""
        if self.was_reached:
            return
        from moldau.client.connection import Connection, Disconnected
        from moldau.client.security import SettingError
        from moldau.client.settings import parse_client_settings

        failure = "no address was given"
        known = addresses(self.bootstrap_servers)
        # One of several that hangs holds nobody up for long; if none is quick, all are given time.
        for patience in (_GLANCE_SECONDS, _ANSWER_SECONDS) if len(known) > 1 else (_ANSWER_SECONDS,):
            try:
                quick = self.settings | {
                    "socket.connection.setup.timeout.ms": str(int(min(patience, _CONNECT_SECONDS) * 1000)),
                    "request.timeout.ms": self.settings.get("request.timeout.ms", str(int(patience * 1000))),
                    _SERVERS: ",".join(f"[{host}]:{port}" for host, port in known),
                }
                parsed = parse_client_settings(quick)
            except SettingError as error:
                if error.name != "sasl.mechanism":
                    misused(str(error))
                self.was_reached = any(listens(*each) for each in known)
                if not self.was_reached:  # librdkafka knows more ways to log in than we do
                    self._nobody()
                return
            was_slow = False
            for host, port in parsed.bootstrap_servers:
                try:
                    Connection(host, port, parsed).close()
                except Disconnected as error:
                    failure = _reason(error)
                    was_slow |= isinstance(error.__cause__, TimeoutError)
                else:
                    self.was_reached = True
                    self._answered = (host, port)
                    return
            if not was_slow:
                break
        if not failure:
            advice = "does it want TLS or a login, or none? See security.protocol"
            fail(f"{self.bootstrap_servers} closes the connection: {advice}", ExitCode.UNREACHABLE)
        self._nobody(failure)

    def _nobody(self, why: str = "") -> NoReturn:
        message, code, _ = no_broker(self.bootstrap_servers, why)
        fail(message, code)

    def librdkafka(self, **more: Any) -> dict[str, Any]:
        """The settings as confluent-kafka takes them; its own log is off: errors come through calls."""
        quiet = {"log_level": 0, "socket.connection.setup.timeout.ms": "5000", "client.id": "moldau"}
        return {**quiet, **librdkafka_settings(self.settings), **more}

    def admin_client(self) -> AdminClient:
        from confluent_kafka.admin import AdminClient

        self.reach()
        return AdminClient(self.librdkafka())

    def consumer(self, **more: Any) -> Consumer:
        """One that belongs to no group, unless `group.id` says so."""
        from confluent_kafka import Consumer

        self.reach()
        group = self.settings.get("group.id", "moldau-cli")
        return Consumer(self.librdkafka(**{"group.id": group, "enable.auto.commit": False, **more}))

    def producer(self, **more: Any) -> Producer:
        from confluent_kafka import Producer

        self.reach()
        return Producer(self.librdkafka(**more))

    def admin(self) -> Admin:
        """For what confluent-kafka's AdminClient does not ask: quorum, log dirs, reassignments, transactions."""
        from moldau.client.admin import Admin
        from moldau.client.settings import parse_client_settings

        self.reach()
        # Whoever answered is asked first, not one that let us wait.
        known = sorted(addresses(self.bootstrap_servers), key=lambda each: each != self._answered)
        servers = ",".join(f"[{host}]:{port}" for host, port in known)
        return Admin(parse_client_settings(self.settings | {_SERVERS: servers}))


def is_about_its_group(message: Message) -> bool:
    """An error that means nothing to who only reads: librdkafka looks for the coordinator of a group all the same, and
    a user who may read the topic need not be allowed that."""
    error = message.error()
    return error is not None and error.code() == error.GROUP_AUTHORIZATION_FAILED


def addresses(bootstrap_servers: str) -> list[tuple[str, int]]:
    """Hosts and ports; Kafka's port where none is given, and a word about what is no address."""
    found = []
    for part in filter(None, (each.strip() for each in bootstrap_servers.split(","))):
        place = part.rpartition("://")[2]
        host, colon, port = place.rpartition(":")
        if not colon or place.endswith("]") or (":" in host and not host.startswith("[")):
            host, port = place, str(_DEFAULT_PORT)
        is_closed = place.startswith("[") == (host.endswith("]")) and host.count("[") == host.count("]")
        if not host.strip("[]") or not is_closed or not port.isdecimal() or not 0 < int(port) < 65_536:
            misused(f"{part!r} is no address: write HOST:PORT, for example {DEFAULT_BOOTSTRAP_SERVER}")
        found.append((host.strip("[]"), int(port)))
    return found or misused("bootstrap.servers is empty: write HOST:PORT, several with commas")


def _reason(error: Exception) -> str:
    """Of what the system said, the words; nothing if it was a broker that ended the talk."""
    cause = error.__cause__
    if isinstance(cause, TimeoutError):
        return "no answer in time"
    if isinstance(cause, OSError) and not isinstance(cause, ssl.SSLError):
        return cause.strerror or str(cause)
    return ""


def listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), _CONNECT_SECONDS).close()
    except (OSError, OverflowError, UnicodeError):
        return False
    return True


def replies(host: str, port: int) -> bool:
    """Whether somebody lives there: one that hangs lets its system take connections, and says nothing. Asks for
    versions, as every client does first; where TLS is spoken, the end of the connection is a reply too."""
    try:
        with socket.create_connection((host, port), _CONNECT_SECONDS) as asking:
            asking.sendall(_WHICH_VERSIONS)
            asking.recv(1)
    except ConnectionResetError:
        return True
    except (OSError, OverflowError, UnicodeError):
        return False
    return True


def hangs(host: str, port: int, patience: float) -> bool:
    """Whether connections are taken there and nothing is said."""
    try:
        with socket.create_connection((host, port), patience) as asking:
            asking.sendall(_WHICH_VERSIONS)
            try:
                asking.recv(1)
            except TimeoutError:
                return True
    except OSError:
        pass
    return False


def resolve(
    bootstrap_server: str | None, extra: Iterable[str], config: str | None, context: str | None
) -> dict[str, str]:
    """All settings of a command's target."""
    settings = chosen_settings(context)
    if config is not None:
        settings |= read_settings(config)
    for name, value in os.environ.items():
        if name.startswith(_ENVIRONMENT):
            settings[name.removeprefix(_ENVIRONMENT).lower().replace("_", ".")] = value
    if bootstrap_server is not None:
        settings[_SERVERS] = bootstrap_server
    settings |= pairs(extra, "-X")
    settings.setdefault(_SERVERS, DEFAULT_BOOTSTRAP_SERVER)
    return settings


def librdkafka_settings(kafka: Mapping[str, str]) -> dict[str, str]:
    """Settings under the names of Java's clients as librdkafka takes them; what only Java has is left out."""
    from moldau.client.security import MECHANISMS, librdkafka_security

    mechanism = (kafka.get("sasl.mechanism") or kafka.get("sasl.mechanisms") or "PLAIN").upper()
    is_ours = mechanism in MECHANISMS or not kafka.get("security.protocol", "").upper().startswith("SASL")
    security = librdkafka_security(kafka) if is_ours else {}
    found = {}
    for name, value in kafka.items():
        if name.startswith(_JAVA_ONLY) or (is_ours and _is_security(name)):
            continue
        renamed = _RENAMED.get(name, name)
        if renamed:
            found[renamed] = value
    if found.get("auto.offset.reset") == "none":
        found["auto.offset.reset"] = "error"
    return found | security


def _is_security(name: str) -> bool:
    return name.startswith(("sasl.", "ssl.")) or name == "security.protocol"
