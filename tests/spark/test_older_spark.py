"""What older versions of Spark lack is said, not stumbled over."""

import sys

import pytest
from pyspark.sql.types import StructType

from moldau.spark.datasource import MoldauDataSource


def test_spark_4_1_has_no_streams_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)
    monkeypatch.delitem(sys.modules, "moldau.spark.stream_source", raising=False)
    source = MoldauDataSource({"kafka.bootstrap.servers": "h:1", "subscribe": "t"})
    with pytest.raises(NotImplementedError, match=r"use Spark 4\.2 or newer"):
        source.streamReader(StructType())
    assert source.reader(source.schema()) is not None
