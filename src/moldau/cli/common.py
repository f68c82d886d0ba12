"""What the client commands share: the bootstrap option, a quiet client, and errors people can act on."""

from __future__ import annotations

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


@contextmanager
def kafka_errors(bootstrap_server: str) -> Iterator[None]:
    """Turn a client's exception into one line that says what to do."""
    from confluent_kafka import KafkaError, KafkaException

    try:
        yield
    except KafkaException as error:
        cause = error.args[0]
        if isinstance(cause, KafkaError) and cause.code() in (
            KafkaError._TRANSPORT,
            KafkaError._TIMED_OUT,
            KafkaError._ALL_BROKERS_DOWN,
        ):
            fail(f"no broker answers at {bootstrap_server}: is it running? (`moldau serve` starts one)")
        fail(cause.str() if isinstance(cause, KafkaError) else str(error))
