"""A cluster that goes away while a command talks to it, and comes back: told once each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from moldau.cli.failure import tell

if TYPE_CHECKING:
    from confluent_kafka import KafkaError


SILENCE_MS = 10_000
"""A broker that hangs keeps its connections: after so long without an answer it counts as away, not after a minute."""


class Outage:
    """Tells once that no broker answers, and once that one does again. `on_error` is librdkafka's `error_cb`.

    librdkafka calls a broker down whose connection has ended, also if that was for being idle: whether somebody still
    replies is looked at before anything is told.
    """

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._is_on = False
        self._is_suspected = False

    def settings(self, given: Mapping[str, str]) -> dict[str, Any]:
        """What librdkafka has to know, unless somebody said it."""
        is_said = "request.timeout.ms" in given or "socket.timeout.ms" in given
        return {"error_cb": self.on_error} | ({} if is_said else {"socket.timeout.ms": SILENCE_MS})

    def on_error(self, error: KafkaError) -> None:
        if self._is_on:
            return
        code = error.code()
        if code == error._ALL_BROKERS_DOWN or (code == error._TRANSPORT and self._is_suspected):
            # Told once by librdkafka: if it is still there now, a connection that fails later tells of its end.
            self._is_suspected = self._replies()
            self._is_on = not self._is_suspected
        else:
            # One that hangs times out, and may never count as down.
            self._is_on = code == error._TIMED_OUT
        if self._is_on:
            tell(f"no broker answers at {self._bootstrap_servers} any more; trying again")

    def is_over(self) -> None:
        """Something arrived."""
        self._is_suspected = False
        if self._is_on:
            self._is_on = False
            tell(f"{self._bootstrap_servers} answers again")

    def _replies(self) -> bool:
        from moldau.cli.target import addresses, replies

        return any(replies(*each) for each in addresses(self._bootstrap_servers))
