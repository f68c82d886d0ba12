"""A database that goes away is waited for, one that never answered is not; what is wrong for other reasons is told."""

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError

from moldau.spark.pipelines.database_outage import Patience


class Database:
    """SQLite, which can be told to be away; waiting for it brings it back, after some tries."""

    def __init__(self) -> None:
        self.engine: Engine = create_engine("sqlite://", creator=self._connect)
        self.away_for = 0
        self.pauses = 0

    def _connect(self) -> sqlite3.Connection:
        if self.away_for:
            raise sqlite3.OperationalError("connection refused")
        return sqlite3.connect(":memory:")

    def pause(self, seconds: float) -> None:
        assert seconds > 0
        self.pauses += 1
        self.away_for = max(0, self.away_for - 1)

    def ask(self) -> int:
        with self.engine.connect() as connection:
            return int(connection.execute(text("SELECT 7")).scalar_one())


def patience(database: Database, seconds: float = 60, *, has_answered: bool = True) -> Patience:
    return Patience(seconds, has_answered=has_answered, pause=database.pause)


def test_it_is_waited_for_until_it_answers() -> None:
    database = Database()
    waiting = patience(database, has_answered=False)
    assert waiting.outlast(database.engine, database.ask) == 7
    database.engine.dispose()
    database.away_for = 3
    assert waiting.outlast(database.engine, database.ask) == 7
    assert database.pauses == 3


def test_one_that_never_answered_is_not_waited_for() -> None:
    database = Database()
    database.away_for = 1
    with pytest.raises(OperationalError, match="refused"):
        patience(database, has_answered=False).outlast(database.engine, database.ask)
    assert not database.pauses


def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database()
    database.away_for = 1_000
    now = [0.0]

    def pause(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr("time.monotonic", lambda: now[0])
    with pytest.raises(OperationalError, match="refused"):
        Patience(10, has_answered=True, pause=pause).outlast(database.engine, database.ask)
    assert now[0] == 10


def test_work_that_breaks_every_connection_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """As MariaDB answers what is too large for it: it hangs up, and is there again."""
    database = Database()
    now = [0.0]

    def pause(seconds: float) -> None:
        now[0] += seconds

    def hang_up() -> None:
        raise DBAPIError("INSERT", {}, Exception("gone"), connection_invalidated=True)

    monkeypatch.setattr("time.monotonic", lambda: now[0])
    with pytest.raises(DBAPIError, match="gone"):
        Patience(10, has_answered=True, pause=pause).outlast(database.engine, hang_up)
    assert now[0] == 10


@pytest.mark.parametrize(
    "error",
    [
        OperationalError("INSERT", {}, Exception("no such table")),
        IntegrityError(None, None, Exception("a constraint that is checked at the end")),
    ],
)
def test_other_errors_are_told_at_once(error: DBAPIError) -> None:
    database = Database()

    def fail() -> None:
        raise error

    with pytest.raises(type(error)):
        patience(database).outlast(database.engine, fail)
    assert not database.pauses


def test_a_connection_that_breaks_in_the_midst_begins_again() -> None:
    database = Database()
    tries: list[int] = []

    def work() -> int:
        tries.append(1)
        if len(tries) == 1:
            raise DBAPIError("INSERT", {}, Exception("broken pipe"), connection_invalidated=True)
        return database.ask()

    assert patience(database).outlast(database.engine, work) == 7
    assert len(tries) == 2


def test_a_schema_is_found_in_a_few_rows_whatever_the_driver_fetches(tmp_path: Path) -> None:
    import sqlalchemy as sa

    from moldau.spark.pipelines.database_source import DatabaseDataSource

    url = f"sqlite:///{tmp_path}/a.db"
    asked: list[str] = []
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE t (id INTEGER, name TEXT, price REAL)"))
        connection.execute(sa.text("INSERT INTO t VALUES (1, 'a', 0.5)"))
    engine.dispose()

    @sa.event.listens_for(sa.Engine, "before_cursor_execute")
    def note(_c: object, _k: object, statement: str, *_: object) -> None:
        asked.append(statement)

    try:
        schema = DatabaseDataSource({"url": url, "query": "SELECT * FROM t", "table": "t"}).schema()
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)
    assert schema.simpleString() == "struct<id:bigint,name:string,price:double>"
    assert asked
    assert all("LIMIT" in each for each in asked)
