"""Members that kill themselves: python -m tests.toolkit.db.killed KIND STEP:COUNT ARGUMENTS…

Each dies by SIGKILL when it has reached a named step for the so-manyth time; `-` lets it live.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable

from sqlalchemy import Column, Connection, Integer, MetaData, String, Table, create_engine, func, insert, select

from moldau.toolkit import App
from moldau.toolkit.db import ExactlyOnce, Outbox, OutboxRelay, Store


def results_table(name: str) -> Table:
    return Table(
        name,
        MetaData(),
        Column("number", Integer, primary_key=True, autoincrement=True),
        Column("word", String(100), nullable=False),
    )


def killer(when: str) -> Callable[[str], None]:
    """Called at every step; counts those of one name."""
    wanted, _, count = when.partition(":")
    left = int(count or 0)

    def reached(step: str) -> None:
        nonlocal left
        if step == wanted:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return reached


def member(bootstrap: str, group: str, instance: str) -> App:
    # A member that comes back under its name finds its partitions at once, without waiting for a session to end.
    consumer = {"group.instance.id": instance, "session.timeout.ms": 30_000, "heartbeat.interval.ms": 500}
    return App(group, bootstrap_servers=bootstrap, auto_offset_reset="earliest", commit_every="50ms", consumer=consumer)


def once(when: str, bootstrap: str, url: str, topic: str, instance: str, table: str) -> None:
    app = member(bootstrap, topic, instance)
    results = results_table(f"{table}_results")

    @app.handler(topic, once=Store(url, table=table, on_step=killer(when)))
    def handle(word: str, transaction: Connection) -> None:
        transaction.execute(insert(results).values(word=word))

    app.run()


def exactly_once(when: str, bootstrap: str, url: str, topic: str, instance: str, table: str) -> None:
    app = member(bootstrap, topic, instance)
    results = results_table(f"{table}_results")

    @app.handler(topic, order="partition", workers=2, once=ExactlyOnce(url, table=table, on_step=killer(when)))
    def handle(word: str, transaction: Connection) -> None:
        transaction.execute(insert(results).values(word=word))

    app.run()


def writer(when: str, url: str, topic: str, name: str, table: str, count: str) -> None:
    """Orders and their messages, in one transaction each; goes on where its predecessor of that name ended."""
    reached, engine = killer(when), create_engine(url, **({"connect_args": {"timeout": 30}} if "sqlite" in url else {}))
    outbox, orders = Outbox(engine, table=table), results_table(f"{table}_orders")
    with engine.connect() as connection:
        mine = select(func.count()).select_from(orders).where(orders.c.word.like(f"{name}-%"))
        done = connection.execute(mine).scalar_one()
    for number in range(done, int(count)):
        with engine.begin() as transaction:
            transaction.execute(insert(orders).values(word=f"{name}-{number}"))
            outbox.send(transaction, topic, f"{name}-{number % 3}", f"{name}-{number}")
            reached("written")
        reached("committed")


def relay(when: str, bootstrap: str, url: str, table: str) -> None:
    async def work() -> None:
        made = OutboxRelay(
            Outbox(url, table=table),
            bootstrap_servers=bootstrap,
            poll="20ms",
            batch=7,
            lease="1s",
            on_step=killer(when),
        )
        await made.start()
        await asyncio.Event().wait()

    asyncio.run(work())


if __name__ == "__main__":
    kinds: dict[str, Callable[..., None]] = {
        "once": once,
        "exactly_once": exactly_once,
        "writer": writer,
        "relay": relay,
    }
    kinds[sys.argv[1]](*sys.argv[2:])
