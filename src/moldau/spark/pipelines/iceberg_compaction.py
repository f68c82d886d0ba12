"""Small files of an Iceberg table joined to larger ones: one commit that takes the old out and puts the new in.

Invariants: what a reader finds is the same before and after; rows are copied as a stream, so memory does not grow with
the table; files of different partitions are never joined. Somebody else's commit in between wins: then nothing is done,
and the files are joined another time.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from typing import Any

SMALL_BYTES = 32 << 20
_TARGET_BYTES = 128 << 20
_FILES_MIN = 2
_log = logging.getLogger(__name__)


def compact_iceberg(catalog: Any, name: str) -> int:
    """Join small files; how many went. Old snapshots, and the files they name, stay until they are expired."""
    from pyiceberg.exceptions import CommitFailedException
    from pyiceberg.io.pyarrow import parquet_file_to_data_file

    table = catalog.load_table(name)
    groups = list(_groups(table))
    if not groups:
        return 0
    try:
        with (
            table.transaction() as transaction,
            transaction.update_snapshot({"moldau.compacted": str(sum(map(len, groups)))}).overwrite() as change,
        ):
            for group in groups:
                path = _joined(table, group)
                change.append_data_file(parquet_file_to_data_file(table.io, table.metadata, path))
                for task in group:
                    change.delete_data_file(task.file)
    except CommitFailedException as refusal:
        _log.warning("the small files of %s stay for now: %s", name, refusal)
        return 0
    return sum(map(len, groups))


def _groups(table: Any) -> Iterator[list[Any]]:
    """Small files of one partition that make one file. Those with deletes are left to whoever deletes."""
    found: dict[tuple[Any, ...], list[Any]] = {}
    for task in table.scan().plan_files():
        file = task.file
        if file.file_size_in_bytes < SMALL_BYTES and not task.delete_files and file.spec_id == table.spec().spec_id:
            found.setdefault(tuple(file.partition[at] for at in range(len(table.spec().fields))), []).append(task)
    for tasks in found.values():
        group: list[Any] = []
        size = 0
        for task in tasks:
            group.append(task)
            size += task.file.file_size_in_bytes
            if size >= _TARGET_BYTES:
                yield group
                group, size = [], 0
        if len(group) >= _FILES_MIN:
            yield group


def _joined(table: Any, tasks: list[Any]) -> str:
    """A file with the rows of these, in the table's columns of today."""
    import pyarrow.parquet as pq
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow

    path = f"{table.location()}/data/joined-{uuid.uuid4()}.parquet"
    # Without ids of fields, as all files here: the table maps columns by their names.
    schema = schema_to_pyarrow(table.schema(), include_field_ids=False)
    scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
    with table.io.new_output(path).create() as stream, pq.ParquetWriter(stream, schema) as writer:
        for batch in scan.to_record_batches(tasks):
            writer.write_batch(batch.cast(schema))
    return path
