"""What several commands share besides the frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from moldau.cli.failure import fail, tell
from moldau.cli.target import DEFAULT_BOOTSTRAP_SERVER

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

# For commands that stand outside of the frame.
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


class Outage:
    """Tells once that no broker answers, and once that one does again. `on_error` is librdkafka's `error_cb`."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._is_on = False

    def on_error(self, error: KafkaError) -> None:
        if error.code() == error._ALL_BROKERS_DOWN and not self._is_on:
            self._is_on = True
            tell(f"no broker answers at {self._bootstrap_servers} any more; trying again")

    def is_over(self) -> None:
        """Something arrived."""
        if self._is_on:
            self._is_on = False
            tell(f"{self._bootstrap_servers} answers again")


__all__ = ["DEFAULT_BOOTSTRAP_SERVER", "BootstrapServer", "Outage", "fail"]
