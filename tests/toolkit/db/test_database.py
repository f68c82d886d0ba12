"""Engines made from a URL, and how they end."""

import asyncio
import contextlib
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from moldau.toolkit.db.database import Database


async def test_a_connection_that_comes_back_after_the_end_is_closed(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/a.db")
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()
    used: list[Any] = []

    def work(connection: Connection) -> None:
        used.append(connection.connection.dbapi_connection)
        begun.set()
        go_on.wait(10)

    def run_and_tell() -> None:
        database.run_here(work)
        ended.set()

    running = asyncio.create_task(asyncio.to_thread(run_and_tell))
    await asyncio.to_thread(begun.wait, 10)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    await database.close()
    go_on.set()
    assert await asyncio.to_thread(ended.wait, 10)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        used[0].execute("SELECT 1")
