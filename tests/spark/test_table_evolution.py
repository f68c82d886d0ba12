"""Tables whose records change: fields of any name, wider numbers, others who write at the same time."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from moldau.spark.pipelines import database_sink, evolution, tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EXTRA = "id long, _extra map<string,string>"
PLACED = "id long, _topic string, _partition int, _offset long"
NO_NAMES = {"": "a", "b`c": "d", "e.f": "g", "n\nl": "h", "x" * 300: "i"}


class Table:
    """One of either kind."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.path = str(folder / "t")
        self.catalog = tables.iceberg_catalog(str(folder / "w"), {}) if kind == "iceberg" else None

    def append(self, rows: "DataFrame", batch_id: int, app_id: str = "q", **more: Any) -> int | None:
        if self.catalog is None:
            return tables.append_to_delta(rows, self.path, app_id=app_id, batch_id=batch_id, **more)
        return tables.append_to_iceberg(rows, self.catalog, "d.t", app_id=app_id, batch_id=batch_id, **more)

    def rows(self) -> list[dict[str, Any]]:
        return delta_rows(self.path) if self.catalog is None else iceberg_rows(self.catalog, "d.t")


def delta_rows(path: str) -> list[dict[str, Any]]:
    from deltalake import DeltaTable

    return sorted(DeltaTable(path).to_pyarrow_table().to_pylist(), key=lambda row: row["id"])


def iceberg_rows(catalog: Any, name: str) -> list[dict[str, Any]]:
    return sorted(catalog.load_table(name).scan().to_arrow().to_pylist(), key=lambda row: row["id"])


def hostile(spark: "SparkSession") -> list["DataFrame"]:
    """Two batches of records whose fields have the names they like."""
    first = {"Foo": "a", "foo": "b", "ID": "9", "_topic": "no place", "a b": "c", **NO_NAMES}
    second = {"FOO": "later", "A B": "d"}
    return [
        spark.createDataFrame([(1, first), (None, {"ID": "2"})], EXTRA),
        spark.createDataFrame([(3, second)], EXTRA),
    ]


def check_hostile(rows: list[dict[str, Any]]) -> None:
    assert [(row["id"], row["Foo"], row["a b"]) for row in rows] == [(1, "a", "c"), (2, None, None), (3, "later", "d")]
    assert json.loads(rows[0]["_more"]) == {**NO_NAMES, "_topic": "no place", "foo": "b", "ID": "9"}
    assert [row["_more"] for row in rows[1:]] == [None, None]
    assert set(rows[0]) == {"id", "Foo", "a b", "_more"}


def test_no_name_of_a_field_stops_delta(spark: "SparkSession", tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    for number, rows in enumerate(hostile(spark)):
        tables.append_to_delta(rows, path, app_id="q", batch_id=number)
    check_hostile(delta_rows(path))


def test_no_name_of_a_field_stops_iceberg(spark: "SparkSession", tmp_path: Path) -> None:
    catalog = tables.iceberg_catalog(str(tmp_path / "w"), {})
    for number, rows in enumerate(hostile(spark)):
        tables.append_to_iceberg(rows, catalog, "d.t", app_id="q", batch_id=number)
    check_hostile(iceberg_rows(catalog, "d.t"))


def test_no_name_of_a_field_stops_a_database(spark: "SparkSession", tmp_path: Path) -> None:
    from sqlalchemy import create_engine, text

    engine = create_engine(f"sqlite:///{tmp_path}/db")
    for number, rows in enumerate(hostile(spark)):
        database_sink.write_batch(rows, engine, "t", app_id="q", batch_id=number)
    long = spark.createDataFrame([(4, {"y" * 64: "longer than PostgreSQL's names"})], EXTRA)
    database_sink.write_batch(long, engine, "t", app_id="q", batch_id=2)
    with engine.connect() as connection:
        found = [dict(row._mapping) for row in connection.execute(text("SELECT * FROM t ORDER BY id"))]
    check_hostile(found[:3])
    assert json.loads(found[3]["_more"]) == {"y" * 64: "longer than PostgreSQL's names"}


def test_fields_called_as_our_own_columns_stop_nothing(spark: "SparkSession", tmp_path: Path) -> None:
    fields = {"_extra": "a", "_EXTRA": "b", "_more": "c", "_More": "d", "_moldau_delete": "e"}
    path = str(tmp_path / "t")
    rows = spark.createDataFrame([(1, fields)], EXTRA)
    tables.append_to_delta(rows, path, app_id="q", batch_id=0)
    (found,) = delta_rows(path)
    assert set(found) == {"id", "_more"}
    assert json.loads(found["_more"]) == fields


def test_names_that_only_java_takes_for_one_take_no_column_away(spark: "SparkSession", tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    others = {"\u0130d": "capital i with a dot", "na\u017fe": "long s", "ad\u0131": "1", "adi": "2", "stra\u00dfe": "3"}
    rows = spark.createDataFrame(
        [(1, "kept", {**others, "strasse": "4"})], "id long, nase string, _extra map<string,string>"
    )
    tables.append_to_delta(rows, path, app_id="q", batch_id=0)
    (found,) = delta_rows(path)
    assert (found["id"], found["nase"], found["adi"]) == (1, "kept", "2")
    assert (found["stra\u00dfe"], found["strasse"]) == ("3", "4")
    assert json.loads(found["_more"]) == {name: others[name] for name in ("\u0130d", "na\u017fe", "ad\u0131")}


def test_a_text_that_fits_no_column_is_kept(spark: "SparkSession", tmp_path: Path) -> None:
    """Nested columns, of the rows and of the table, and numbers."""
    path = str(tmp_path / "t")
    schema = "id long, item struct<a:int>"
    first = spark.createDataFrame([(1, (2,), ["x"], 3, True)], f"{schema}, tags array<string>, n int, b boolean")
    tables.append_to_delta(first, path, app_id="q", batch_id=0)
    fields = {"Item": "{}", "tags": "[1]", "n": "many", "b": None}
    rows = spark.createDataFrame([(2, (5,), fields), (3, None, {"N": "7"})], f"{schema}, _extra map<string,string>")
    tables.append_to_delta(rows, path, app_id="q", batch_id=1)
    found = delta_rows(path)[1:]
    assert [(row["item"], row["tags"], row["n"], row["b"]) for row in found] == [
        ({"a": 5}, None, None, None),
        (None, None, 7, None),
    ]
    assert json.loads(found[0]["_more"]) == {"Item": "{}", "tags": "[1]", "n": "many"}
    assert found[1]["_more"] is None
    catalog = tables.iceberg_catalog(str(tmp_path / "w"), {})
    tables.append_to_iceberg(first, catalog, "d.t", app_id="q", batch_id=0)
    tables.append_to_iceberg(rows, catalog, "d.t", app_id="q", batch_id=1)
    assert iceberg_rows(catalog, "d.t")[1:] == found


def test_what_fits_makes_no_column_for_the_rest(spark: "SparkSession", tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    tables.append_to_delta(spark.createDataFrame([(1, 3)], "id long, n int"), path, app_id="q", batch_id=0)
    rows = spark.createDataFrame([(None, {"ID": "2", "n": "4", "a": "x"}), (3, {"A": "y", "n": None})], EXTRA)
    tables.append_to_delta(rows, path, app_id="q", batch_id=1)
    assert [(row["id"], row["n"], row["A"]) for row in delta_rows(path)] == [(1, 3, None), (2, 4, "x"), (3, None, "y")]
    assert set(delta_rows(path)[0]) == {"id", "n", "A"}


def test_names_too_long_for_a_column_are_not_gathered(spark: "SparkSession") -> None:
    rows = spark.createDataFrame([(1, {"x" * 300: "a", "y" * 300: "b", "z": "c"})], EXTRA)
    assert evolution._keys(rows, evolution.NAME_BYTES_MAX) == ["", "z"]


def test_a_field_called_as_a_folder_keeps_its_values(spark: "SparkSession", tmp_path: Path) -> None:
    catalog = tables.iceberg_catalog(str(tmp_path / "w"), {})
    rows = spark.createDataFrame([(1, {"day": "x", "By_Day": "mine", "by__day": "too"})], EXTRA)
    tables.append_to_iceberg(rows, catalog, "d.t", app_id="q", batch_id=0, partition_by=("day",))
    assert iceberg_rows(catalog, "d.t") == [{"id": 1, "By_Day": "mine", "by__day": "too", "day": "x"}]


def test_a_database_keeps_what_does_not_fit_its_columns(spark: "SparkSession", tmp_path: Path) -> None:
    from sqlalchemy import create_engine, text

    engine = create_engine(f"sqlite:///{tmp_path}/db")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE t (id BIGINT PRIMARY KEY, at DATETIME, n INTEGER)"))
    first = {"at": "soon", "n": "99999999999", "_moldau_delete": "yes"}
    rows = spark.createDataFrame([(1, first), (2, {"at": "2024-01-02T03:04:05Z", "n": "7"})], EXTRA)
    database_sink.write_batch(rows, engine, "t", app_id="q", batch_id=0, key=("id",), delete_when="id > 5")
    with engine.connect() as connection:
        found = [tuple(row) for row in connection.execute(text("SELECT id, at, n, _more FROM t ORDER BY id"))]
    assert found[0][:3] == (1, None, None)
    assert json.loads(found[0][3]) == first
    assert found[1] == (2, "2024-01-02 03:04:05.000000", 7, None)


def test_tables_of_rows_without_places_are_not_searched_for_offsets(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would read all commits there are, with each batch."""
    monkeypatch.setattr(tables, "delta_offsets", lambda *_: pytest.fail("it looked for them"))
    path = str(tmp_path / "t")
    for number in range(2):
        tables.append_to_delta(spark.createDataFrame([(number,)], "id long"), path, app_id="q", batch_id=number)


def test_fields_without_end_become_one_column(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evolution, "COLUMNS_MAX", 4)
    path = str(tmp_path / "t")
    for number in range(3):
        fields = {f"f{number}{each}": str(each) for each in range(2)}
        tables.append_to_delta(
            spark.createDataFrame([(number, {**fields, "f00": "x"})], EXTRA), path, app_id="q", batch_id=number
        )
    rows = delta_rows(path)
    assert set(rows[0]) == {"id", "f00", "f01", "f10", "_more"}
    assert [row["f00"] for row in rows] == ["x"] * 3
    assert [json.loads(row["_more"] or "{}") for row in rows] == [{}, {"f11": "1"}, {"f20": "0", "f21": "1"}]


def test_iceberg_tables_grow_wider_and_stay_so(spark: "SparkSession", tmp_path: Path) -> None:
    catalog = tables.iceberg_catalog(str(tmp_path / "w"), {})
    one = spark.createDataFrame([(1, 1.5, (1,))], "id int, x float, s struct<a int>")
    wider = spark.createDataFrame([(1 << 40, 1e300, (1, 2))], "id long, x double, s struct<a int, b int>")
    for number, rows in enumerate([one, wider, one]):
        tables.append_to_iceberg(rows, catalog, "d.t", app_id="q", batch_id=number)
    found = iceberg_rows(catalog, "d.t")
    assert [(row["id"], row["x"], row["s"]["b"]) for row in found] == [(1, 1.5, None)] * 2 + [(1 << 40, 1e300, 2)]
    with pytest.raises(tables.TableError, match=r"do not fit the table d.t.*cast the column in a step"):
        tables.append_to_iceberg(spark.createDataFrame([("x",)], "id string"), catalog, "d.t", app_id="q", batch_id=3)


def test_narrower_numbers_fit_tables_as_they_are(spark: "SparkSession", tmp_path: Path) -> None:
    path, catalog = str(tmp_path / "t"), tables.iceberg_catalog(str(tmp_path / "w"), {})
    wide = spark.createDataFrame([(1 << 40, 1e300)], "id long, x double").selectExpr("*", "CAST(1.5 AS DECIMAL(9,2)) d")
    narrow = spark.createDataFrame([(1, 1.5)], "id int, x float").selectExpr("*", "CAST(2.5 AS DECIMAL(5,1)) d")
    for number, rows in enumerate([wide, narrow]):
        tables.append_to_delta(rows, path, app_id="q", batch_id=number)
        tables.append_to_iceberg(rows, catalog, "d.t", app_id="q", batch_id=number)
    for found in (delta_rows(path), iceberg_rows(catalog, "d.t")):
        assert [(row["id"], row["x"], float(row["d"])) for row in found] == [(1, 1.5, 2.5), (1 << 40, 1e300, 1.5)]
    with pytest.raises(tables.TableError, match=r"'id' is string in the pipeline and long in the table"):
        tables.append_to_delta(spark.createDataFrame([("x",)], "id string"), path, app_id="q", batch_id=2)


def test_structs_of_delta_tables_gain_fields(spark: "SparkSession", tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    tables.append_to_delta(spark.createDataFrame([(1, (1,))], "id int, s struct<a int>"), path, app_id="q", batch_id=0)
    more = spark.createDataFrame([(2, (1, 2))], "id int, s struct<a int, b int>")
    tables.append_to_delta(more, path, app_id="q", batch_id=1)
    assert [row["s"] for row in delta_rows(path)] == [{"a": 1, "b": None}, {"a": 1, "b": 2}]


def test_offsets_outlast_batches_without_rows_and_commits_of_others(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deltalake import DeltaTable

    monkeypatch.setattr(tables, "_COMMITS_MAX", 2)
    path = str(tmp_path / "t")
    tables.append_to_delta(
        spark.createDataFrame([(1, "t", 0, 5), (2, "t", 1, 7)], PLACED), path, app_id="q", batch_id=0
    )
    for number in range(1, 4):
        tables.append_to_delta(spark.createDataFrame([], PLACED), path, app_id="q", batch_id=number)
    assert tables.delta_offsets(path) == {"t": {"0": 6, "1": 8}}
    for number in range(3):
        DeltaTable(path).alter.set_table_properties({"who": str(number)}, raise_if_not_exists=False)
    tables.append_to_delta(spark.createDataFrame([(3, "t", 0, 9)], PLACED), path, app_id="q", batch_id=4)
    assert tables.delta_offsets(path) == {"t": {"0": 10, "1": 8}}


def test_an_iceberg_batch_counts_once_though_a_driver_thought_dead_commits_it_too(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = tables.iceberg_catalog(str(tmp_path / "w"), {})
    first, second = (spark.createDataFrame([(number, "t", 0, number)], PLACED) for number in (1, 2))
    tables.append_to_iceberg(first, catalog, "d.t", app_id="q", batch_id=0)
    plain = tables.write_files

    def meanwhile(*args: Any) -> Any:
        written = plain(*args)
        monkeypatch.setattr(tables, "write_files", plain)
        assert tables.append_to_iceberg(second, catalog, "d.t", app_id="q", batch_id=1) == 1
        return written

    monkeypatch.setattr(tables, "write_files", meanwhile)
    assert tables.append_to_iceberg(second, catalog, "d.t", app_id="q", batch_id=1) is None
    assert [row["id"] for row in iceberg_rows(catalog, "d.t")] == [1, 2]


def test_somebody_elses_commit_does_not_stop_a_batch(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = tables.iceberg_catalog(str(tmp_path / "w"), {})
    first, second = (spark.createDataFrame([(number, "t", 0, number)], PLACED) for number in (1, 2))
    tables.append_to_iceberg(first, catalog, "d.t", app_id="q", batch_id=0)
    plain = tables.write_files

    def meanwhile(*args: Any) -> Any:
        table = catalog.load_table("d.t")
        with table.transaction() as transaction:
            transaction.set_properties({"owner": "somebody else"})
        table.append(table.scan().to_arrow())
        return plain(*args)

    monkeypatch.setattr(tables, "write_files", meanwhile)
    assert tables.append_to_iceberg(second, catalog, "d.t", app_id="q", batch_id=1) == 1
    assert [row["id"] for row in iceberg_rows(catalog, "d.t")] == [1, 1, 2]
    assert catalog.load_table("d.t").properties["owner"] == "somebody else"


def test_partitions_have_names(spark: "SparkSession", tmp_path: Path) -> None:
    rows = spark.createDataFrame([(1, b"\xff\x00")], "id int, p binary")
    with pytest.raises(tables.TableError, match="'p' is bytes"):
        tables.append_to_delta(rows, str(tmp_path / "t"), app_id="q", batch_id=0, partition_by=("p",))


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_columns_of_nothing_wait_for_values(spark: "SparkSession", tmp_path: Path, kind: str) -> None:
    table = Table(kind, tmp_path)
    rows = spark.range(1).coalesce(1)
    nothing = rows.selectExpr("id", "null AS later", "null AS day", "struct(id, null AS y) AS s", "array() AS tags")
    assert table.append(nothing, 0, partition_by=("day",)) == 1
    something = rows.selectExpr("id", "5L AS later", "'a' AS day", "struct(id, 'b' AS y) AS s", "array('c') AS tags")
    assert table.append(something, 1, partition_by=("day",)) == 1
    assert table.append(nothing, 2, partition_by=("day",)) == 1
    empty: dict[str, Any] = {"id": 0, "later": None, "day": None, "s": {"id": 0, "y": None}, "tags": []}
    full = {"id": 0, "later": 5, "day": "a", "s": {"id": 0, "y": "b"}, "tags": ["c"]}
    assert sorted(table.rows(), key=str) == sorted([empty, full, empty], key=str)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_batch_may_have_many_partitions_and_none_whose_name_is_too_long(
    spark: "SparkSession", tmp_path: Path, kind: str
) -> None:
    table = Table(kind, tmp_path)
    rows = spark.range(1100).selectExpr("id", "cast(id AS string) AS user").coalesce(1)
    assert table.append(rows, 0, partition_by=("user",)) == 1100
    assert len({row["user"] for row in table.rows()}) == 1100
    long = spark.range(1).selectExpr("id", "repeat('é', 200) AS user")
    with pytest.raises(Exception, match=r"a value of (by_)?user is too long to name a folder: .*partition by another"):
        table.append(long, 1, partition_by=("user",))


def test_a_delta_batch_counts_once_though_a_driver_thought_dead_commits_it_too(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first commit, when somebody else may make the table, and after it."""
    table = Table("delta", tmp_path)
    rows = spark.range(1).coalesce(1)
    write_files = tables.write_files
    others: list[tuple[str, int]] = []

    def slowly(*told: Any) -> list[tables.WrittenFile]:
        files = write_files(*told)
        while others:
            query, batch_id = others.pop()
            table.append(rows, batch_id, app_id=query)
        return files

    monkeypatch.setattr(tables, "write_files", slowly)
    others.append(("other", 0))
    assert table.append(rows, 0) == 1, "the table is there meanwhile"
    others.append(("q", 1))
    assert table.append(rows, 1) is None, "the batch, too"
    others.append(("other", 1))
    assert table.append(rows, 2) == 1
    assert len(table.rows()) == 5


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_lists_without_nulls_and_lists_with_them_are_one_column(
    spark: "SparkSession", tmp_path: Path, kind: str
) -> None:
    table = Table(kind, tmp_path)
    rows = spark.range(1).coalesce(1)
    table.append(rows.selectExpr("id", "array(1) AS l", "map('a', array(2)) AS m", "struct(array(3) AS l) AS s"), 0)
    with_nulls = rows.selectExpr(
        "id", "array(null, 1) AS l", "map('a', array(null, 2)) AS m", "struct(array(null, 3) AS l) AS s"
    )
    assert table.append(with_nulls, 1) == 1
    assert sorted(len(row["l"]) for row in table.rows()) == [1, 2]


def test_a_table_whose_lists_have_no_nulls_keeps_to_that(spark: "SparkSession", tmp_path: Path) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    kind = pa.list_(pa.field("element", pa.int32(), nullable=False))
    table = Table("delta", tmp_path)
    write_deltalake(table.path, pa.table({"id": pa.array([1]), "l": pa.array([[1]], kind)}))
    rows = spark.range(1).coalesce(1)
    assert table.append(rows.selectExpr("id", "array(2) AS l"), 0) == 1
    with pytest.raises(tables.TableError, match=r"column .l. is .*containsNull.*true.* in the pipeline"):
        table.append(rows.selectExpr("id", "array(null, 3) AS l"), 1)
