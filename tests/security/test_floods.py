"""Crowds of strangers in small: `tests/attack/floods.py` (`make floods`) does the same with ten thousand."""

from __future__ import annotations

import _ssl
import contextlib
import ctypes
import socket
import ssl
from collections.abc import Callable

import pytest

from moldau.wire import messages as m
from tests.attack.floods import come_and_go, half_open, nonsense, trickle
from tests.security.secured import Secured

SECONDS = 60.0


def connect(secured: Secured, listener: str) -> Callable[[], socket.socket]:
    return lambda: socket.create_connection(("127.0.0.1", secured.port(listener)), SECONDS)


def a_user_gets_in(secured: Secured) -> None:
    with secured.connection("SASL_SSL", "SCRAM-SHA-512") as connection:
        assert connection.call(m.MetadataRequest(topics=[]), m.MetadataResponse).brokers


@pytest.mark.parametrize("listener", ["SASL_SSL", "SASL_PLAINTEXT"])
def test_a_crowd_keeps_nobody_out(secured: Secured, listener: str) -> None:
    with contextlib.ExitStack() as stack:
        crowd = half_open if listener == "SASL_SSL" else trickle
        crowd(connect(secured, listener), 300, stack)
        a_user_gets_in(secured)
        come_and_go(connect(secured, listener), 300)
        a_user_gets_in(secured)


@pytest.mark.parametrize("seed", range(4))
def test_nonsense_is_answered_or_sent_away(secured: Secured, seed: int) -> None:
    """Nobody waits for an answer that never comes, and the broker is none the worse for it."""
    answered, closed = nonsense(connect(secured, "SASL_PLAINTEXT"), 100, seed)
    assert answered + closed == 100
    assert answered  # handshakes are
    assert closed  # noise is not
    a_user_gets_in(secured)


def test_tls_is_not_renegotiated(secured: Secured) -> None:
    """One handshake for each connection: a client cannot ask for another, and another, each of which costs the broker
    more than it. Python does not offer to ask, so OpenSSL is told to, behind its back."""
    library = ctypes.CDLL(_ssl.__file__)  # with whatever libssl Python itself uses
    for name in ("SSL_CTX_new", "SSL_new", "TLS_client_method"):
        getattr(library, name).restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.SSL_CTX_new(ctypes.c_void_p(library.TLS_client_method())))
    library.SSL_CTX_ctrl(context, 124, ctypes.c_long(ssl.TLSVersion.TLSv1_2), None)  # SSL_CTRL_SET_MAX_PROTO_VERSION
    with socket.create_connection(("127.0.0.1", secured.port("ONEWAY")), SECONDS) as sock:
        sock.settimeout(None)  # OpenSSL reads and writes it itself, and waits
        connection = ctypes.c_void_p(library.SSL_new(context))
        try:
            assert library.SSL_set_fd(connection, sock.fileno()) == 1
            assert library.SSL_connect(connection) == 1
            assert library.SSL_renegotiate(connection) == 1
            assert library.SSL_do_handshake(connection) != 1  # told that there is no renegotiation
        finally:
            library.SSL_free(connection)
            library.SSL_CTX_free(context)
    a_user_gets_in(secured)
