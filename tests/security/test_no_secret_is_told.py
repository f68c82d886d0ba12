"""With everything logged, and with handlers that fail: no password, token or key stands in a line or a traceback."""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from moldau.broker.controller.local import LocalController
from moldau.client.sasl import AuthenticationFailed
from moldau.security.sasl import plain, scram
from moldau.security.sasl.oauthbearer import OAuthBearerServer
from moldau.wire import ErrorCode
from moldau.wire import messages as m
from tests.security.secured import ADMIN_PASSWORD, MECHANISMS, PASSWORDS, PLAIN_PASSWORD, Secured
from tests.security.test_hostile_logins import raw

GUESS = "a-guess-that-is-wrong"
SALTED = b"salted-and-of-32-bytes-in-length"
KEY = "a private key that is none"


@pytest.fixture
def everything_logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Of every room, whatever level somebody gave it."""
    names = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] in ("moldau", "asyncio")]
    levels = {name: logging.getLogger(name).level for name in names}
    with caplog.at_level(logging.DEBUG):
        for name in names:
            logging.getLogger(name).setLevel(logging.DEBUG)
        yield caplog
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def _spellings(secret: str | bytes) -> set[str]:
    """As it is, as Python shows it, and as it travels."""
    data = secret.encode() if isinstance(secret, str) else secret
    encoded = {base64.b64encode(data), base64.urlsafe_b64encode(data), data.hex().encode()}
    return {repr(data)[2:-1], repr(secret).strip("b'\""), *(each.decode().rstrip("=") for each in encoded)}


def _log_in(secured: Secured, token: str, told: list[str]) -> None:
    for mechanism in MECHANISMS:
        with secured.connection("SASL_SSL", mechanism):
            pass
        with pytest.raises(AuthenticationFailed) as refused:
            secured.connection("SASL_SSL", mechanism, **{"sasl.password": GUESS})
        told.append(str(refused.value))
    for each in (token, token[:-9] + "AAAAAAAAA"):
        with raw(secured.port("SASL_PLAINTEXT")) as peer:
            peer.shake_hands("OAUTHBEARER")
            told.append(repr(peer.authenticate(f"n,,\x01auth=Bearer {each}\x01\x01".encode())))


def _change(secured: Secured, told: list[str]) -> m.CreateDelegationTokenResponse:
    kind = m.AlterUserScramCredentialsRequest
    upsertion = kind.ScramCredentialUpsertion("dave", 1, 4096, b"salt", SALTED)
    change = m.IncrementalAlterConfigsRequest.AlterableConfig("listener.name.oneway.ssl.keystore.key", 0, KEY)
    broker = m.IncrementalAlterConfigsRequest.AlterConfigsResource(4, "1", [change])
    with secured.connection("SASL_PLAINTEXT", "SCRAM-SHA-512") as alice:
        told.append(repr(alice.call(kind(upsertions=[upsertion]), m.AlterUserScramCredentialsResponse)))
        refused = alice.call(m.IncrementalAlterConfigsRequest([broker]), m.IncrementalAlterConfigsResponse)
        assert refused.responses[0].error_code == ErrorCode.INVALID_REQUEST
        told.append(repr(refused))
        alice.call(kind(deletions=[kind.ScramCredentialDeletion("dave", 1)]), m.AlterUserScramCredentialsResponse)
        return alice.call(m.CreateDelegationTokenRequest(max_lifetime_ms=-1), m.CreateDelegationTokenResponse)


def _break_in(secured: Secured, monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    """What a mistake in a mechanism or in the controller leaves in the log."""

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("planted")

    kind = m.AlterUserScramCredentialsRequest
    submit = LocalController.submit

    async def broken_for_users(self: LocalController, command: Any, request: Any, **more: Any) -> Any:
        return broken() if isinstance(request, kind) else await submit(self, command, request, **more)

    with secured.connection("SASL_PLAINTEXT", "SCRAM-SHA-512") as alice, monkeypatch.context() as patch:
        patch.setattr(LocalController, "submit", broken_for_users)
        request = kind(upsertions=[kind.ScramCredentialUpsertion("dave", 1, 4096, b"salt", SALTED)])
        (row,) = alice.call(request, m.AlterUserScramCredentialsResponse).results
        assert row.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    for mechanism, first in (
        ("PLAIN", f"\0carol\0{PLAIN_PASSWORD}"),
        ("SCRAM-SHA-256", "n,,n=alice,r=nonce"),
        ("OAUTHBEARER", f"n,,\x01auth=Bearer {token}\x01\x01"),
    ):
        with monkeypatch.context() as patch, raw(secured.port("SASL_PLAINTEXT")) as peer:
            for server in (plain.PlainServer, scram.ScramServer, OAuthBearerServer):
                patch.setattr(server, "step", broken)
            peer.shake_hands(mechanism)
            peer.send(m.SaslAuthenticateRequest(first.encode()), 2)
            peer.receive_frame()


def test_no_secret_is_in_a_line_or_a_traceback(
    secured: Secured, everything_logged: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, told = secured.issuer.token(), list[str]()
    _log_in(secured, token, told)
    delegation = _change(secured, told)
    assert delegation.error_code == 0
    _break_in(secured, monkeypatch, token)
    text = "\n".join((everything_logged.text, *told))
    assert text.count("RuntimeError: planted") >= 2  # tracebacks are there to be looked through
    secrets: list[str | bytes] = [*PASSWORDS.values(), PLAIN_PASSWORD, ADMIN_PASSWORD, GUESS, SALTED, KEY]
    secrets += [delegation.hmac, token.rpartition(".")[2], "the key of tokens"]
    found = [spelling for secret in secrets for spelling in _spellings(secret) if spelling in text]
    assert not found
