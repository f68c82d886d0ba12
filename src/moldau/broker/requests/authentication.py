"""SASL listeners: nobody gets further than the handshake before it has proved who it is.

`SaslGate` stands in front of a listener's dispatcher. Before a connection is authenticated it lets through what logging
in needs, in frames of at most `sasl.server.max.receive.size`, and for a limited time; afterwards it only looks whether
the session is over (`connections.max.reauth.ms`, or the end of a token). The requests themselves are answered by the
handlers of SaslHandshake and SaslAuthenticate, with what is here.

A failed login is answered, and its connection closed, after `connection.failed.authentication.delay.ms`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from moldau.broker.calls import Call, Session
from moldau.seams.network import Connection, Payload, ResponseSlot
from moldau.security.principal import Principal
from moldau.security.principal_mapping import NoMatchingRule, PrincipalMapping
from moldau.security.sasl.authenticator import MechanismOffer, SaslAuthenticator, SaslState
from moldau.security.sasl.mechanism import AuthenticationFailed
from moldau.wire import MalformedFrame, Message, encode
from moldau.wire.apis import API_VERSIONS
from moldau.wire.headers import encode_response_header, peek_api

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau.broker.parts import HasAudit, HasConfig, HasLoop, HasTime
    from moldau.broker.requests.dispatch import Dispatcher

    class Needs(HasAudit, HasConfig, HasLoop, HasTime, Protocol):
        """What this file may touch."""


LOGIN_MS_MAX = 30_000.0
_CERTIFICATE = "certificate"
_SASL_HANDSHAKE, _SASL_AUTHENTICATE = 17, 36
_ALLOWED = {
    SaslState.HANDSHAKE: frozenset({API_VERSIONS, _SASL_HANDSHAKE}),
    SaslState.AUTHENTICATE: frozenset({_SASL_AUTHENTICATE}),
}


class SaslGate:
    """The `FrameHandler` of one SASL listener."""

    def __init__(
        self, broker: Needs, dispatcher: Dispatcher, offers: Callable[[], Mapping[str, MechanismOffer]]
    ) -> None:
        self._broker = broker
        self._dispatcher = dispatcher
        self._offers = offers
        self._now_ms = broker.clock.monotonic_ms
        self._frame_bytes_max = broker.config.get_int("sasl.server.max.receive.size")

    def on_connect(self, connection: Connection) -> None:
        self._dispatcher.on_connect(connection)
        session: Session = connection.context
        session.sasl = SaslAuthenticator(self._offers())
        connection.distrust(self._frame_bytes_max)
        self._watch(connection)

    def on_disconnect(self, connection: Connection, reason: str) -> None:
        session: Session = connection.context
        if session.login_deadline is not None:
            session.login_deadline.cancel()
        self._dispatcher.on_disconnect(connection, reason)

    def on_frame(self, connection: Connection, frame: memoryview, slot: ResponseSlot) -> None:
        session: Session = connection.context
        sasl = session.sasl
        assert sasl is not None
        if sasl.is_complete:
            if sasl.expires_at_ms is not None and self._now_ms() >= sasl.expires_at_ms and not _is_handshake(frame):
                slot.close("the session is over: authenticate again (connections.max.reauth.ms)")
                return
            self._dispatcher.on_frame(connection, frame, slot)
        elif sasl.is_raw and sasl.state is SaslState.AUTHENTICATE:
            self._take_raw_token(connection, bytes(frame), slot, sasl)
        else:
            self._take_login(connection, frame, slot, sasl)

    def _watch(self, connection: Connection) -> None:
        session: Session = connection.context
        deadline_ms = self._now_ms() + LOGIN_MS_MAX
        session.login_deadline = self._broker.wheel.add(deadline_ms, lambda: self._login_takes_long(connection))

    def _login_takes_long(self, connection: Connection) -> None:
        session: Session = connection.context
        session.login_deadline = None
        if session.sasl is None or session.sasl.is_complete or connection.is_closed:
            return
        if self._dispatcher.is_waiting:  # for us
            self._watch(connection)
            return
        connection.close(f"it was not authenticated within {LOGIN_MS_MAX:.0f} ms")

    def _take_login(
        self, connection: Connection, frame: memoryview, slot: ResponseSlot, sasl: SaslAuthenticator
    ) -> None:
        try:
            api_key, _, _ = peek_api(frame)
        except MalformedFrame as error:
            slot.close(f"malformed request: {error}")
            return
        if api_key in _ALLOWED.get(sasl.state, ()):
            self._dispatcher.on_frame(connection, frame, slot)
            return
        sasl.fail()
        reason = f"API key {api_key} came before the connection was authenticated"
        _refuse(self._broker, connection, slot, None, AuthenticationFailed(detail=reason))

    def _take_raw_token(
        self, connection: Connection, token: bytes, slot: ResponseSlot, sasl: SaslAuthenticator
    ) -> None:
        clock = self._broker.clock
        try:
            answer = sasl.authenticate(token, now_ms=self._now_ms(), wall_ms=int(clock.wall_ms()))
        except AuthenticationFailed as error:
            _refuse(self._broker, connection, slot, None, error)
            return
        slot.complete([answer.token])
        if sasl.is_complete:
            logged_in(self._broker, connection)


class TlsGate:
    """The `FrameHandler` of one TLS listener: a client is who its certificate says, or nobody."""

    def __init__(self, broker: Needs, dispatcher: Dispatcher, mapping: PrincipalMapping) -> None:
        self._broker = broker
        self._dispatcher = dispatcher
        self._mapping = mapping
        self.on_frame = dispatcher.on_frame
        self.on_disconnect = dispatcher.on_disconnect

    def on_connect(self, connection: Connection) -> None:
        self._dispatcher.on_connect(connection)
        subject = connection.tls_peer_name
        if subject is None:
            return
        session: Session = connection.context
        address, listener = session.client_address, session.listener_name
        try:
            session.principal = Principal.user(self._mapping.name_of(subject))
        except NoMatchingRule as error:
            self._broker.audit.authentication_failed(
                subject, address=address, listener=listener, mechanism=_CERTIFICATE, reason=str(error)
            )
            connection.close(str(error))
        else:
            self._broker.audit.authenticated(
                session.principal, address=address, listener=listener, mechanism=_CERTIFICATE
            )


def logged_in(broker: Needs, connection: Connection) -> None:
    """From now on the connection is somebody's, and its frames may be as long as anybody's."""
    session: Session = connection.context
    sasl = session.sasl
    assert sasl is not None
    assert sasl.principal is not None
    if session.login_deadline is not None:
        session.login_deadline.cancel()
        session.login_deadline = None
    connection.trust()
    session.principal = sasl.principal
    broker.audit.authenticated(
        sasl.principal,
        address=session.client_address,
        listener=session.listener_name,
        mechanism=sasl.mechanism,
        is_again=sasl.is_again,
    )


def refuse_login(broker: Needs, call: Call, response: Message, error: AuthenticationFailed) -> None:
    """Answer, and close, later."""
    header_version = call.api.response_header_version(call.version)
    header = encode_response_header(call.correlation_id, header_version=header_version)
    _refuse(broker, call.connection, call.slot, [header, encode(response, call.version)], error)


def _refuse(
    broker: Needs, connection: Connection, slot: ResponseSlot, answer: Payload | None, error: AuthenticationFailed
) -> None:
    session: Session = connection.context
    mechanism = session.sasl.mechanism if session.sasl is not None else ""
    broker.audit.authentication_failed(
        error.user,
        address=session.client_address,
        listener=session.listener_name,
        mechanism=mechanism,
        reason=error.detail or str(error),
    )
    connection.pause_dispatch()

    def close() -> None:
        if connection.is_closed:
            return
        if answer is not None:
            slot.complete(answer)
        connection.close("authentication failed", flush=True)

    delay_ms = broker.config.get_int("connection.failed.authentication.delay.ms")
    if delay_ms:
        broker.wheel.add(broker.clock.monotonic_ms() + delay_ms, close)
    else:
        broker.loop.call_soon(close)


def _is_handshake(frame: memoryview) -> bool:
    return len(frame) >= 2 and frame[0] << 8 | frame[1] == _SASL_HANDSHAKE
