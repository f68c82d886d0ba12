"""What the client commands share: the bootstrap option, a quiet client, and errors people can act on."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import AdminClient

TIMEOUT_SECONDS = 15.0
_CONNECT_SECONDS = 5.0
_DEFAULT_PORT = 9092  # librdkafka's own, for an address without one

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


def listens(address: str) -> bool:
    """Whether somebody accepts connections there. The client itself would try for a long time."""
    place = address.rpartition("://")[2]
    host, colon, port = place.rpartition(":")
    if not colon or place.endswith("]"):
        host, port = place, str(_DEFAULT_PORT)
    if not host or not port.isdecimal():
        return True  # the client says what is wrong
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except (OSError, OverflowError, UnicodeError):
        return False
    return True


class Outage:
    """Tells once that no broker answers, and once that one does again. `on_error` is librdkafka's `error_cb`."""

    def __init__(self, bootstrap_server: str) -> None:
        self._bootstrap_server = bootstrap_server
        self._is_on = False

    def on_error(self, error: KafkaError) -> None:
        if error.code() == error._ALL_BROKERS_DOWN and not self._is_on:
            self._is_on = True
            typer.echo(f"moldau: no broker answers at {self._bootstrap_server} any more; trying again", err=True)

    def is_over(self) -> None:
        """Something arrived."""
        if self._is_on:
            self._is_on = False
            typer.echo(f"moldau: {self._bootstrap_server} answers again", err=True)


@contextmanager
def kafka_errors(bootstrap_server: str) -> Iterator[None]:
    """Turn a client's exception into one line that says what to do; where nobody listens, say so at once."""
    from confluent_kafka import KafkaError, KafkaException

    if not any(listens(each.strip()) for each in bootstrap_server.split(",")):
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
