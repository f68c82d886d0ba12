"""DataFrames into topics: what `df.write` and `df.writeStream` with `format("moldau")` do.

Start here, then `sink_columns` (which column is what), `producing` (how rows leave) and `transactions` (exactly-once).

`make_batch_writer` and `make_stream_writer` run on the driver and refuse what cannot work; `write` runs once per task
in a Python worker, on pickled writers. `commit` and `abort` of the driver decide nothing: with at-least-once delivery
a task is done when its records are acknowledged, with exactly-once when its own transaction is committed.
"""

import contextlib
import itertools
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from moldau.client.connection import Connection, Disconnected
from moldau.client.settings import ClientSettings
from moldau.spark import column_sender, column_transactions, transactions
from moldau.spark.kinds_of_session import ADAPTIVE_STREAMING, QUERY_ID, query_id
from moldau.spark.options import OptionError
from moldau.spark.producing import Sender, make_producer
from moldau.spark.row_transactions import RowWriting
from moldau.spark.sink_columns import check_columns, measure, read_rows
from moldau.spark.sink_options import Delivery, SinkOptions, sink_options
from moldau.spark.worker_process import keep_imports_out_of_collections

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_BATCH_ID = "streaming.sql.batchId"
_ADAPTIVE_SINCE = "4.3"


@dataclass
class Written(WriterCommitMessage):
    """What a task did. `group` names its marker, if it has one; `repeated` if it found its batch written before."""

    rows: int
    group: str | None = None
    repeated: bool = False


def make_batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> "BatchWriter":
    """For `df.write`: one job, whose failed tasks Spark repeats. A second job writes again, unless it has a batchId."""
    if overwrite:
        raise OptionError(
            "Save mode overwrite is not allowed for topics: records can only be appended, use mode('append')"
        )
    settings = _checked(options, schema)
    if settings.transactional_id_prefix is None:
        return BatchWriter(settings, schema, writer=str(uuid.uuid4()), batch_id=0, forgets=True)
    if settings.batch_id is None:
        raise OptionError(
            "Option transactionalIdPrefix needs batchId here, a number that grows with every write "
            "(in foreachBatch: its batch id); or leave both out"
        )
    return BatchWriter(settings, schema, settings.transactional_id_prefix, settings.batch_id, forgets=False)


def make_stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> "StreamWriter":
    """For `df.writeStream`: batches are numbered, and the last one is repeated after a restart."""
    del overwrite  # complete mode writes the whole result again; Spark's own sink does the same
    settings = _checked(options, schema)
    if settings.batch_id is not None:
        raise OptionError("Option batchId is for df.write: leave it out, a streaming query numbers its batches itself")
    return StreamWriter(settings, schema)


def foreach_batch(options: Mapping[str, str], checkpoint: str = "") -> "Callable[[DataFrame, int], None]":
    """For output mode update, in which Spark lets no Python sink take part; delivery is the same.

    counts.writeStream.outputMode("update").foreachBatch(foreach_batch({"topic": "counts", …})).start()

    Behind Spark Connect, exactly-once needs the query's `checkpoint` folder here (or a transactionalIdPrefix): nothing
    else tells there which query a batch belongs to.
    """
    settings = sink_options(options)

    def write(rows: "DataFrame", batch_id: int) -> None:
        named = {}
        if settings.delivery is Delivery.EXACTLY_ONCE:
            refuse_adaptive(rows.sparkSession.conf.get(ADAPTIVE_STREAMING, None))
            prefix = settings.transactional_id_prefix or query_id(rows, checkpoint)
            named = {"transactionalIdPrefix": prefix, "batchId": str(batch_id)}
        rows.write.format("moldau").options(**{**options, **named}).mode("append").save()

    return write


def _checked(options: Mapping[str, str], schema: StructType) -> SinkOptions:
    keep_imports_out_of_collections()
    settings = sink_options(options)
    check_columns(schema, settings.topic, structs=settings.value_format is not None)
    _register_schema(settings, schema)
    make_producer(settings.producer)  # librdkafka checks names and values, and connects to nothing in that time
    _check_login(settings.client)
    return settings


def _register_schema(settings: SinkOptions, schema: StructType) -> None:
    """A schema the registry refuses, as incompatible perhaps, is an error before anything is written.

    Asked once by each process, and not with the patience of tasks: the address may be wrong.
    """
    if settings.value_format is not None and settings.registry is not None:
        from moldau.spark.registry.formats import encoder_of_tasks

        hasty = replace(settings.registry, outage_s=0)
        encoder_of_tasks(settings.value_format, hasty, settings.subject, _value_type(schema).json())


def _value_type(schema: StructType) -> StructType:
    found = schema["value"].dataType
    assert isinstance(found, StructType), "checked before"
    return found


def _as_bytes(options: SinkOptions, schema: StructType, batches: Iterator[Any]) -> Iterator[Any]:
    if options.value_format is None or options.registry is None:
        return batches
    from moldau.spark.registry.columns import with_bytes

    return with_bytes(batches, options.value_format, options.registry, options.subject, _value_type(schema))


@lru_cache(maxsize=8)
def _check_login(settings: ClientSettings) -> None:
    """Refused credentials and certificates are an error at once: librdkafka would try again until its time is up.

    Asked once by each process. Brokers that do not answer are left to the tasks, which have more patience.
    """
    if settings.security.mechanism is None and not settings.security.tls:
        return
    for address in settings.bootstrap_servers:
        with contextlib.suppress(Disconnected):
            Connection(*address, replace(settings, connect_timeout_s=min(settings.connect_timeout_s, 3.0))).close()
            return


class BatchWriter(DataSourceArrowWriter):
    """One job. `writer` and `batch_id` say which one it is, to its own repeated tasks."""

    def __init__(self, options: SinkOptions, schema: StructType, writer: str, batch_id: int, *, forgets: bool) -> None:
        self._options = options
        self._schema = schema
        self._writer = writer
        self._batch_id = batch_id
        self._forgets = forgets  # nobody will repeat this job under the same name

    def write(self, iterator: Iterator[Any]) -> Written:
        keep_imports_out_of_collections()
        iterator = _as_bytes(self._options, self._schema, iterator)
        if self._options.delivery is Delivery.AT_LEAST_ONCE:
            return write_at_least_once(self._options, iterator)
        return write_exactly_once(self._options, self._writer, self._batch_id, _task().partitionId(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        groups = [each.group for each in messages if isinstance(each, Written) and each.group is not None]
        if self._forgets and groups:
            transactions.delete_markers(self._options, groups)


class StreamWriter(DataSourceStreamArrowWriter):
    """A streaming query; Spark tells its id and the number of the batch to each task."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def write(self, iterator: Iterator[Any]) -> Written:
        keep_imports_out_of_collections()
        iterator = _as_bytes(self._options, self._schema, iterator)
        if self._options.delivery is Delivery.AT_LEAST_ONCE:
            return write_at_least_once(self._options, iterator)
        task = _task()
        refuse_adaptive(task.getLocalProperty(ADAPTIVE_STREAMING))
        query, batch_id = task.getLocalProperty(QUERY_ID), task.getLocalProperty(_BATCH_ID)
        if query is None or batch_id is None:
            raise RuntimeError(
                "Spark did not tell the query and batch this task belongs to: exactly-once cannot be kept"
            )
        return write_exactly_once(self._options, query, int(batch_id), task.partitionId(), iterator)


def refuse_adaptive(setting: str | None, version: str = pyspark.__version__) -> None:
    """Spark hands its settings to tasks if they were set; this one is on by default since 4.3."""
    is_on = setting.lower() != "false" if setting is not None else version >= _ADAPTIVE_SINCE
    if is_on:
        raise OptionError(
            f"exactly-once needs {ADAPTIVE_STREAMING}=false: with it, a repeated batch may have other tasks than it "
            "had, and rows would be lost or doubled. Set it, or call moldau.spark.register(spark), which does"
        )


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise RuntimeError("write() was called outside a Spark task")
    return task


def write_at_least_once(options: SinkOptions, batches: Iterator[Any]) -> Written:
    """Send everything and wait for the acknowledgements. A repeated task sends again."""
    batches = (batch for batch in batches if batch.num_rows)
    first = next(batches, None)
    if first is None:
        return Written(0)
    batches = itertools.chain((first,), batches)
    columns = column_sender.opened(options, first)
    sent = 0
    if columns is not None:
        with columns:
            other = next((batch for batch in batches if not columns.send(batch)), None)
            columns.finish()
            sent = columns.rows
        if other is None:
            return Written(sent)
        batches = itertools.chain((other,), batches)
    sender = Sender(make_producer(options.producer), options.topic)
    for rows in read_rows(batches, options.topic):
        sender.send(rows)
    sender.finish()
    return Written(sent + sender.rows)


def write_exactly_once(
    options: SinkOptions, writer: str, batch_id: int, partition: int, batches: Iterator[Any]
) -> Written:
    """Send everything in one transaction, unless the marker says that it was done. See `transactions`."""
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        return Written(0)  # nothing to write, now or when repeated
    transaction = transactions.TaskTransaction(
        options,
        writer,
        partition,
        lambda name: column_transactions.chosen(options, name, first) or RowWriting(options, name),
    )
    # Opened after the first rows are there: what computes them may take longer than a transaction should.
    marker = transaction.open()
    batches = itertools.chain((first,), batches)
    with contextlib.closing(transaction):
        if marker is not None and transactions.is_written(marker, batch_id):
            if options.check_replay:
                _compare(marker, batches, transaction.transactional_id)
            return Written(0, transaction.group, repeated=True)
        transaction.begin()
        try:
            for batch in batches:
                transaction.send(batch)
            transaction.flush()
            rows = transaction.commit(batch_id)
        except BaseException:
            transaction.abort()
            raise
    return Written(rows, transaction.group)


def _compare(marker: transactions.Marker, batches: Iterator[Any], transactional_id: str) -> None:
    """The batch is there. Reading it again happens after a crash only, and shows whether it is still the same."""
    rows = size_bytes = 0
    for batch in batches:
        rows += batch.num_rows
        size_bytes += measure(batch)
    transactions.check_replay(marker, rows, size_bytes, transactional_id)
