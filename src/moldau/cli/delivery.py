"""What became of records that `moldau produce` sent: confirmed, refused, never sent, or not known.

Invariant: "not delivered" is said only of what no broker can have. A record that was on its way when time ran out may
have arrived: its answer was lost, not the record.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from moldau.cli.failure import counted
from moldau.cli.outage import Outage
from moldau.cli.output import Output

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

_STATISTICS_MS = 500
_STATISTICS_SECONDS_MAX = 3.0
_FLUSH_SECONDS = 0.2  # Ctrl-C is heard in between
# Errors of brokers that say nothing about whether the record was written: unknown server error, request timed out,
# network exception, too few replicas *after* it was appended.
_SAY_NOTHING = frozenset({-1, 7, 13, 20})


def serve_callbacks(producer: Producer, seconds: float = 0.0) -> None:
    """Let librdkafka tell what became of records. Ctrl-C within a callback is Ctrl-C: confluent-kafka (2.16) loses what
    a signal raises there, and says that it returned without an exception."""
    try:
        producer.poll(seconds)
    except SystemError as lost:
        raise KeyboardInterrupt from lost


def still_out(producer: Producer) -> int:
    """How many records have no fate yet after a moment of flushing, which serves callbacks too."""
    try:
        return producer.flush(_FLUSH_SECONDS)
    except SystemError as lost:
        raise KeyboardInterrupt from lost


@dataclass(slots=True)
class Delivery:
    """What became of the records so far."""

    outage: Outage
    output: Output
    sent: int = 0
    refused: int = 0
    unconfirmed: int = 0
    reason: str = ""
    doubt: str = ""
    _transmitted: int = 0
    _statistics: int = 0
    _shows: bool = field(init=False)

    def __post_init__(self) -> None:
        self._shows = self.output.as_json or self.output.template is not None

    @property
    def failed(self) -> int:
        return self.refused + self.unconfirmed

    def settings(self) -> dict[str, Any]:
        """What librdkafka has to know: only its statistics tell whether anything was transmitted."""
        return {"statistics.interval.ms": _STATISTICS_MS, "stats_cb": self._on_statistics}

    def on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            if _was_refused(error):
                self.refused += 1
                self.reason = error.str()
            else:
                self.unconfirmed += 1
                self.doubt = error.str().removeprefix("Local: ")
            return
        self.sent += 1
        self.outage.is_over()
        if self._shows:
            place = {"topic": message.topic(), "partition": message.partition(), "offset": message.offset()}
            self.output.done("", place)

    def finish(self, producer: Producer) -> None:
        """Wait for every record's fate. A Ctrl-C in here gives up: what is still on its way is in doubt."""
        try:
            while still_out(producer):
                pass
        except KeyboardInterrupt:
            self.unconfirmed += len(producer)
            self.doubt = "interrupted"
            self._statistics = 0  # the last ones are not of now
            raise
        if not self.unconfirmed:
            return
        # The second report from now on is one of after the last record's end.
        enough, deadline = self._statistics + 2, time.monotonic() + _STATISTICS_SECONDS_MAX
        while self._statistics < enough and time.monotonic() < deadline:
            serve_callbacks(producer, 0.1)

    def trouble(self) -> str:
        """What to tell about records that are not known to be there; nothing if all are."""
        total = self.sent + self.failed
        told = []
        if self.refused:
            told.append(f"{self.refused} of {total} records were not delivered: {self.reason}")
        if self.unconfirmed:
            were = "was" if self.unconfirmed == 1 else "were"
            told.append(f"{self.unconfirmed} of {total} records {were} not confirmed ({self.doubt}): {self._known()}")
        return "; ".join(told)

    def _known(self) -> str:
        if not self._statistics:
            return "some may have arrived all the same"
        # Each retry counts as transmitted, so this many at most, and all others for certain never.
        perhaps = min(self.unconfirmed, max(self._transmitted - self.sent - self.refused, 0))
        never = self.unconfirmed - perhaps
        if not perhaps:
            return "never sent, so not delivered"
        if not never:
            return "sent, but it is not known what arrived; look before sending them again"
        return (
            f"{never} never sent, so not delivered; {perhaps} sent, but it is not known what arrived; "
            "look before sending them again"
        )

    def _on_statistics(self, text: str) -> None:
        self._transmitted = int(json.loads(text).get("txmsgs", 0))
        self._statistics += 1


def _was_refused(error: KafkaError) -> bool:
    """Whether no broker has it: one said no, or our client did not even send it."""
    code = error.code()
    if code > 0:
        return code not in _SAY_NOTHING
    return code in (error._UNKNOWN_TOPIC, error._UNKNOWN_PARTITION, error._AUTHENTICATION, error._INVALID_ARG)


def confirmed(delivery: Delivery, topic: str, acks: str) -> str:
    """The line at the end: with `acks=0` nobody confirms anything."""
    line = f"{counted(delivery.sent, 'record')} to {topic}"
    return f"{line} (sent; with --acks 0 no broker confirms any)" if acks == "0" and delivery.sent else line
