"""A database for the tests: a SQLite file, or the server that TOOLKIT_DATABASE names.

`tests/interop/test_toolkit_databases.py` runs the same tests with PostgreSQL's and MariaDB's addresses there.
"""

import asyncio
import inspect
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, create_engine, func, select
from sqlalchemy.pool import NullPool


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Async tests run in a loop of their own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture
def url(tmp_path: Path) -> str:
    return os.environ.get("TOOLKIT_DATABASE") or f"sqlite:///{tmp_path / 'test.db'}"


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    """For the test's own look at the database."""
    made = create_engine(url, poolclass=NullPool)
    yield made
    made.dispose()


@pytest.fixture
def name() -> Callable[[str], str]:
    """Names of tables nobody else uses."""
    return lambda base: f"{base}_{secrets.token_hex(4)}"


@pytest.fixture
def results(engine: Engine, name: Callable[[str], str]) -> Table:
    """What handlers write: a row per call."""
    table = Table(
        name("results"),
        MetaData(),
        Column("number", Integer, primary_key=True, autoincrement=True),
        Column("word", String(100), nullable=False),
    )
    table.metadata.create_all(engine)
    return table


@pytest.fixture
def written(engine: Engine, results: Table) -> Callable[[], dict[str, int]]:
    """How often each word was written."""

    def count() -> dict[str, int]:
        with engine.connect() as connection:
            rows = connection.execute(select(results.c.word, func.count()).group_by(results.c.word))
            return {str(word): int(number) for word, number in rows}

    return count
