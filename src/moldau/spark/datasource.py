"""The format "moldau", as Spark calls it: one class for reading and writing, in batches and as streams.

Spark pickles instances to its planners and executors; the class is found there by its name, so it stays importable,
and whatever an instance does is imported late: a sink does not pay for the source.
"""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

FORMAT = "moldau"


class MoldauDataSource(DataSource):
    """Topics of a Kafka cluster: `format("moldau")`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        from moldau.spark.options import ask_value_reader, source_schema

        reader = ask_value_reader(self.options)
        return source_schema(self.options, None if reader is None else reader.spark_type())

    def reader(self, schema: StructType) -> DataSourceReader:
        from moldau.spark.source import make_batch_reader

        return make_batch_reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        from moldau.spark.stream_source import make_stream_reader

        return make_stream_reader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from moldau.spark.sink import make_batch_writer

        return make_batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802  # Spark's name
        from moldau.spark.sink import make_stream_writer

        return make_stream_writer(self.options, schema, overwrite)
