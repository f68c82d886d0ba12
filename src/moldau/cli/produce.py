"""`moldau produce TOPIC`: lines, JSON objects or whole files become records."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from moldau.cli.completing import complete_topics
from moldau.cli.delivery import Delivery, confirmed, serve_callbacks
from moldau.cli.failure import ExitCode, counted, fail, misused, tell
from moldau.cli.frame import Commands, Output, Target
from moldau.cli.harmless import is_text
from moldau.cli.outage import Outage
from moldau.cli.output import unescape
from moldau.cli.places import parse_time
from moldau.cli.record_forms import SHORT_NAMES, Form, Unfit, make_form
from moldau.cli.record_input import BadInput, chunks, paced, pieces
from moldau.cli.registry_target import registry_address

if TYPE_CHECKING:
    from confluent_kafka import Producer

app = Commands()

_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_INTERRUPTED = "interrupted"
_COMMIT_SECONDS = 30.0


@dataclass(slots=True, frozen=True)
class Record:
    """To be sent; `partition` -1 is the partitioner's choice, `timestamp_ms` 0 is now. `where` it was read."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int = -1
    timestamp_ms: int = 0
    where: str = ""


@app.command(
    raw=("key", "headers", "key_schema", "value_schema"),
    examples=(
        "produce orders --key-separator : < lines.txt",
        "produce orders --key alice --value-as json -H source=shop",
        "consume old -a -e --json | moldau produce new --json-input",
    ),
)
def produce(
    target: Target,
    output: Output,
    topic: Annotated[str, typer.Argument(help="The topic to write to.", autocompletion=complete_topics)],
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE]...", help="Read these instead of standard input.")
    ] = None,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-k", metavar="TEXT", help="What stands between key and value.")
    ] = None,
    separator: Annotated[
        str, typer.Option("--separator", "-s", metavar="TEXT", help="What stands between records.")
    ] = "\\n",
    json_lines: Annotated[
        bool, typer.Option("--json-input", "-j", help="Lines are objects, as `consume --json` writes them.")
    ] = False,
    whole: Annotated[bool, typer.Option("--whole", help="Each file is one record.")] = False,
    key: Annotated[str | None, typer.Option("--key", metavar="TEXT", help="The key of all records.")] = None,
    headers: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header of all records; may be repeated."),
    ] = None,
    partition: Annotated[int, typer.Option("--partition", "-p", min=-1, help="-1: by key, else any.")] = -1,
    timestamp: Annotated[
        str | None, typer.Option("--timestamp", "-t", metavar="TIME", help="Of all records: ISO time, ms, or -1h.")
    ] = None,
    key_as: Annotated[str, typer.Option("--key-as", metavar="FORM", help="How keys are written.")] = "text",
    value_as: Annotated[
        str, typer.Option("--value-as", metavar="FORM", help=f"How values are written: {', '.join(SHORT_NAMES)}.")
    ] = "text",
    key_schema: Annotated[str | None, typer.Option("--key-schema", metavar="FILE", help="Of Avro, Protobuf.")] = None,
    value_schema: Annotated[
        str | None,
        typer.Option("--value-schema", metavar="FILE", help="Avro's .avsc; Protobuf's FILE#package.Message."),
    ] = None,
    registry: Annotated[
        str | None,
        typer.Option("--registry", envvar="MOLDAU_REGISTRY", metavar="URL", help="Confluent's schema registry."),
    ] = None,
    null: Annotated[
        str | None,
        typer.Option("--null", "-Z", metavar="TEXT", help="A value that is this is a tombstone; '' for empty ones."),
    ] = None,
    compression: Annotated[str, typer.Option("--compression", "-z", help="none, gzip, snappy, lz4 or zstd.")] = "none",
    acks: Annotated[str, typer.Option("--acks", help="0, 1 or all.")] = "all",
    rate: Annotated[float | None, typer.Option("--rate", min=0.001, help="At most so many records a second.")] = None,
    transactional_id: Annotated[
        str | None, typer.Option("--transactional-id", metavar="ID", help="All records in one transaction, or none.")
    ] = None,
    transaction_every: Annotated[
        int | None, typer.Option("--transaction-every", metavar="N", min=1, help="A transaction for every N records.")
    ] = None,
) -> None:
    """Send each line of standard input as a record. Says how many arrived; fails if any did not."""
    if key_separator == "" or separator == "":
        misused("a separator is empty: give the text between key and value (-k ':'), or between records (-s '\\n')")
    if compression not in _CODECS:
        misused(f"--compression {compression}: choose one of {', '.join(_CODECS)}")
    if acks not in ("0", "1", "all", "-1"):
        misused(f"--acks {acks}: 0, 1 or all")
    if sum((json_lines, whole, key_separator is not None)) > 1:
        misused("--json-input, --whole and --key-separator: choose one")
    if whole and not files:
        misused("--whole needs files: moldau produce TOPIC --whole FILE...")
    if transaction_every is not None and transactional_id is None:
        misused("--transaction-every needs a --transactional-id")
    if transactional_id is not None and acks not in ("all", "-1"):
        misused("transactions need --acks all")
    known_registry = registry_address(registry, target.settings)
    reading = Reading(
        key_form=make_form(key_as, "key", topic, key_schema, known_registry),
        value_form=make_form(value_as, "value", topic, value_schema, known_registry),
        separator=unescape(separator).encode(),
        key_separator=None if key_separator is None else unescape(key_separator).encode(),
        null=None if null is None else null.encode(),
    )
    fixed = Record(
        None,
        None if key is None else reading.encoded(reading.key_form, key.encode(errors="surrogateescape"), "--key"),
        tuple(_header(each) for each in headers or ()),
        partition,
        0 if timestamp is None else parse_time(timestamp),
    )
    if partition >= 0:
        _require_partition(target, topic, partition)
    sources = [_opened(each) for each in files or ()] or [_standard_input()]
    outage = Outage(target.bootstrap_servers)
    delivery = Delivery(outage, output)
    settings: dict[str, Any] = {"acks": acks, "compression.type": compression, "linger.ms": 5}
    # A cluster that creates topics by itself takes a moment; without that, a missing one is reported soon.
    settings |= {"topic.metadata.propagation.max.ms": 5_000, "message.timeout.ms": 15_000}
    settings |= {"enable.idempotence": acks in ("all", "-1"), **outage.settings(target.settings), **delivery.settings()}
    if transactional_id is not None:
        settings |= {"transactional.id": transactional_id, "transaction.timeout.ms": 60_000}
    producer = target.producer(**{name: value for name, value in settings.items() if name not in target.settings})

    serve = partial(serve_callbacks, producer)
    records = _records(sources, reading, fixed, serve, json_lines=json_lines, whole=whole)
    records = paced(records, rate, serve)
    if transactional_id is None:
        stopped = _send_all(producer, topic, records, delivery)
        _report(producer, topic, delivery, acks, stopped)
    else:
        _send_in_transactions(producer, topic, records, delivery, transaction_every)


@dataclass(slots=True)
class Reading:
    key_form: Form
    value_form: Form
    separator: bytes
    key_separator: bytes | None
    null: bytes | None

    def encoded(self, form: Form, given: Any, where: str) -> bytes:
        try:
            return form.encode(given)
        except (Unfit, UnicodeEncodeError, RecursionError) as error:  # half a surrogate pair; `[[[[…` without end
            raise BadInput(f"{where}: {error}") from error


def _standard_input() -> tuple[str, IO[bytes]]:
    if sys.stdin.isatty():
        tell("reading lines from the terminal; Ctrl-D ends")
    return "", sys.stdin.buffer


def _opened(path: Path) -> tuple[str, IO[bytes]]:
    try:
        return str(path), path.open("rb")
    except OSError as error:
        misused(f"cannot read {path}: {error.strerror}")


def _header(text: str) -> tuple[str, bytes | None]:
    name, equals, value = text.partition("=")
    if not name:
        misused(f"--header {text}: give NAME=VALUE, or NAME alone for a header without a value")
    if not is_text(name):
        misused(f"--header {text}: the name is no UTF-8")
    return name, value.encode(errors="surrogateescape") if equals else None  # the bytes that were given


def _records(
    sources: Iterable[tuple[str, IO[bytes]]],
    reading: Reading,
    fixed: Record,
    meanwhile: Callable[[], object],
    *,
    json_lines: bool,
    whole: bool,
) -> Iterator[Record]:
    for name, source in sources:
        with source:
            if whole:
                value = b"".join(chunks(source, meanwhile))
                yield replace(fixed, value=reading.encoded(reading.value_form, value, name), where=name)
                continue
            for number, line in enumerate(pieces(chunks(source, meanwhile), reading.separator), start=1):
                where = f"{name + ', ' if name else ''}line {number}"
                if json_lines:
                    if line.strip():
                        yield _from_object(line, reading, fixed, where)
                else:
                    yield _from_line(line, reading, fixed, where)


def _from_line(line: bytes, reading: Reading, fixed: Record, where: str) -> Record:
    key = fixed.key
    if reading.key_separator is not None:
        raw, found, line = line.partition(reading.key_separator)
        if not found:
            raise BadInput(f"{where} has no key separator {reading.key_separator.decode()!r}: {_shortened(raw)}")
        key = reading.encoded(reading.key_form, raw, f"{where}, key")
    if reading.null is not None and line == reading.null:
        return replace(fixed, value=None, key=key, where=where)
    return replace(fixed, value=reading.encoded(reading.value_form, line, where), key=key, where=where)


def _from_object(line: bytes, reading: Reading, fixed: Record, where: str) -> Record:
    """As `consume --json` writes them; what is missing is taken from the options."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{where} is no JSON ({error}): {_shortened(line)}") from error
    if not isinstance(found, dict) or "value" not in found:
        raise BadInput(f'{where}: give an object with a "value" at least: {_shortened(line)}')
    try:
        key, value = found.get("key"), found["value"]
        given = found.get("headers") or []
        headers = tuple(
            (_header_name(name), None if each is None else _header_bytes(each))
            for name, each in (given.items() if isinstance(given, dict) else given)
        )
        partition = int(found.get("partition", -1)) if fixed.partition == -1 else fixed.partition
        timestamp = fixed.timestamp_ms or int(found.get("timestamp_ms") or 0)
    except (BadInput, Unfit, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise BadInput(f"{where}: {error}") from error
    return Record(
        None if value is None else reading.encoded(reading.value_form, value, where),
        fixed.key if key is None else reading.encoded(reading.key_form, key, f"{where}, key"),
        headers + fixed.headers,
        partition,
        timestamp,
        where,
    )


def _header_name(given: Any) -> str:
    name = str(given)
    if not is_text(name):
        # As the name of a header it would crash the client (2.16) and this process with it.
        raise BadInput(f"{json.dumps(name)} is no name of a header: it is no text")
    return name


def _header_bytes(value: Any) -> bytes:
    from moldau.cli.record_forms import _as_bytes

    return _as_bytes(value)


def _shortened(line: bytes, length_max: int = 80) -> str:
    text = line.decode(errors="replace")
    return repr(text if len(text) <= length_max else text[:length_max] + "…")


def _send_all(producer: Producer, topic: str, records: Iterable[Record], delivery: Delivery) -> str:
    """Hand over all records; why it stopped before the end, if it did."""
    from confluent_kafka import KafkaException

    try:
        for record in records:
            _send(producer, topic, record, delivery)
    except BadInput as error:
        return f"{error}; what came before it was sent, nothing from it on"
    except KafkaException as error:  # the client gave up: what it has taken still counts
        return f"{error.args[0].str()}; nothing was sent from there on"
    except KeyboardInterrupt:
        return _INTERRUPTED
    return ""


def _send(producer: Producer, topic: str, record: Record, delivery: Delivery) -> None:
    """Hand over one record. One that the client itself refuses is a bad line like any other."""
    from confluent_kafka import KafkaError, KafkaException

    while True:
        try:
            producer.produce(
                topic,
                record.value,
                record.key,
                partition=record.partition,
                headers=list(record.headers),
                timestamp=record.timestamp_ms,
                on_delivery=delivery.on_delivery,
            )
            break
        except BufferError:
            serve_callbacks(producer, 0.1)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.MSG_SIZE_TOO_LARGE:
                raise
            size = len(record.value or b"") + len(record.key or b"")
            advice = "more than the client sends; -X message.max.bytes=… lets it, and a topic's max.message.bytes"
            raise BadInput(f"{record.where} has {size} bytes, {advice}") from error
        except (ValueError, TypeError, OverflowError) as error:  # a number too large, for one
            raise BadInput(f"{record.where}: {error}") from error
    serve_callbacks(producer)


def _require_partition(target: Target, topic: str, partition: int) -> None:
    """Before anything is read. A topic that is not there may be made by the first record."""
    found = target.admin_client().list_topics(timeout=15).topics.get(topic)
    if found is not None and partition not in found.partitions:
        there = counted(len(found.partitions), "partition")
        fail(f"{topic} has {there}, and no {partition} (they are counted from 0)", ExitCode.NOT_FOUND)


def _report(producer: Producer, topic: str, delivery: Delivery, acks: str, stopped: str) -> None:
    try:
        delivery.finish(producer)
    except KeyboardInterrupt:
        stopped = _INTERRUPTED
    typer.echo(confirmed(delivery, topic, acks), err=True)
    if trouble := delivery.trouble():
        fail(trouble, ExitCode.INTERRUPTED if stopped == _INTERRUPTED else ExitCode.FAILED)
    if stopped == _INTERRUPTED:
        raise typer.Exit(ExitCode.INTERRUPTED)
    if stopped:
        fail(stopped)


def _send_in_transactions(
    producer: Producer, topic: str, records: Iterator[Record], delivery: Delivery, every: int | None
) -> None:
    """Each is committed when its last record is handed over; what goes wrong aborts the one that is open."""
    from itertools import islice

    from confluent_kafka import KafkaException

    producer.init_transactions(30)
    transactions = committed = 0
    is_committing = False
    try:
        while True:
            before = delivery.sent
            batch = islice(records, every)
            first = next(batch, None)
            if first is None:
                break
            producer.begin_transaction()
            _send(producer, topic, first, delivery)
            for record in batch:
                _send(producer, topic, record, delivery)
            delivery.finish(producer)
            if delivery.failed:
                raise BadInput(delivery.trouble())  # noqa: TRY301  the same end as for a bad line
            is_committing = True
            producer.commit_transaction(_COMMIT_SECONDS)
            is_committing = False
            transactions += 1
            committed += delivery.sent - before
    except (BadInput, KafkaException, KeyboardInterrupt) as error:
        fate = _aborted(producer, error, is_committing=is_committing)
        typer.echo(f"{counted(committed, 'record')} to {topic} in {counted(transactions, 'transaction')}", err=True)
        if isinstance(error, KeyboardInterrupt):
            fail(f"interrupted; {fate}", ExitCode.INTERRUPTED)
        fail(f"{error.args[0].str() if isinstance(error, KafkaException) else error}; {fate}")
    typer.echo(f"{counted(committed, 'record')} to {topic} in {counted(transactions, 'transaction')}", err=True)


def _aborted(producer: Producer, error: BaseException, *, is_committing: bool) -> str:
    """Abort the transaction that is open; what is known about it then."""
    from confluent_kafka import KafkaException

    if is_committing and not (isinstance(error, KafkaException) and error.args[0].txn_requires_abort()):
        return "it came while a transaction was committed: whether it was, is not known; look before sending it again"
    try:
        producer.abort_transaction(15)
    except KafkaException as other:
        why = other.args[0].str()
        return (
            f"the transaction it belongs to could not be aborted ({why}): its timeout ends it, and nothing of it counts"
        )
    return "the transaction it belongs to was aborted"
