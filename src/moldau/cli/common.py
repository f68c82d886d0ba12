"""What the client commands share: the bootstrap option, a quiet client, and errors people can act on."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

TIMEOUT_SECONDS = 15.0

BootstrapServer = Annotated[
    str,
    typer.Option(
        "--bootstrap-server",
        "-b",
        envvar="MOLDAU_BOOTSTRAP_SERVER",
        metavar="HOST:PORT",
        help="Where the cluster is: Moldau or Apache Kafka.",
    ),
]
DEFAULT_BOOTSTRAP_SERVER = "127.0.0.1:9092"


def fail(message: str) -> NoReturn:
    typer.echo(f"moldau: {message}", err=True)
    raise typer.Exit(1)


def client_settings(bootstrap_server: str, **more: Any) -> dict[str, Any]:
    """librdkafka settings that keep its own log out of the terminal: errors come through calls."""
    return {"bootstrap.servers": bootstrap_server, "log_level": 0, "socket.connection.setup.timeout.ms": 5_000, **more}


def admin_client(bootstrap_server: str) -> AdminClient:
    from confluent_kafka.admin import AdminClient

    return AdminClient(client_settings(bootstrap_server))


def _fail_without_broker(bootstrap_server: str) -> NoReturn:
    fail(f"no broker answers at {bootstrap_server}: is it running? (`moldau serve` starts one)")


def _listens(address: str) -> bool:
    """Whether somebody accepts connections there. The client itself would try for a long time."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdecimal():
        return True  # the client knows defaults, and says what is wrong
    try:
        socket.create_connection((host.strip("[]"), int(port)), TIMEOUT_SECONDS).close()
    except OSError:
        return False
    return True


@contextmanager
def kafka_errors(bootstrap_server: str) -> Iterator[None]:
    """Turn a client's exception into one line that says what to do; where nobody listens, say so at once."""
    from confluent_kafka import KafkaError, KafkaException

    if not any(_listens(each.strip()) for each in bootstrap_server.split(",")):
        _fail_without_broker(bootstrap_server)
    try:
        yield
    except KafkaException as error:
        cause = error.args[0]
        if isinstance(cause, KafkaError) and cause.code() in (
            KafkaError._TRANSPORT,
            KafkaError._TIMED_OUT,
            KafkaError._ALL_BROKERS_DOWN,
        ):
            _fail_without_broker(bootstrap_server)
        fail(cause.str() if isinstance(cause, KafkaError) else str(error))
