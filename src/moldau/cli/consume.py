"""`moldau consume TOPIC`: records become lines on standard output."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from moldau.cli.common import Outage
from moldau.cli.failure import ExitCode, fail
from moldau.cli.frame import Commands, Target
from moldau.cli.target import TIMEOUT_SECONDS

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message


app = Commands()


@app.command()
def consume(
    target: Target,
    topic: Annotated[str, typer.Argument(help="The topic to read.")],
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="From the first record, not the next.")
    ] = False,
    max_records: Annotated[
        int | None, typer.Option("--max", "-n", min=0, metavar="N", help="Stop after so many records.")
    ] = None,
    exit_at_end: Annotated[bool, typer.Option("--exit-at-end", "-e", help="Stop at the end of the topic.")] = False,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-k", metavar="TEXT", help="Show keys too, with this in between.")
    ] = None,
) -> None:
    """Show the records of a topic, one a line, until stopped. Joins no group and commits nothing."""
    outage = Outage(target.bootstrap_servers)
    consumer = target.consumer(**{"enable.partition.eof": True, "error_cb": outage.on_error})
    try:
        _show(consumer, topic, from_beginning, max_records, exit_at_end, key_separator, outage)
    except KeyboardInterrupt:
        pass
    finally:
        consumer.close()


def _show(
    consumer: Consumer,
    topic: str,
    from_beginning: bool,
    max_records: int | None,
    exit_at_end: bool,
    key_separator: str | None,
    outage: Outage,
) -> None:
    from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, TopicPartition

    found = consumer.list_topics(topic, timeout=TIMEOUT_SECONDS).topics[topic]
    if found.error is not None:
        fail(f"no such topic: {topic} (`moldau topic list` shows what there is)", ExitCode.NOT_FOUND)
    start = OFFSET_BEGINNING if from_beginning else OFFSET_END
    consumer.assign([TopicPartition(topic, index, start) for index in found.partitions])
    unfinished = set(found.partitions)
    shown = 0
    while max_records is None or shown < max_records:
        message = consumer.poll(0.2)
        if message is None:
            continue
        outage.is_over()
        error = message.error()
        if error is None:
            sys.stdout.buffer.write(_line(message, key_separator))
            sys.stdout.buffer.flush()
            shown += 1
        elif error.code() == KafkaError._PARTITION_EOF:
            unfinished.discard(message.partition())
            if exit_at_end and not unfinished:
                return
        else:
            fail(error.str())


def _line(message: Message, key_separator: str | None) -> bytes:
    value = message.value() or b""
    if key_separator is None:
        return value + b"\n"
    return (message.key() or b"") + key_separator.encode() + value + b"\n"
