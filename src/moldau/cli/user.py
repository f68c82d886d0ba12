"""`moldau user`: who may log in with SCRAM, on any Kafka cluster. Passwords are asked for, never shown."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moldau.cli.failure import ExitCode, fail, misused
from moldau.cli.frame import Commands, Output, Target
from moldau.cli.target import TIMEOUT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from confluent_kafka.admin import ScramMechanism

app = Commands(help="Users that log in with SCRAM: add, list, remove.")

_MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
Name = Annotated[str, typer.Argument(metavar="USER", help="Who logs in, without `User:`.")]
Mechanism = Annotated[
    list[str] | None, typer.Option("--mechanism", "-m", metavar="NAME", help="SCRAM-SHA-256 or -512; may be repeated.")
]


@app.command(changes=True)
def add(
    target: Target,
    output: Output,
    user: Name,
    mechanism: Mechanism = None,
    iterations: Annotated[int, typer.Option("--iterations", min=4096, max=16384, help="Work per guess.")] = 8192,
    password_stdin: Annotated[
        bool, typer.Option("--password-stdin", help="Read the password from standard input, one line.")
    ] = False,
) -> None:
    """Add a user, or give it a new password."""
    from confluent_kafka.admin import ScramCredentialInfo, UserScramCredentialUpsertion

    chosen = _mechanisms(mechanism or ["SCRAM-SHA-512"])
    password = _password(from_stdin=password_stdin)
    admin = target.admin_client()
    for each in chosen:  # one request may name a user once
        change = UserScramCredentialUpsertion(user, ScramCredentialInfo(each, iterations), password.encode())
        _wait(admin.alter_user_scram_credentials([change]))
    row = {"user": user, "mechanisms": _names(chosen), "iterations": iterations}
    output.done(f"{user}: password set for {', '.join(_names(chosen))}", row)


@app.command("list")
def list_users(target: Target, output: Output) -> None:
    """Users and their mechanisms."""
    admin = target.admin_client()  # kept: without it, nobody would wait for the answer
    found: Any = admin.describe_user_scram_credentials()
    rows = [
        {"user": name, "mechanism": _name(each.mechanism), "iterations": each.iterations}
        for name, description in sorted(found.result(TIMEOUT_SECONDS).items())
        for each in description.scram_credential_infos
    ]
    output.show(rows, empty="no users")


@app.command(changes=True)
def remove(target: Target, output: Output, user: Name, mechanism: Mechanism = None) -> None:
    """Take a user's password away; without --mechanism, of every mechanism it has."""
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import UserScramCredentialDeletion

    chosen = _mechanisms(mechanism or [])
    admin = target.admin_client()
    if not chosen:
        found: Any = admin.describe_user_scram_credentials([user])  # by user, if users are named
        try:
            chosen = [each.mechanism for each in found[user].result(TIMEOUT_SECONDS).scram_credential_infos]
        except KafkaException as error:
            if error.args[0].code() != KafkaError.RESOURCE_NOT_FOUND:
                raise
            fail(f"{user}: there is no such user", ExitCode.NOT_FOUND)
    for each in chosen:
        _wait(admin.alter_user_scram_credentials([UserScramCredentialDeletion(user, each)]))
    row = {"user": user, "mechanisms": _names(chosen)}
    output.done(f"{user}: removed. Connections it has stay until they end or must log in again", row)


def _mechanisms(names: Sequence[str]) -> list[ScramMechanism]:
    from confluent_kafka.admin import ScramMechanism

    for name in names:
        if name.upper() not in _MECHANISMS:
            misused(f"--mechanism {name}: there are {' and '.join(_MECHANISMS)}")
    return [ScramMechanism[each] for each in dict.fromkeys(name.upper().replace("-", "_") for name in names)]


def _name(mechanism: ScramMechanism) -> str:
    return str(mechanism.name).replace("_", "-")


def _names(mechanisms: Iterable[ScramMechanism]) -> list[str]:
    return [_name(each) for each in mechanisms]


def _password(*, from_stdin: bool) -> str:
    if from_stdin:
        password = sys.stdin.readline().rstrip("\r\n")
    else:
        password = str(typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    if not password:
        misused("the password is empty")
    return password


def _wait(futures: dict[str, Any]) -> None:
    for each in futures.values():
        each.result(TIMEOUT_SECONDS)
