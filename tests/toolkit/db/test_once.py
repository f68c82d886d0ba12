"""The idempotent consumer: what is delivered again is not done again, whatever happens in between."""

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, Table, create_engine, event, func, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from moldau.toolkit import App, FromHeader, FromKey, Message, Retry, SetupError, TestApp
from moldau.toolkit.db import Store
from moldau.toolkit.db.database import Database
from moldau.toolkit.db.trouble import is_passing

Name = Callable[[str], str]
Written = Callable[[], dict[str, int]]


def app_of(fresh: Name, bootstrap: str) -> App:
    return App(fresh("once"), bootstrap_servers=bootstrap, consumer={"topic.metadata.refresh.interval.ms": 500})


async def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.01)


async def test_a_second_delivery_is_skipped(
    fresh: Name, bootstrap: str, url: str, name: Name, results: Table, written: Written
) -> None:
    app, table, calls = app_of(fresh, bootstrap), name("once"), list[str]()
    kinds = ("connection", "session", "async connection", "async session")
    topics = {kind: fresh(kind.replace(" ", "-")) for kind in kinds}
    store = Store(url, table=table)  # one for all four: each topic has ids of its own

    @app.handler(topics["connection"], once=store)
    def handle(word: str, transaction: Connection) -> None:
        calls.append(word)
        transaction.execute(insert(results).values(word=word))

    @app.handler(topics["session"], once=store)
    def handle_in_session(word: str, session: Session) -> None:
        calls.append(word)
        session.execute(insert(results).values(word=word))
        session.commit()  # ends nothing: the transaction ends after the handler

    @app.handler(topics["async connection"], once=store)
    async def handle_async(word: str, transaction: AsyncConnection) -> None:
        calls.append(word)
        await transaction.execute(insert(results).values(word=word))

    @app.handler(topics["async session"], once=store)
    async def handle_in_async_session(word: str, session: AsyncSession) -> None:
        calls.append(word)
        await session.execute(insert(results).values(word=word))

    async with TestApp(app, bootstrap_servers=bootstrap) as test:
        for word in ("a", "b", "a", "c", "b"):
            for kind, topic in topics.items():
                await test.send(topic, f"{word} {kind}", headers={"moldau-id": f"id of {word}"})
        for kind, topic in topics.items():
            # Some databases take these for the same text.
            await test.send(topic, f"a {kind}", headers={"moldau-id": "ID OF A"})
            await test.send(topic, f"a {kind}", headers={"moldau-id": "id of a "})
        await test.idle()
    for kind in kinds:
        assert [word[0] for word in calls if word[2:] == kind] == ["a", "b", "c", "a", "a"]
    assert written() == {f"{word} {kind}": count for word, count in (("a", 3), ("b", 1), ("c", 1)) for kind in kinds}


async def test_what_fails_is_rolled_back_with_its_id(
    fresh: Name, bootstrap: str, url: str, name: Name, results: Table, written: Written
) -> None:
    app, plain, asynchronous = app_of(fresh, bootstrap), fresh("plain"), fresh("async")
    store = Store(url, table=name("once"))
    attempts: dict[str, list[int]] = {"plain": [], "async": []}
    retry = Retry(now=1, backoff="1ms", later=["10s"])

    def fail_at_first(word: str, message: Message) -> None:
        attempts[word].append(message.attempt)
        if len(attempts[word]) < 3:
            raise ValueError("not yet")

    @app.handler(asynchronous, once=store, retry=retry)
    async def handle_async(word: str, session: AsyncSession, message: Message) -> None:
        await session.execute(insert(results).values(word=word))
        await session.commit()
        fail_at_first(word, message)

    @app.handler(plain, once=store, retry=retry)
    def handle(word: str, session: Session, message: Message) -> None:
        session.execute(insert(results).values(word=word))
        session.commit()
        fail_at_first(word, message)

    async with TestApp(app, bootstrap_servers=bootstrap) as test:
        await test.send(plain, "plain")
        await test.send(asynchronous, "async")
        await test.advance("1s")
        assert written() == {}
        await test.advance("10s")  # the third attempt comes through the retry topic, under the same id
    assert attempts == {"plain": [1, 2, 3], "async": [1, 2, 3]}
    assert written() == {"plain": 1, "async": 1}


async def test_ids_from_header_key_or_function(
    fresh: Name, bootstrap: str, url: str, name: Name, results: Table, written: Written
) -> None:
    app = app_of(fresh, bootstrap)
    topics = {each: fresh(each) for each in ("header", "key", "function")}
    table = name("once")
    stores = {
        "header": Store(url, table=table, id=FromHeader("event-id")),
        "key": Store(url, table=table, id=FromKey()),
        "function": Store(url, table=table, id=lambda message: (message.raw_value or b"")[:1]),
    }
    for each, topic in topics.items():

        @app.handler(topic, once=stores[each], dead_letter=True)
        def handle(word: str, transaction: Connection) -> None:
            transaction.execute(insert(results).values(word=word))

    async with TestApp(app, bootstrap_servers=bootstrap) as test:
        for _ in range(2):
            # The same id on several topics is several messages'.
            await test.send(topics["header"], "by header", headers={"event-id": b"\xff"}, key="k")
            await test.send(topics["header"], "by another", headers={"event-id": b"\xfe"}, key="k")
            await test.send(topics["key"], "by key", key="\ufffd")
            await test.send(topics["function"], "function")
            await test.send(topics["function"], "f")
        await test.send(topics["header"], "without")
        await test.send(topics["key"], "without")
        await test.idle()
        await test.assert_dead_lettered(topics["header"], "'event-id'")
        await test.assert_dead_lettered(topics["key"], "the key")
    assert written() == {"by header": 1, "by another": 1, "by key": 1, "function": 1}


async def test_two_deliveries_at_the_same_time(
    fresh: Name, bootstrap: str, url: str, name: Name, results: Table, written: Written
) -> None:
    """The second waits for the first, and does it if the first fails."""
    app, topic = app_of(fresh, bootstrap), fresh("words")
    fails = {f"w{number}" for number in range(0, 20, 3)}

    @app.handler(topic, once=Store(url, table=name("once")), workers=4, order="none", retry=Retry(now=2, backoff="1ms"))
    def handle(word: str, transaction: Connection) -> None:
        transaction.execute(insert(results).values(word=word))
        if word in fails:
            fails.discard(word)
            raise ValueError("the first time")

    async with TestApp(app, bootstrap_servers=bootstrap, partitions=2) as test:
        for number in range(40):
            word = f"w{number // 2}"
            app.send(topic, word, headers={"moldau-id": word}, partition=number % 2)
        await test.idle()
    assert written() == {f"w{number}": 1 for number in range(20)}
    assert not fails


async def test_old_ids_are_deleted_in_steps(
    fresh: Name, bootstrap: str, url: str, engine: Engine, name: Name, results: Table
) -> None:
    app, topic = app_of(fresh, bootstrap), fresh("words")
    store = Store(url, table=name("once"), keep="1h", clean_step=10)

    @app.handler(topic, once=store)
    def handle(word: str) -> None:
        pass

    table = store.table

    def count() -> int:
        with engine.connect() as connection:
            return connection.execute(select(func.count()).select_from(table)).scalar_one()

    async with TestApp(app, bootstrap_servers=bootstrap) as test:
        for number in range(45):
            app.send(topic, "w", headers={"moldau-id": str(number)})
        await test.idle()
        assert count() == 45
        assert await store.clean() == 0  # none is old
        with engine.begin() as connection:
            old = table.c.id.in_([str(number) for number in range(35)])
            connection.execute(update(table).where(old).values(at_ms=table.c.at_ms - 3_700_000))
        begun = 0

        @event.listens_for(store.database.plain, "begin")
        def _count(_: Any) -> None:
            nonlocal begun
            begun += 1

        await test.advance("1m")  # the app cleans every minute
        await until(lambda: count() == 10, "35 of 45 ids are deleted")
        assert begun >= 4  # and no transaction of more than ten


# A database in trouble.


class Trouble:
    """Makes connections fail in a way of SQLite's, until it is over."""

    def __init__(self, engine: Engine, way: str, path: Path) -> None:
        self.way, self.path, self.is_on, self.met = way, path, False, 0
        self.holder = create_engine(f"sqlite:///{path}")
        self.lock: Connection | None = None
        event.listen(engine, "begin", self._begin)
        event.listen(engine, "handle_error", self._error)

    def hold(self) -> None:
        if self.way == "busy":
            self.lock = self.holder.connect()
            self.lock.exec_driver_sql("BEGIN EXCLUSIVE")

    def begin(self) -> int:
        self.is_on = True
        return self.met

    def end(self) -> None:
        if self.lock is not None:
            self.lock.exec_driver_sql("ROLLBACK")
            self.lock.close()
        self.is_on = False
        self.holder.dispose()

    def _begin(self, connection: Connection) -> None:
        if self.way == "read-only":
            connection.exec_driver_sql(f"PRAGMA query_only={'ON' if self.is_on else 'OFF'}")
        elif self.way == "full":
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
            connection.exec_driver_sql(f"PRAGMA max_page_count={pages if self.is_on else 1_000_000}")

    def _error(self, context: Any) -> None:
        self.met += 1


@pytest.mark.parametrize("way", ["read-only", "full", "busy"])
async def test_a_database_in_trouble_is_waited_for(way: str, fresh: Name, bootstrap: str, tmp_path: Path) -> None:
    """No attempt is lost, nothing is dead-lettered, everything is done once when it is over."""
    app, path = app_of(fresh, bootstrap), tmp_path / "trouble.db"
    plain = create_engine(f"sqlite:///{path}", connect_args={"timeout": 0.05})
    asynchronous = create_async_engine(f"sqlite+aiosqlite:///{path}", connect_args={"timeout": 0.05})
    with plain.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE results (word TEXT)")
    troubles = [Trouble(plain, way, path), Trouble(asynchronous.sync_engine, way, path)]
    big = "x" * 20_000  # more than fits into a page
    topics = fresh("words"), fresh("async-words")

    @app.handler(topics[0], once=Store(plain), retry=Retry(now=0))
    def handle(word: str, transaction: Connection) -> None:
        transaction.execute(text("INSERT INTO results VALUES (:word)"), {"word": word + big})

    @app.handler(topics[1], once=Store(asynchronous), retry=Retry(now=0))
    async def handle_async(word: str, transaction: AsyncConnection) -> None:
        await transaction.execute(text("INSERT INTO results VALUES (:word)"), {"word": word + big})

    async with TestApp(app, bootstrap_servers=bootstrap) as test:
        for topic in topics:
            await test.send(topic, "a")
        await test.idle()
        troubles[0].hold()
        before = [each.begin() for each in troubles]
        for topic in topics:
            await test.send(topic, "b")
        for each, count in zip(troubles, before, strict=True):
            await until(lambda each=each, count=count: each.met > count + 1, "it refuses, and is asked again")  # type: ignore[misc]
        assert app.failure is None
        for each in troubles:
            each.end()
        await test.idle()
    with plain.begin() as connection:
        found = sorted(row[0][0] for row in connection.execute(text("SELECT word FROM results")))
        assert found == ["a", "a", "b", "b"]
    plain.dispose()
    await asynchronous.dispose()


async def test_a_database_that_is_not_there_yet_is_waited_for(fresh: Name, bootstrap: str, tmp_path: Path) -> None:
    app, topic, folder = app_of(fresh, bootstrap), fresh("words"), tmp_path / "later"
    done: list[str] = []

    @app.handler(topic, once=Store(f"sqlite:///{folder}/x.db"))
    def handle(word: str, transaction: Connection) -> None:
        done.append(word)

    test = TestApp(app, bootstrap_servers=bootstrap)
    starting = asyncio.create_task(test.__aenter__())
    await asyncio.sleep(0.3)
    assert not starting.done()
    folder.mkdir()
    await starting
    await test.send(topic, "a")
    await test.idle()
    await test.__aexit__(None, None, None)
    assert done == ["a"]


def test_a_mistake_is_no_trouble(tmp_path: Path) -> None:
    """A wrong statement fails the same way for ever: SQLite gives it the class of error that a full disk has."""
    engine = create_engine(f"sqlite:///{tmp_path}/x.db")
    for statement in ("SELECT * FROM nowhere", "SELEKT 1"):
        with pytest.raises(Exception) as caught, engine.connect() as connection:
            connection.execute(text(statement))
        assert not is_passing(caught.value)
    engine.dispose()
    with (
        pytest.raises(Exception) as caught,
        create_engine("postgresql+psycopg://x@127.0.0.1:1/x?connect_timeout=2").connect(),
    ):
        pass
    assert is_passing(caught.value)
    with pytest.raises(Exception) as caught, create_engine("mysql+pymysql://x@127.0.0.1:1/x").connect():
        pass
    assert is_passing(caught.value)
    assert not is_passing(ConnectionError("of another service"))


def test_what_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    app = App("refused")
    with pytest.raises(SetupError, match="outbox"):

        @app.handler("words", once=Store(url), to="others")
        def send_on(word: str) -> str:
            return word

    with pytest.raises(SetupError, match="commit"):

        @app.handler("words", once=Store(url), commit="auto")
        def early(word: str) -> None: ...

    with pytest.raises(SetupError, match="AsyncConnection"):

        @app.handler("words", once=Store(url))
        async def blocking(word: str, transaction: Connection) -> None: ...

    with pytest.raises(SetupError, match="give the Store an AsyncEngine"):

        @app.handler("words", once=Store(create_engine(url)))
        async def mixed(word: str) -> None: ...

    with pytest.raises(SetupError, match="needs once="):

        @app.handler("words")
        def without(word: str, transaction: Connection) -> None: ...

    for memory in ("sqlite://", create_engine("sqlite://", poolclass=StaticPool), create_engine("sqlite://")):
        with pytest.raises(SetupError, match="use a file"):
            Store(memory)
    with pytest.raises(SetupError, match="names no database"):
        Store("nonsense")


def test_threads_that_ask_at_once_get_one_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two, one would be lost with a connection that is still open."""
    made = []

    def slowly(*arguments: Any, **named: Any) -> Any:
        time.sleep(0.05)  # as long as the others need to ask
        made.append(create_engine(*arguments, **named))
        return made[-1]

    monkeypatch.setattr("moldau.toolkit.db.database.create_engine", slowly)
    database = Database(f"sqlite:///{tmp_path / 'one.db'}")
    threads = [threading.Thread(target=lambda: database.plain) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert made == [database.plain]
