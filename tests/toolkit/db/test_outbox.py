"""The outbox: what was committed is sent, in the order of its key, by one relay; what was rolled back is not."""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, func, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from moldau.toolkit import App, SetupError, TestApp, Topic, WrongType
from moldau.toolkit.db import Outbox, OutboxRelay, Receipts, Store
from moldau.toolkit.db.outbox import CONFIRMED, FAILED, LANES, PENDING, SENT
from moldau.toolkit.reading import read_topic
from tests.toolkit.killing import make_topic

Name = Callable[[str], str]


@pytest.fixture
def outbox(url: str, name: Name) -> Outbox:
    return Outbox(url, table=name("outbox"))


@asynccontextmanager
async def relaying(outbox: Outbox, bootstrap: str, **settings: Any) -> AsyncIterator[OutboxRelay]:
    relay = OutboxRelay(outbox, bootstrap_servers=bootstrap, poll="10ms", **settings)
    await relay.start()
    try:
        yield relay
    finally:
        await relay.stop()


async def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 40
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.01)


def states(engine: Engine, outbox: Outbox) -> dict[int, int]:
    with engine.connect() as connection:
        column = outbox.table.c.state
        return {
            int(state): int(count) for state, count in connection.execute(select(column, func.count()).group_by(column))
        }


def messages(bootstrap: str, topic: str) -> list[Any]:
    return list(read_topic({"bootstrap.servers": bootstrap, "group.id": "none"}, topic))


async def test_what_is_committed_is_sent(outbox: Outbox, url: str, engine: Engine, bootstrap: str, fresh: Name) -> None:
    topic = fresh("orders")
    make_topic(bootstrap, topic, 1)
    await outbox.create()
    with engine.begin() as connection:
        first = outbox.send(connection, topic, "o-1", {"n": 1}, headers={"tenant": "t"}, type="Placed")
    with engine.connect() as connection:
        outbox.send(connection, topic, "o-1", {"n": 0})
        connection.rollback()
    with Session(engine) as session, session.begin():
        outbox.send(session, topic, "o-1", {"n": 2})
    asynchronous = outbox.database.asynchronous
    async with asynchronous.begin() as transaction:
        await outbox.send(transaction, topic, None, b"3")
    async with AsyncSession(asynchronous) as async_session, async_session.begin():
        await outbox.send(async_session, topic, 4, None)  # a tombstone
    async with relaying(outbox, bootstrap) as relay:
        await until(lambda: states(engine, outbox) == {CONFIRMED: 4}, "four rows are confirmed")
        await until(lambda: relay.health()["ok"] and relay.health()["pending"] == 0, "it is well")
        assert relay.health()["confirmed"] == 4
    found = messages(bootstrap, topic)
    assert sorted((each.key(), each.value()) for each in found if each.key()) == [
        ((4).to_bytes(8, "big"), None),
        (b"o-1", b'{"n":1}'),
        (b"o-1", b'{"n":2}'),
    ]
    assert [each.value() for each in found if not each.key()] == [b"3"]
    headers = dict(next(each for each in found if each.value() == b'{"n":1}').headers())
    assert headers == {"id": first.encode(), "moldau-id": first.encode(), "eventType": b"Placed", "tenant": b"t"}


async def test_a_row_that_is_committed_late_is_sent(
    outbox: Outbox, engine: Engine, bootstrap: str, fresh: Name
) -> None:
    """Numbers are not in the order of commits; who remembers the last one loses rows."""
    topic = fresh("late")
    make_topic(bootstrap, topic, 1)
    await outbox.create()
    async with relaying(outbox, bootstrap):
        if engine.dialect.name == "sqlite":  # one writer at a time: as if the number had been taken before
            with engine.begin() as connection:
                connection.execute(insert(outbox.table).values(**outbox.row(topic, "k", b"quick"), seq=2))
            await until(lambda: states(engine, outbox) == {CONFIRMED: 1}, "the quick one is sent")
            with engine.begin() as connection:
                connection.execute(insert(outbox.table).values(**outbox.row(topic, "other", b"slow"), seq=1))
        else:
            with engine.begin() as slow:
                outbox.send(slow, topic, "other", b"slow")
                with engine.begin() as quick:
                    outbox.send(quick, topic, "k", b"quick")
                await until(lambda: states(engine, outbox) == {CONFIRMED: 1}, "the quick one is sent")
        await until(lambda: states(engine, outbox) == {CONFIRMED: 2}, "the slow one, too")
    assert [each.value() for each in messages(bootstrap, topic)] == [b"quick", b"slow"]


async def test_several_relays_send_each_row_once_and_keys_in_order(
    outbox: Outbox, url: str, engine: Engine, bootstrap: str, fresh: Name
) -> None:
    topic, keys, each_key = fresh("orders"), 30, 40
    make_topic(bootstrap, topic, 3)
    await outbox.create()
    others = [Outbox(url, table=outbox.table.name) for _ in range(2)]
    async with (
        relaying(outbox, bootstrap, batch=50),
        relaying(others[0], bootstrap, batch=50),
        relaying(others[1], bootstrap, batch=50),
    ):
        for number in range(0, keys * each_key, 100):
            rows = [outbox.row(topic, f"k{n % keys}", n) for n in range(number, number + 100)]
            with engine.begin() as connection:
                connection.execute(insert(outbox.table), rows)
            await asyncio.sleep(0)
        await until(lambda: states(engine, outbox) == {CONFIRMED: keys * each_key}, "all are confirmed")
    by_key: dict[bytes, list[int]] = defaultdict(list)
    for message in messages(bootstrap, topic):
        by_key[message.key()].append(int.from_bytes(message.value(), "big"))
    assert by_key == {f"k{k}".encode(): list(range(k, keys * each_key, keys)) for k in range(keys)}


async def test_a_clock_that_was_set_back_makes_no_lease_last_for_ever(
    outbox: Outbox, engine: Engine, bootstrap: str, fresh: Name
) -> None:
    """A lease that ends in years is of such a clock, and counts as over."""
    topic = fresh("orders")
    make_topic(bootstrap, topic, 1)
    await outbox.create()
    with engine.begin() as connection:
        for number in range(3):
            outbox.send(connection, topic, "k", str(number))
        lane = connection.execute(select(outbox.table.c.lane).limit(1)).scalar_one()
        connection.execute(insert(outbox.lanes).values(lane=lane, relay="dead", until_ms=2**60))
    async with relaying(outbox, bootstrap):
        await until(lambda: states(engine, outbox) == {CONFIRMED: 3}, "all are sent")
    assert [each.value() for each in messages(bootstrap, topic)] == [b"0", b"1", b"2"]


async def test_a_lane_that_is_leased_is_left_alone(outbox: Outbox, engine: Engine, bootstrap: str, fresh: Name) -> None:
    topic = fresh("orders")
    make_topic(bootstrap, topic, 1)
    await outbox.create()
    rows = [outbox.row(topic, f"k{number}", b"") for number in range(200)]
    assert len({row["lane"] for row in rows}) > LANES // 2
    taken = rows[0]["lane"]
    with engine.begin() as connection:
        soon = int(time.time() * 1_000) + 20_000
        connection.execute(insert(outbox.lanes).values(lane=taken, relay="alive", until_ms=soon))
        connection.execute(insert(outbox.table), rows)
    theirs = sum(row["lane"] == taken for row in rows)
    async with relaying(outbox, bootstrap):
        await until(lambda: states(engine, outbox).get(CONFIRMED) == 200 - theirs, "the others are sent")
        assert states(engine, outbox) == {CONFIRMED: 200 - theirs, PENDING: theirs}
        with engine.begin() as connection:
            connection.execute(update(outbox.lanes).values(until_ms=0).where(outbox.lanes.c.relay == "alive"))
        await until(lambda: states(engine, outbox) == {CONFIRMED: 200}, "its owner is gone")


async def test_receipts_confirm_and_what_gets_none_is_sent_again(
    outbox: Outbox, url: str, name: Name, engine: Engine, bootstrap: str, fresh: Name
) -> None:
    topic, receipts = fresh("orders"), fresh("receipts")
    make_topic(bootstrap, receipts, 1)
    app = App(fresh("consumer"), bootstrap_servers=bootstrap)
    handled: list[str] = []
    is_willing = False

    @app.handler(topic, once=Store(url, table=name("once")), around=[Receipts(app, receipts)], dead_letter=True)
    def handle(word: str) -> None:
        if not is_willing:
            raise ValueError("not now")
        handled.append(word)

    async with (
        TestApp(app, bootstrap_servers=bootstrap) as test,
        relaying(outbox, bootstrap, receipts=receipts, keep="1h") as relay,
    ):
        await until(lambda: relay.health()["state"] == "idle", "the tables are there")
        with engine.begin() as connection:
            outbox.send(connection, topic, "k", "word")
        await until(lambda: states(engine, outbox) == {SENT: 1}, "it is sent, and not confirmed")
        await test.advance("1m")
        assert await test.dead_letters(topic)
        is_willing = True

        def older_by(ms: int) -> None:
            with engine.begin() as connection:
                connection.execute(update(outbox.table).values(at_ms=outbox.table.c.at_ms - ms))

        async def resend() -> int:
            return await outbox.database.run(lambda connection: relay._claims.resend_some(connection, relay._resend_ms))

        older_by(240_000)
        assert await resend() == 0  # five minutes are not over
        older_by(61_000)
        await until(lambda: relay.counts.again == 1, "housekeeping has it sent again")
        await until(lambda: states(engine, outbox) == {CONFIRMED: 1}, "its receipt came")
    assert handled == ["word"]


async def test_what_the_cluster_refuses_is_set_aside(
    outbox: Outbox, engine: Engine, bootstrap: str, fresh: Name
) -> None:
    topic = fresh("orders")
    make_topic(bootstrap, topic, 1)
    await outbox.create()
    with engine.begin() as connection:
        big = outbox.send(connection, topic, "k", b"x" * 3_000_000)
        outbox.send(connection, topic, "k", b"small")
        connection.execute(insert(outbox.table).values(**outbox.row(topic, "k", b"odd") | {"headers": "no JSON"}))
    async with relaying(outbox, bootstrap) as relay:
        await until(lambda: states(engine, outbox) == {CONFIRMED: 1, FAILED: 2}, "one is sent, two are set aside")
        with engine.begin() as connection:
            table = outbox.table
            error = connection.execute(select(table.c.error).where(table.c.id == big)).scalar_one()
            assert "max.message.bytes" in error
            connection.execute(update(table).where(table.c.id == big).values(payload=b"now it fits"))
        assert await relay.retry([big]) == 1
        await until(lambda: states(engine, outbox) == {CONFIRMED: 2, FAILED: 1}, "it is sent after all")
    assert [each.value() for each in messages(bootstrap, topic)] == [b"small", b"now it fits"]


async def test_rows_of_others_and_clean_up(outbox: Outbox, engine: Engine, bootstrap: str, fresh: Name) -> None:
    """Debezium's five columns are enough; what is confirmed is deleted when it is old."""
    kind = fresh("order")
    make_topic(bootstrap, f"outbox.event.{kind}", 1)
    await outbox.create()
    with engine.begin() as connection:
        for number in range(3):
            connection.execute(
                text(
                    f"INSERT INTO {outbox.table.name} (id, aggregatetype, aggregateid, type, payload) "
                    "VALUES (:id, :kind, 'o-1', 'Placed', :payload)"
                ),
                {"id": f"id-{number}", "kind": kind, "payload": b"{}"},
            )
    async with relaying(outbox, bootstrap, route="outbox.event.{aggregatetype}", keep="1h", resend_after="100ms"):
        await until(lambda: states(engine, outbox) == {CONFIRMED: 3}, "all are sent")
        with engine.begin() as connection:
            table = outbox.table
            old = update(table).where(table.c.id != "id-1").values(at_ms=table.c.at_ms - 3_700_000)
            connection.execute(old)
        await until(lambda: states(engine, outbox) == {CONFIRMED: 1}, "two are old, and deleted")
    async with relaying(outbox, bootstrap, route="outbox.event.{aggregatetype}", keep=0):
        with engine.begin() as connection:
            outbox.send(connection, kind, "o-1", b"{}")
        await until(lambda: states(engine, outbox) == {}, "with keep=0 nothing stays")
    found = messages(bootstrap, f"outbox.event.{kind}")
    assert len(found) == 4
    assert [(each.key(), dict(each.headers())["id"]) for each in found[:3]] == [
        (b"o-1", f"id-{number}".encode()) for number in range(3)
    ]


async def test_a_topic_that_is_not_there_holds_up_nobody_for_long(
    outbox: Outbox, engine: Engine, bootstrap: str, fresh: Name
) -> None:
    topics = fresh("missing"), fresh("there")
    make_topic(bootstrap, topics[1], 1)
    await outbox.create()
    config = {"allow.auto.create.topics": False, "topic.metadata.propagation.max.ms": 100}
    async with relaying(outbox, bootstrap, config=config, pause="100ms") as relay:
        with engine.begin() as connection:
            for number in range(4):
                outbox.send(connection, topics[0], "k", str(number))
                outbox.send(connection, topics[1], "k", str(number))
        await until(lambda: states(engine, outbox).get(CONFIRMED) == 4, "the others are sent")
        await until(lambda: (relay.health()["error"] or "").find(topics[0]) >= 0, "it says which topic is missing")
        make_topic(bootstrap, topics[0], 1)
        await until(lambda: states(engine, outbox) == {CONFIRMED: 8}, "all are sent")
    assert [each.value() for each in messages(bootstrap, topics[0])] == [b"0", b"1", b"2", b"3"]


async def test_a_database_in_trouble_is_waited_for(
    url: str, name: Name, engine: Engine, bootstrap: str, fresh: Name
) -> None:
    topic, own = fresh("orders"), create_engine(url)
    make_topic(bootstrap, topic, 1)
    outbox = Outbox(own, table=name("outbox"))
    await outbox.create()
    is_away = False

    @event.listens_for(own, "before_cursor_execute")
    def _fail(*_: Any) -> None:
        if is_away:
            raise ConnectionError("the database is away")

    async with relaying(outbox, bootstrap) as relay:
        for number in range(2):
            is_away = True
            await until(lambda: relay.health()["state"] == "waiting for the database", "it waits")
            assert not relay.health()["ok"]
            assert "away" in relay.health()["error"]
            with engine.begin() as connection:
                outbox.send(connection, topic, "k", str(number))
            is_away = False
            await until(lambda n=number: states(engine, outbox) == {CONFIRMED: n + 1}, "it goes on")  # type: ignore[misc]
    own.dispose()
    assert [each.value() for each in messages(bootstrap, topic)] == [b"0", b"1"]


def test_what_makes_no_sense_is_refused(outbox: Outbox, engine: Engine, url: str) -> None:
    declared = Outbox(url, topics=[Topic("numbers", int, key=str)])
    with engine.connect() as connection:
        for wrong in (lambda: declared.send(connection, "numbers", "k", "text"), lambda: outbox.row("no topic!")):
            with pytest.raises(WrongType):
                wrong()
    for route in ("outbox.{nothing}", "no topic {aggregatetype}"):
        with pytest.raises(SetupError, match="route"):
            OutboxRelay(outbox, route=route)
