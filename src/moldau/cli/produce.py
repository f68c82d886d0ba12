"""`moldau produce TOPIC`: lines from standard input become records."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from moldau.cli.common import DEFAULT_BOOTSTRAP_SERVER, BootstrapServer, client_settings, fail, kafka_errors

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message


def produce(
    topic: Annotated[str, typer.Argument(help="The topic to write to.")],
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-k", metavar="TEXT", help="What stands between key and value.")
    ] = None,
    compression: Annotated[str, typer.Option("--compression", "-z", help="none, gzip, snappy, lz4 or zstd.")] = "none",
    acks: Annotated[str, typer.Option("--acks", help="0, 1 or all.")] = "all",
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
) -> None:
    """Send each line of standard input as a record. Says how many arrived; fails if any did not."""
    from confluent_kafka import Producer

    sent = failed = 0
    reason = ""

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        nonlocal sent, failed, reason
        if error is None:
            sent += 1
        else:
            failed += 1
            reason = error.str()

    with kafka_errors(bootstrap_server):
        settings = client_settings(bootstrap_server, acks=acks, **{"compression.type": compression, "linger.ms": 5})
        settings["message.timeout.ms"] = 15_000
        # A cluster that creates topics by itself takes a moment; without that, a missing one is reported soon.
        settings["topic.metadata.propagation.max.ms"] = 5_000
        producer = Producer(settings)
        for line in sys.stdin.buffer:
            key, value = _split(line.rstrip(b"\n"), key_separator)
            while True:
                try:
                    producer.produce(topic, value, key, on_delivery=on_delivery)
                    break
                except BufferError:
                    producer.poll(0.1)
            producer.poll(0)
        producer.flush()
    if failed:
        fail(f"{failed} of {sent + failed} records were not delivered: {reason}")
    typer.echo(f"{sent} records to {topic}", err=True)


def _split(line: bytes, separator: str | None) -> tuple[bytes | None, bytes]:
    if separator is None:
        return None, line
    key, found, value = line.partition(separator.encode())
    if not found:
        fail(f"the line {line.decode(errors='replace')!r} has no key separator {separator!r}")
    return key, value
