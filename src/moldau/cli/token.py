"""`moldau token`: delegation tokens, which log in for whom they were made, on any Kafka cluster.

A token's HMAC is a password: it is shown when the token is made, and to those who ask for it (`--secrets`).
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from moldau.cli.asking import ask
from moldau.cli.failure import ExitCode, fail, misused
from moldau.cli.frame import Commands, Output, Target
from moldau.cli.places import parse_period, show_time

if TYPE_CHECKING:
    from collections.abc import Sequence

app = Commands(help="Delegation tokens, to log in without a password: create, list, renew, expire.")

_AS_SETTINGS = -1  # as long as the cluster's settings say
_AT_ONCE = -1
_NOT_FOUND = 62
_USER = "User"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
_ADVICE = {
    61: ("this cluster makes no tokens: delegation.token.secret.key has to be set on all its nodes", ExitCode.FAILED),
    _NOT_FOUND: ("there is no such token (`moldau token list` shows yours)", ExitCode.NOT_FOUND),
    63: ("this takes the token's owner or one of its renewers", ExitCode.DENIED),
    64: ("this takes a login by SASL or a certificate, and none by a token", ExitCode.DENIED),
    66: ("the token has expired", ExitCode.FAILED),
}

Token = Annotated[str, typer.Argument(metavar="TOKEN", help="Its id, or its HMAC as base64.")]


@app.command(changes=True)
def create(
    target: Target,
    output: Output,
    owner: Annotated[
        str | None, typer.Option("--owner", "-o", metavar="User:NAME", help="Whom it logs in; you, if not said.")
    ] = None,
    renewer: Annotated[
        list[str] | None,
        typer.Option("--renewer", "-r", metavar="User:NAME", help="Who else may renew it; may be repeated."),
    ] = None,
    max_lifetime: Annotated[
        str | None,
        typer.Option(
            "--max-lifetime", metavar="PERIOD", help="However often renewed: 12h, 7d; the cluster may say less."
        ),
    ] = None,
    properties: Annotated[
        bool, typer.Option("--properties", help="Print a client.properties that logs in with it.")
    ] = False,
) -> None:
    """Make a token. Its HMAC is the password; whoever has it is its owner, until it expires."""
    from moldau.wire.messages import CreateDelegationTokenRequest, CreateDelegationTokenResponse

    of_whom = _principal(owner) if owner is not None else (None, None)
    request = CreateDelegationTokenRequest(
        owner_principal_type=of_whom[0],
        owner_principal_name=of_whom[1],
        renewers=[CreateDelegationTokenRequest.CreatableRenewers(*_principal(each)) for each in renewer or ()],
        max_lifetime_ms=_period("--max-lifetime", max_lifetime, _AS_SETTINGS),
    )
    made = ask(target, request, CreateDelegationTokenResponse)
    _refused(made.error_code, "token")
    row = _row(made, made.expiry_timestamp_ms, made.max_timestamp_ms)
    row |= {"renewers": list(renewer or ()), "hmac": base64.b64encode(made.hmac).decode()}
    if properties:
        for line in _properties(target.settings, row):
            output.line(line)
    elif output.as_json or output.template is not None:
        output.done("", row)
    else:
        output.show([{"what": name.replace("_", " "), "is": value} for name, value in row.items()])


@app.command("list", watchable=True)
def list_tokens(
    target: Target,
    output: Output,
    owner: Annotated[
        list[str] | None,
        typer.Option("--owner", "-o", metavar="User:NAME", help="Only theirs; may be repeated."),
    ] = None,
    secrets: Annotated[bool, typer.Option("--secrets", help="With their HMACs: whoever sees one can log in.")] = False,
) -> None:
    """Tokens you may see: your own, those you may renew, and of others those that rules let you describe."""
    rows = []
    for each in _tokens(target, owner):
        row = _row(each, each.expiry_timestamp, each.max_timestamp)
        row["renewers"] = [f"{who.principal_type}:{who.principal_name}" for who in each.renewers]
        if secrets:
            row["hmac"] = base64.b64encode(each.hmac).decode()
        rows.append(row)
    output.show(sorted(rows, key=lambda row: (row["owner"], row["expires"], row["token"])), empty="no tokens")


@app.command(changes=True)
def renew(
    target: Target,
    output: Output,
    token: Token,
    period: Annotated[
        str | None,
        typer.Option("--for", metavar="PERIOD", help="From now on: 30m, 12h, 7d; the cluster's, if not said."),
    ] = None,
) -> None:
    """Let a token live longer, at most as long as it may live."""
    from moldau.wire.messages import RenewDelegationTokenRequest, RenewDelegationTokenResponse

    period_ms = _period("--for", period, _AS_SETTINGS)
    request = RenewDelegationTokenRequest(hmac=_hmac(target, token), renew_period_ms=period_ms)
    answer = ask(target, request, RenewDelegationTokenResponse)
    _refused(answer.error_code, token)
    expires = show_time(answer.expiry_timestamp_ms)
    output.done(f"{_named(token)} expires {expires}", {"token": _named(token), "expires": expires})


@app.command(changes=True)
def expire(
    target: Target,
    output: Output,
    token: Token,
    period: Annotated[
        str | None, typer.Option("--in", metavar="PERIOD", help="In 30m, 12h, 7d; at once, if not said.")
    ] = None,
) -> None:
    """End a token, at once or in a while. Connections that logged in with it stay until they end."""
    from moldau.wire.messages import ExpireDelegationTokenRequest, ExpireDelegationTokenResponse

    period_ms = _period("--in", period, _AT_ONCE)
    request = ExpireDelegationTokenRequest(hmac=_hmac(target, token), expiry_time_period_ms=period_ms)
    answer = ask(target, request, ExpireDelegationTokenResponse)
    _refused(answer.error_code, token)
    expires = show_time(answer.expiry_timestamp_ms)
    said = "is gone" if period_ms == _AT_ONCE else f"expires {expires}"
    output.done(f"{_named(token)} {said}", {"token": _named(token), "expires": expires})


def _tokens(target: Target, owners: Sequence[str] | None) -> list[Any]:
    from moldau.wire.messages import DescribeDelegationTokenRequest, DescribeDelegationTokenResponse

    whose = [DescribeDelegationTokenRequest.DescribeDelegationTokenOwner(*_principal(each)) for each in owners or ()]
    found = ask(target, DescribeDelegationTokenRequest(owners=whose or None), DescribeDelegationTokenResponse)
    _refused(found.error_code, "tokens")
    return list(found.tokens)


def _row(token: Any, expiry_ms: int, max_ms: int) -> dict[str, Any]:
    asked_by = f"{token.token_requester_principal_type}:{token.token_requester_principal_name}"
    return {
        "token": token.token_id,
        "owner": f"{token.principal_type}:{token.principal_name}",
        "made_by": asked_by if token.token_requester_principal_name else None,  # older brokers do not say
        "expires": show_time(expiry_ms),
        "lives_until": show_time(max_ms),
        "renewers": [],
    }


def _principal(text: str) -> tuple[str, str]:
    kind, colon, name = text.partition(":")
    if kind != _USER or not colon or not name:
        misused(f"{text!r} is nobody: write User:NAME")
    return kind, name


def _period(option: str, text: str | None, default: int) -> int:
    if text is None:
        return default
    found = parse_period(text)
    if found is None or found <= 0:
        misused(f"{option} {text}: write a period as 30m, 12h or 7d")
    return found


def _hmac(target: Target, token: str) -> bytes:
    """Of a token that is named by its id: whoever may see the token is told."""
    if _is_hmac(token):
        return base64.b64decode(token)
    found = [bytes(each.hmac) for each in _tokens(target, None) if each.token_id == token]
    if not found:
        _tell_refusal(_NOT_FOUND, token)
    return found[0]


def _is_hmac(token: str) -> bool:
    try:
        return len(base64.b64decode(token, validate=True)) == 64
    except (binascii.Error, ValueError):
        return False


def _named(token: str) -> str:
    """What may be printed: not the password."""
    return "the token" if _is_hmac(token) else token


def _refused(code: int, what: str) -> None:
    if code:
        _tell_refusal(code, _named(what))


def _tell_refusal(code: int, what: str) -> NoReturn:
    from moldau.client.connection import BrokerError

    if code in _ADVICE:
        message, exit_code = _ADVICE[code]
        fail(f"{what}: {message}", exit_code)
    raise BrokerError(code, what)


def _properties(used: dict[str, str], row: dict[str, Any]) -> list[str]:
    """The settings that reached the cluster, with the token in the place of the login."""
    kept = {name: value for name, value in used.items() if not name.startswith(("sasl.", "ssl.key"))}
    if not kept.get("security.protocol", "").startswith("SASL"):
        kept["security.protocol"] = "SASL_SSL"
    jaas = f'{_SCRAM} required username="{row["token"]}" password="{row["hmac"]}" tokenauth="true";'
    kept |= {"sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": jaas}
    return [f"{name}={value}" for name, value in kept.items()]
