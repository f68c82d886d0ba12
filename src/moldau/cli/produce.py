"""`moldau produce TOPIC`: lines from standard input become records."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from moldau.cli.common import Outage
from moldau.cli.failure import fail, misused
from moldau.cli.frame import Commands, Target

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer


app = Commands()


class _BadLine(Exception):
    """A line that cannot be a record; what was read before it is sent all the same."""


@app.command()
def produce(
    target: Target,
    topic: Annotated[str, typer.Argument(help="The topic to write to.")],
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-k", metavar="TEXT", help="What stands between key and value.")
    ] = None,
    compression: Annotated[str, typer.Option("--compression", "-z", help="none, gzip, snappy, lz4 or zstd.")] = "none",
    acks: Annotated[str, typer.Option("--acks", help="0, 1 or all.")] = "all",
) -> None:
    """Send each line of standard input as a record. Says how many arrived; fails if any did not."""
    if key_separator == "":
        misused("--key-separator is empty: give the text between key and value, for example ':'")
    outage = Outage(target.bootstrap_servers)
    delivery = _Delivery(outage)
    bad_line: _BadLine | None = None
    settings = {"acks": acks, "compression.type": compression, "linger.ms": 5, "message.timeout.ms": 15_000}
    # A cluster that creates topics by itself takes a moment; without that, a missing one is reported soon.
    settings |= {"topic.metadata.propagation.max.ms": 5_000, "error_cb": outage.on_error}
    producer = target.producer(**settings)
    try:
        for key, value in _records(sys.stdin.buffer, key_separator):
            _send(producer, topic, key, value, delivery)
    except _BadLine as error:
        bad_line = error
    finally:
        producer.flush()
    typer.echo(f"{delivery.sent} records to {topic}", err=True)
    if delivery.failed:
        fail(f"{delivery.failed} of {delivery.sent + delivery.failed} records were not delivered: {delivery.reason}")
    if bad_line is not None:
        fail(f"{bad_line}; the lines before it were sent, nothing from it on")


class _Delivery:
    """What became of the records so far."""

    def __init__(self, outage: Outage) -> None:
        self._outage = outage
        self.sent = self.failed = 0
        self.reason = ""

    def on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.sent += 1
            self._outage.is_over()
        else:
            self.failed += 1
            self.reason = error.str()


def _send(producer: Producer, topic: str, key: bytes | None, value: bytes, delivery: _Delivery) -> None:
    while True:
        try:
            producer.produce(topic, value, key, on_delivery=delivery.on_delivery)
            break
        except BufferError:
            producer.poll(0.1)
    producer.poll(0)


def _records(lines: Iterable[bytes], separator: str | None) -> Iterator[tuple[bytes | None, bytes]]:
    """Key and value of each line; _BadLine names the first that has none."""
    for number, raw in enumerate(lines, start=1):
        line = raw.rstrip(b"\n")
        if separator is None:
            yield None, line
            continue
        key, found, value = line.partition(separator.encode())
        if not found:
            raise _BadLine(f"line {number} has no key separator {separator!r}: {_shortened(line)}")
        yield key, value


def _shortened(line: bytes, length_max: int = 80) -> str:
    text = line.decode(errors="replace")
    return repr(text if len(text) <= length_max else text[:length_max] + "…")
