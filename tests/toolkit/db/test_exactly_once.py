"""Offsets in the transaction of the result: the database is the truth, and a former owner changes nothing."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from sqlalchemy import Connection, Engine, Table, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from moldau.toolkit import App, Producer, Retry, SetupError, TestApp
from moldau.toolkit.db import ExactlyOnce

Name = Callable[[str], str]
Written = Callable[[], dict[str, int]]


async def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 40
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.01)


def rows(engine: Engine, table: Table) -> dict[int, tuple[int, int]]:
    with engine.connect() as connection:
        found = connection.execute(select(table.c.partition_index, table.c.next_offset, table.c.epoch))
        return {index: (offset, epoch) for index, offset, epoch in found}


@pytest.mark.parametrize("committed", [0, 5])
async def test_the_database_says_where_to_begin(
    committed: int,
    fresh: Name,
    bootstrap: str,
    url: str,
    engine: Engine,
    name: Name,
    results: Table,
    written: Written,
) -> None:
    """Whatever the group committed, before it or beyond it; and seeking moves the database."""
    group, topic, table = fresh("group"), fresh("words"), name("offsets")
    calls: list[str] = []

    def make() -> tuple[App, ExactlyOnce]:
        app = App(group, bootstrap_servers=bootstrap)
        once = ExactlyOnce(url, table=table)

        @app.handler(topic, order="partition", once=once, dead_letter=True, retry=Retry(now=0))
        async def handle(word: str, transaction: AsyncConnection) -> None:
            calls.append(word)
            await transaction.execute(insert(results).values(word=word))
            if word == "bad":
                raise ValueError("it never works")

        return app, once

    app, once = make()
    async with TestApp(app, bootstrap_servers=bootstrap) as test:
        for word in ("w0", "w1", "bad", "w3"):
            await test.send(topic, word)
        await test.idle()
        assert len(await test.dead_letters(topic)) == 1
    assert rows(engine, once.table) == {0: (4, 1)}
    outside = Producer(bootstrap)
    await asyncio.to_thread(lambda: outside.send(topic, "w4").result(40))
    await asyncio.to_thread(outside.close)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, committed)], asynchronous=False)
    consumer.close()
    calls.clear()
    app, once = make()
    async with TestApp(app, bootstrap_servers=bootstrap) as test:
        await until(lambda: written().get("w4") == 1, "it begins where the database is")
        await test.idle()
        assert calls == ["w4"], "and not before"
        assert written() == {"w0": 1, "w1": 1, "w3": 1, "w4": 1}
        await app.seek(topic, 0, 3)
        await until(lambda: written().get("w4") == 2, "it reads on from there")
    assert written() == {"w0": 1, "w1": 1, "w3": 2, "w4": 2}
    assert rows(engine, once.table)[0][0] == 5


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_partition_that_was_taken_away_and_is_still_ours_is_taken_back(
    is_async: bool, fresh: Name, bootstrap: str, url: str, engine: Engine, name: Name, results: Table, written: Written
) -> None:
    """As by a former member that wakes up late: what ran under the old epoch is rolled back, and done again."""
    app, topic = App(fresh("group"), bootstrap_servers=bootstrap), fresh("words")
    once = ExactlyOnce(url, table=name("offsets"))
    calls: list[str] = []

    def steal_at_first(word: str) -> None:
        calls.append(word)
        if len(calls) == 2:
            with engine.begin() as connection:
                connection.execute(update(once.table).values(epoch=once.table.c.epoch + 1))

    if is_async:

        @app.handler(topic, order="partition", once=once, retry=Retry(now=0))
        async def handle_async(word: str, transaction: AsyncConnection) -> None:
            steal_at_first(word)
            await transaction.execute(insert(results).values(word=word))

    else:

        @app.handler(topic, order="partition", once=once, retry=Retry(now=0))
        def handle(word: str, transaction: Connection) -> None:
            steal_at_first(word)
            transaction.execute(insert(results).values(word=word))

    async with TestApp(app, bootstrap_servers=bootstrap) as test:
        for word in ("w0", "w1", "w2"):
            await test.send(topic, word)
        await until(lambda: set(written()) == {"w0", "w1", "w2"}, "all are done")
        await test.idle()
    assert calls == ["w0", "w1", "w1", "w2"]
    assert written() == {"w0": 1, "w1": 1, "w2": 1}
    assert rows(engine, once.table) == {0: (3, 3)}


async def test_after_a_rebalance_the_old_owner_cannot_commit(
    fresh: Name, bootstrap: str, url: str, engine: Engine, name: Name, results: Table, written: Written
) -> None:
    """Its handler goes on in its thread, and ends when the new owner has long done the same record."""
    group, topic, table = fresh("group"), fresh("words"), name("offsets")
    go_on, blocked = threading.Event(), threading.Event()
    steps: list[str] = []

    def make(**settings: Any) -> tuple[App, ExactlyOnce]:
        app = App(group, bootstrap_servers=bootstrap, auto_offset_reset="earliest", revoke_within="50ms", **settings)
        return app, ExactlyOnce(url, table=table, on_step=steps.append)

    old, once = make()

    @old.handler(topic, order="partition", once=once, workers=2)
    def block(word: str, transaction: Connection) -> None:
        blocked.set()
        assert go_on.wait(50)
        transaction.execute(insert(results).values(word=f"{word} of the old owner"))

    new, other = make()

    @new.handler(topic, order="partition", once=other, workers=2)
    def handle(word: str, transaction: Connection) -> None:
        transaction.execute(insert(results).values(word=word))

    async with TestApp(old, bootstrap_servers=bootstrap, partitions=2) as test:
        for index in range(2):
            await test.send(topic, f"w{index}", partition=index)
        await until(blocked.is_set, "the old owner is at work")
        async with TestApp(new, bootstrap_servers=bootstrap):
            await until(lambda: len(written()) == 1, "the new owner has done one of them")
            (moved,) = written()
            before = len(steps)
            go_on.set()
            await until(lambda: f"w{1 - int(moved[1])} of the old owner" in written(), "the old one has the other")
            await until(lambda: steps[before:].count("handled") >= 2, "and both its handlers have ended")
            await test.idle()
    assert written() == {moved: 1, f"w{1 - int(moved[1])} of the old owner": 1}
    assert {index: offset for index, (offset, _) in rows(engine, once.table).items()} == {0: 1, 1: 1}


def test_what_cannot_be_kept_is_refused(url: str) -> None:
    app = App("refused")
    with pytest.raises(SetupError, match='order="partition"'):

        @app.handler("words", once=ExactlyOnce(url))
        def by_key(word: str) -> None: ...

    with pytest.raises(SetupError, match="keep_order"):

        @app.handler("words", order="partition", once=ExactlyOnce(url), retry=Retry(later=["1s"]))
        def later(word: str) -> None: ...
