"""The change feed of a Delta table as a stream, without a jar: inserts, updates and deletes, commit by commit.

The offset is the last version read. A version is a commit and does not change, so a replay reads the same rows. Commits
that only join small files change nothing, and show nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from moldau.spark.pipelines.idle_pause import IdlePause
from moldau.spark.read_limits import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

FORMAT = "moldau-delta-changes"
# What a row tells about its change, beside `_change_type`; Delta's names.
_VERSION, _AT = "_commit_version", "_commit_timestamp"
_ENABLED = "delta.enableChangeDataFeed"


class DeltaChangesDataSource(DataSource):
    """`format("moldau-delta-changes")`: options path, start (a version, or latest), commits (of a batch)."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return schema_of(self.options["path"])

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return _ChangesReader(self.options, schema)


def schema_of(path: str) -> StructType:
    """The table's columns and those that tell about the change."""
    from pyspark.sql.pandas.types import from_arrow_schema

    table = _table(path)
    if table.metadata().configuration.get(_ENABLED, "").lower() != "true":
        raise ValueError(
            f"the Delta table {path} keeps no changes: set its property {_ENABLED}=true; changes can be read from the "
            "commit on that does so"
        )
    version = table.version()
    feed = table.load_cdf(starting_version=version, ending_version=version)
    found: StructType = from_arrow_schema(_arrow(feed).schema)
    return found


def _table(path: str) -> Any:
    from deltalake import DeltaTable

    return DeltaTable(path)


def _arrow(feed: Any) -> Any:
    """A stream of Arrow batches, in types that Spark takes."""
    import pyarrow as pa

    reader = pa.RecordBatchReader.from_stream(feed)
    schema = pa.schema([_plain(field) for field in reader.schema])
    return pa.RecordBatchReader.from_batches(schema, (_cast(batch, schema) for batch in reader))


def _plain(field: Any) -> Any:
    """Arrow has several ways to keep text and bytes, and numbers without a sign. Delta's times are UTC."""
    import pyarrow as pa

    if field.name == _VERSION:
        return field.with_type(pa.int64())
    if field.name == _AT:
        return field.with_type(pa.timestamp("us", "UTC"))
    if pa.types.is_string_view(field.type) or pa.types.is_large_string(field.type):
        return field.with_type(pa.string())
    if pa.types.is_binary_view(field.type) or pa.types.is_large_binary(field.type):
        return field.with_type(pa.binary())
    return field


def _cast(batch: Any, schema: Any) -> Any:
    """In the columns asked for: one the table did not have yet is null."""
    import pyarrow as pa

    names = set(batch.schema.names)
    columns = [
        batch.column(field.name).cast(field.type) if field.name in names else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class _Versions(InputPartition):
    def __init__(self, first: int, last: int) -> None:
        super().__init__((first, last))
        self.first, self.last = first, last


class _ChangesReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are {"version": n}: the last one read; -1 before the first."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options, self._schema = dict(options), schema
        self._last: int | None = None
        self._pause = IdlePause()

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        start = self._options.get("start", "0")
        return {"version": self._newest() if start == "latest" else int(start) - 1}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._last = self._newest()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802 - Spark's name
        if self._last is None:
            self._pause.before_asking()
        newest = self._last if self._last is not None else self._newest()
        if newest <= start["version"]:
            self._pause.nothing_new()
        return {"version": max(start["version"], min(newest, start["version"] + int(self._options["commits"])))}

    def _newest(self) -> int:
        version: int = _table(self._options["path"]).version()
        return version

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [_Versions(start["version"] + 1, end["version"])] if end["version"] > start["version"] else []

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Commit by commit: in their order, and one of them at a time in memory, batch by batch."""
        from moldau.spark.arrow_types import arrow_schema_of

        assert isinstance(partition, _Versions)
        wanted = arrow_schema_of(self._schema)
        table = _table(self._options["path"])
        for version in range(partition.first, partition.last + 1):
            try:
                feed = table.load_cdf(starting_version=version, ending_version=version)
            except Exception as error:
                raise ValueError(
                    f"the changes of version {version} of {self._options['path']} cannot be read ({error}): the table "
                    f"has been cleaned, or {_ENABLED} was set later. `start:` names a later version; a new checkpoint "
                    "begins there"
                ) from error
            for batch in _arrow(feed):
                yield _cast(batch, wanted)

    def commit(self, end: dict[str, int]) -> None:
        """The table keeps its log for itself."""
