"""Who has not proved who it is gets nothing: no other request, no memory, no time."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from moldau.broker.requests import authentication
from moldau.client.connection import Connection
from moldau.client.settings import parse_client_settings
from moldau.testing import Broker, Security
from moldau.wire import ErrorCode, Message, apis, decode, encode
from moldau.wire import messages as m
from moldau.wire.headers import decode_response_header, encode_request_header
from tests.net.certificates import make_identity
from tests.security.secured import PLAIN_PASSWORD, PLAIN_USER, Secured

SECONDS = 10


class Raw:
    """Frames, in whatever order a test likes."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock

    def send(self, request: Message, version: int) -> None:
        api = apis()[request.number]
        self.send_frame(encode_request_header(api, version, 7, "raw") + encode(request, version))

    def send_frame(self, frame: bytes) -> None:
        self.socket.sendall(len(frame).to_bytes(4, "big") + frame)

    def receive_frame(self) -> bytes:
        """Empty if the broker closed the connection."""
        head = self._read(4)
        return self._read(int.from_bytes(head, "big")) if head else b""

    def receive(self, answer: type[Message], version: int) -> Any:
        frame = self.receive_frame()
        api = apis()[answer.number]
        _, position = decode_response_header(frame, header_version=api.response_header_version(version))
        return decode(answer, version, frame[position:])

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            try:
                piece = self.socket.recv(size - len(data))
            except ConnectionResetError:
                return b""
            if not piece:
                return b""
            data += piece
        return data

    @property
    def is_closed(self) -> bool:
        return self.receive_frame() == b""

    def shake_hands(self, mechanism: str = "PLAIN", version: int = 1) -> Any:
        self.send(m.SaslHandshakeRequest(mechanism), version)
        return self.receive(m.SaslHandshakeResponse, version)

    def authenticate(self, token: bytes) -> Any:
        self.send(m.SaslAuthenticateRequest(token), 2)
        return self.receive(m.SaslAuthenticateResponse, 2)


@contextmanager
def raw(port: int) -> Iterator[Raw]:
    with socket.create_connection(("127.0.0.1", port), SECONDS) as sock:
        yield Raw(sock)


@pytest.fixture
def peer(secured: Secured) -> Iterator[Raw]:
    with raw(secured.port("SASL_PLAINTEXT")) as found:
        yield found


GOOD = f"\0{PLAIN_USER}\0{PLAIN_PASSWORD}".encode()
ASK = m.MetadataRequest(topics=[])


def test_no_other_request_is_answered_before_the_login(peer: Raw) -> None:
    peer.send(ASK, 9)
    assert peer.is_closed


def test_no_other_request_is_answered_during_the_login(peer: Raw) -> None:
    assert peer.shake_hands().error_code == 0
    peer.send(ASK, 9)
    assert peer.is_closed


def test_what_is_sent_along_with_a_wrong_password_is_never_looked_at(peer: Raw) -> None:
    peer.shake_hands()
    peer.send(m.SaslAuthenticateRequest(b"\0carol\0wrong"), 2)
    peer.send(ASK, 9)
    answer = peer.receive(m.SaslAuthenticateResponse, 2)
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert peer.is_closed


def test_what_is_sent_along_with_the_right_password_is_answered(peer: Raw) -> None:
    peer.send(m.ApiVersionsRequest("x", "1"), 3)
    peer.send(m.SaslHandshakeRequest("PLAIN"), 1)
    peer.send(m.SaslAuthenticateRequest(GOOD), 2)
    peer.send(ASK, 9)
    peer.receive_frame()
    assert peer.receive(m.SaslHandshakeResponse, 1).error_code == 0
    assert peer.receive(m.SaslAuthenticateResponse, 2).error_code == 0
    assert peer.receive(m.MetadataResponse, 9).brokers


def test_a_token_before_the_handshake_ends_the_connection(peer: Raw) -> None:
    peer.send(m.SaslAuthenticateRequest(GOOD), 2)
    assert peer.is_closed


def test_an_unknown_mechanism_is_answered_with_the_known_ones(peer: Raw) -> None:
    answer = peer.shake_hands("GSSAPI")
    assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert set(answer.mechanisms) == {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"}
    assert peer.is_closed


def test_tokens_without_requests_as_old_clients_send_them(peer: Raw, secured: Secured) -> None:
    assert peer.shake_hands(version=0).error_code == 0
    peer.send_frame(GOOD)
    assert peer._read(4) == bytes(4)  # an empty token
    peer.send(ASK, 9)
    assert peer.receive(m.MetadataResponse, 9).brokers
    with raw(secured.port("SASL_PLAINTEXT")) as other:
        other.shake_hands(version=0)
        other.send_frame(b"\0carol\0wrong")
        assert other.is_closed


@pytest.mark.parametrize(
    "frame", [b"", b"\0", b"\0\x11\0\x01", b"\xff" * 40, b"\0\x24\0\x02\0\0\0\7\xff\xff\0\xff\xff"]
)
def test_frames_that_make_no_sense_end_the_connection(peer: Raw, frame: bytes) -> None:
    peer.send_frame(frame)
    assert peer.is_closed


def test_frames_are_short_until_the_login_and_as_long_as_anybodys_afterwards(secured: Secured, peer: Raw) -> None:
    peer.socket.sendall((524_289).to_bytes(4, "big"))
    assert peer.is_closed
    with raw(secured.port("SASL_PLAINTEXT")) as other:
        other.shake_hands()
        assert other.authenticate(GOOD).error_code == 0
        long = m.MetadataRequest([m.MetadataRequest.MetadataRequestTopic(name="x" * 30_000) for _ in range(30)])
        other.send(long, 8)
        assert other.receive(m.MetadataResponse, 8).topics


def test_a_failed_login_waits_before_it_is_told() -> None:
    settings = {"connection.failed.authentication.delay.ms": 300}
    security = Security("SASL_PLAINTEXT", "PLAIN")
    with Broker(settings, security=security) as broker, raw(broker.node.client_addresses[0][1]) as peer:
        peer.shake_hands()
        begin = time.monotonic()
        assert peer.authenticate(b"\0alice\0wrong").error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert time.monotonic() - begin >= 0.29


def test_sessions_end_unless_they_are_renewed_by_the_same_user() -> None:
    users = {"alice": "a", "bob": "b"}
    settings = {"connections.max.reauth.ms": 1_500}
    with Broker(settings, security=Security("SASL_PLAINTEXT", "PLAIN", users)) as broker:
        port = int(broker.bootstrap_servers.rpartition(":")[2])

        def log_in(peer: Raw, user: str, password: str) -> Any:
            assert peer.shake_hands().error_code == 0
            return peer.authenticate(f"\0{user}\0{password}".encode())

        with raw(port) as renewed, raw(port) as changed, raw(port) as forgotten:
            for peer in (renewed, changed, forgotten):
                assert log_in(peer, "alice", "a").session_lifetime_ms == 1_500
            assert renewed.shake_hands().error_code == ErrorCode.ILLEGAL_SASL_STATE  # within a second
            time.sleep(1.1)
            assert log_in(renewed, "alice", "a").error_code == 0
            refused = log_in(changed, "bob", "b")
            assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert "Cannot change principals" in refused.error_message
            assert changed.is_closed
            time.sleep(0.5)
            forgotten.send(ASK, 9)
            assert forgotten.is_closed
            renewed.send(ASK, 9)
            assert renewed.receive(m.MetadataResponse, 9).brokers


def test_who_takes_too_long_is_sent_away(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication, "LOGIN_MS_MAX", 200.0)
    with raw(secured.port("SASL_PLAINTEXT")) as silent, raw(secured.port("SASL_PLAINTEXT")) as quick:
        quick.shake_hands()
        assert quick.authenticate(GOOD).error_code == 0
        assert silent.is_closed
        quick.send(ASK, 9)
        assert quick.receive(m.MetadataResponse, 9).brokers


def test_half_open_handshakes_do_not_keep_others_out(secured: Secured) -> None:
    silent = [socket.create_connection(("127.0.0.1", secured.port("SASL_SSL")), SECONDS) for _ in range(200)]
    try:
        for each in silent[::2]:
            each.sendall(b"\x16\x03\x01\x02\x00\x01")  # the beginning of a ClientHello, and nothing more
        with secured.connection("SASL_SSL", "SCRAM-SHA-512") as connection:
            assert connection.call(ASK, m.MetadataResponse).brokers
    finally:
        for each in silent:
            each.close()


def test_garbage_at_a_tls_listener_ends_the_connection(secured: Secured) -> None:
    with raw(secured.port("SASL_SSL")) as peer:
        peer.send(m.ApiVersionsRequest("x", "1"), 3)
        data = peer.socket.recv(100)
        assert data[:1] in (b"", b"\x15")  # nothing, or an alert


def test_a_certificate_names_its_user(secured: Secured) -> None:
    settings = {
        "bootstrap.servers": secured.address("SSL"),
        "security.protocol": "SSL",
        "ssl.truststore.location": secured.ca_file,
        "ssl.keystore.location": secured.client_file,
    }
    with Connection("127.0.0.1", secured.port("SSL"), parse_client_settings(settings)) as connection:
        token = connection.call(m.CreateDelegationTokenRequest(max_lifetime_ms=-1), m.CreateDelegationTokenResponse)
        assert (token.error_code, token.principal_name) == (0, "dora")


def test_no_secret_is_described(secured: Secured) -> None:
    resource = m.DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=4, resource_name="1", configuration_keys=None
    )
    with secured.connection("PLAINTEXT") as connection:
        request = m.DescribeConfigsRequest(resources=[resource], include_synonyms=True, include_documentation=True)
        (result,) = connection.call(request, m.DescribeConfigsResponse).results
    assert result.error_code == 0
    told = [row.value for row in result.configs] + [each.value for row in result.configs for each in row.synonyms]
    assert not [value for value in told if value and ("secret" in value or "key of tokens" in value)]
    hidden = {row.name for row in result.configs if row.is_sensitive}
    assert {"ssl.keystore.key", "delegation.token.secret.key"} <= hidden
    assert "listener.name.sasl_ssl.plain.sasl.jaas.config" in hidden


def test_a_renewed_certificate_is_taken_and_a_broken_one_is_not(secured: Secured) -> None:
    def presented() -> bytes:
        context = ssl.create_default_context(cafile=secured.ca_file)
        plain = socket.create_connection(("127.0.0.1", secured.port("ONEWAY")), SECONDS)
        with plain, context.wrap_socket(plain, server_hostname="localhost") as tls:
            found = tls.getpeercert(binary_form=True)
            assert found is not None
            return found

    def reload() -> None:
        node = secured.broker.node
        node.broker.loop.call_soon_threadsafe(node._security.reload)

    before = presented()
    renewed = make_identity([("CN", "localhost")], secured.authority)
    secured.write_server(renewed)
    reload()
    expected = ssl.PEM_cert_to_DER_cert(renewed.certificate)
    assert before != expected
    deadline = time.monotonic() + SECONDS
    while presented() != expected:
        assert time.monotonic() < deadline, "the new certificate is not presented"
    (secured.folder / "server.pem").write_text("nonsense")
    reload()
    assert presented() == expected
    secured.write_server(renewed)
    reload()
    assert presented() == expected


def test_a_certificate_that_cannot_be_read_is_refused_as_a_setting(secured: Secured) -> None:
    def alter(path: str) -> tuple[int, str | None]:
        change = m.IncrementalAlterConfigsRequest.AlterableConfig(
            name="listener.name.oneway.ssl.keystore.location", config_operation=0, value=path
        )
        resource = m.IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=4, resource_name="1", configs=[change]
        )
        request = m.IncrementalAlterConfigsRequest(resources=[resource])
        with secured.connection("PLAINTEXT") as connection:
            (row,) = connection.call(request, m.IncrementalAlterConfigsResponse).responses
        return row.error_code, row.error_message

    code, message = alter("/nowhere/node.pem")
    assert code == ErrorCode.INVALID_REQUEST
    assert "cannot be read" in (message or "")
    assert alter(secured.server_file) == (0, None)
