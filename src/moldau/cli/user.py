"""`moldau user`: who may log in with SCRAM, on any Kafka cluster. Passwords are asked for, never shown."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from moldau.cli.harmless import harmless_cell

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

app = typer.Typer(help="Users that log in with SCRAM: add, list, remove.", no_args_is_help=True)

_TIMEOUT_SECONDS = 15.0
_MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
Servers = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server", "-b", envvar="MOLDAU_BOOTSTRAP_SERVER", metavar="HOST:PORT", help="Where the cluster is."
    ),
]
Config = Annotated[
    str | None,
    typer.Option("--config", "-c", envvar="MOLDAU_CONFIG", metavar="FILE", help="A client.properties, as for Java."),
]
Name = Annotated[str, typer.Argument(metavar="USER")]
Mechanism = Annotated[
    list[str] | None, typer.Option("--mechanism", "-m", metavar="NAME", help="SCRAM-SHA-256 or -512; may be repeated.")
]


@app.command()
def add(
    user: Name,
    mechanism: Mechanism = None,
    iterations: Annotated[int, typer.Option("--iterations", min=4096, max=16384, help="Work per guess.")] = 8192,
    password_stdin: Annotated[
        bool, typer.Option("--password-stdin", help="Read the password from standard input, one line.")
    ] = False,
    bootstrap_server: Servers = None,
    config: Config = None,
) -> None:
    """Add a user, or give it a new password."""
    from confluent_kafka.admin import ScramCredentialInfo, UserScramCredentialUpsertion

    chosen = _mechanisms(mechanism or ["SCRAM-SHA-512"])
    password = _password(from_stdin=password_stdin)
    admin = _admin(bootstrap_server, config)
    for each in chosen:  # one request may name a user once
        change = UserScramCredentialUpsertion(user, ScramCredentialInfo(each, iterations), password.encode())
        _wait(admin.alter_user_scram_credentials([change]))
    typer.echo(f"{user}: password set for {', '.join(each.name.replace('_', '-') for each in chosen)}")


@app.command("list")
def list_users(bootstrap_server: Servers = None, config: Config = None) -> None:
    """Users and their mechanisms."""
    admin = _admin(bootstrap_server, config)  # kept: without it, nobody would wait for the answer
    found = admin.describe_user_scram_credentials()
    for name, description in sorted(_result(found).items()):
        infos = description.scram_credential_infos
        what = ", ".join(f"{each.mechanism.name.replace('_', '-')} ({each.iterations} iterations)" for each in infos)
        typer.echo(f"{harmless_cell(name)}\t{what}")


@app.command()
def remove(user: Name, mechanism: Mechanism = None, bootstrap_server: Servers = None, config: Config = None) -> None:
    """Take a user's password away; without --mechanism, of every mechanism it has."""
    from confluent_kafka.admin import UserScramCredentialDeletion

    admin = _admin(bootstrap_server, config)
    if mechanism:
        chosen = _mechanisms(mechanism)
    else:
        found: Any = admin.describe_user_scram_credentials([user])  # by user, if users are named
        chosen = [each.mechanism for each in _result(found[user]).scram_credential_infos]
    for each in chosen:
        _wait(admin.alter_user_scram_credentials([UserScramCredentialDeletion(user, each)]))
    typer.echo(f"{user}: removed. Connections it has stay until they end or must log in again")


def _mechanisms(names: list[str]) -> list[Any]:
    from confluent_kafka.admin import ScramMechanism

    for name in names:
        if name.upper() not in _MECHANISMS:
            _fail(f"--mechanism {name}: there are {' and '.join(_MECHANISMS)}")
    return [ScramMechanism[name.upper().replace("-", "_")] for name in dict.fromkeys(names)]


def _password(*, from_stdin: bool) -> str:
    if from_stdin:
        password = sys.stdin.readline().rstrip("\r\n")
    else:
        password = str(typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    if not password:
        _fail("the password is empty")
    return password


def _admin(bootstrap_server: str | None, config: str | None) -> AdminClient:
    from confluent_kafka.admin import AdminClient

    from moldau.broker.config import InvalidConfig, read_properties
    from moldau.client.security import SettingError, librdkafka_security

    try:
        given = read_properties(config) if config is not None else {}
        security = librdkafka_security(given)
    except (InvalidConfig, SettingError) as error:
        _fail(str(error))
    servers = bootstrap_server or given.get("bootstrap.servers") or "127.0.0.1:9092"
    return AdminClient({"bootstrap.servers": servers, "log_level": 0, **security})


def _wait(futures: dict[str, Any]) -> None:
    for each in futures.values():
        _result(each)


def _result(future: Any) -> Any:
    from confluent_kafka import KafkaError, KafkaException

    try:
        return future.result(_TIMEOUT_SECONDS)
    except TimeoutError:
        _fail("the cluster did not answer: is the address right, and does --config say how to log in?")
    except KafkaException as error:
        cause = error.args[0]
        _fail(cause.str() if isinstance(cause, KafkaError) else str(error))


def _fail(message: str) -> NoReturn:
    typer.echo(f"moldau: {message}", err=True)
    raise typer.Exit(1)
