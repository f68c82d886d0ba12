"""Arrow columns as records."""

from typing import Any

import pyarrow as pa
import pytest

from moldau.spark.sink_columns import Rows, read_rows

PAIRS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def rows_of(option: str | None = "t", **columns: Any) -> Rows:
    (rows,) = read_rows(iter([pa.record_batch(columns)]), option)
    return rows


def test_text_is_utf8_and_null_stays_null() -> None:
    rows = rows_of(key=pa.array(["ä", None, ""]), value=pa.array([b"\0", None, b""]))
    assert rows.keys == ["ä".encode(), None, b""]
    assert rows.values == [b"\0", None, b""]
    assert (rows.count, rows.size_bytes) == (3, 3)


@pytest.mark.parametrize("kind", [pa.large_string(), pa.large_binary()])
def test_large_arrow_types_are_the_same(kind: Any) -> None:
    assert rows_of(value=pa.array([b"ab", None], pa.large_binary()).cast(kind)).values == [b"ab", None]


def test_columns_of_nothing_but_null_are_left_out() -> None:
    nothing = pa.array([None, None])
    rows = rows_of(
        key=nothing.cast(pa.binary()),
        value=pa.array(["a", "b"]),
        headers=nothing.cast(PAIRS),
        partition=nothing.cast(pa.int32()),
    )
    assert (rows.keys, rows.headers, rows.partitions, rows.topics) == (None, None, None, None)


def test_headers_are_shared_out_to_their_rows_also_in_a_slice() -> None:
    lists = [[("a", b"1"), ("b", None)], None, [], [("a", b"2")], [("c", b"3")]]
    headers = pa.array(
        [None if each is None else [{"key": k, "value": v} for k, v in each] for each in lists],
        PAIRS,
    )
    batch = pa.record_batch({"value": pa.array(["v"] * 5), "headers": headers})
    assert next(read_rows(iter([batch]), "t")).headers == lists
    assert next(read_rows(iter([batch.slice(1, 3)]), "t")).headers == lists[1:4]


def test_partitions_and_topics() -> None:
    rows = rows_of(
        None, value=pa.array(["a", "b"]), partition=pa.array([3, None], pa.int32()), topic=pa.array(["x", "y"])
    )
    assert rows.partitions == [3, None]
    assert rows.topics == ["x", "y"]


def test_the_topic_option_goes_before_the_column() -> None:
    assert rows_of("t", value=pa.array(["a"]), topic=pa.array([None], pa.string())).topics is None


def test_empty_batches_are_passed_over() -> None:
    empty = pa.record_batch({"value": pa.array([], pa.string())})
    assert [*read_rows(iter([empty, empty]), "t")] == []


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"topic": pa.array(["x", None])}, "null topic present in the data"),
        ({"partition": pa.array([-1, 0], pa.int32())}, "Invalid partition: -1"),
        ({"headers": pa.array([[None], []], PAIRS)}, "null header present"),
        ({"headers": pa.array([[{"key": None, "value": b"x"}], []], PAIRS)}, "null header key"),
    ],
)
def test_contents_that_cannot_be_written(columns: dict[str, Any], says: str) -> None:
    columns = {"topic": pa.array(["x", "x"]), **columns}
    with pytest.raises(ValueError, match=says):
        rows_of(None, value=pa.array(["a", "b"]), **columns)
