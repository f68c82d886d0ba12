"""Members that kill themselves: python -m tests.toolkit.db.killed KIND STEP:COUNT ARGUMENTS…

Each dies by SIGKILL when it has reached a named step for the so-manyth time; `-` lets it live.
"""

import os
import signal
import sys
from collections.abc import Callable

from sqlalchemy import Column, Connection, Integer, MetaData, String, Table, insert

from moldau.toolkit import App
from moldau.toolkit.db import Store


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


if __name__ == "__main__":
    {"once": once}[sys.argv[1]](*sys.argv[2:])
