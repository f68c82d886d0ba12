"""One member of a group as a process of its own, for tests that kill it: python -m tests.toolkit.members …

It handles numbers by key. Before a handler ends it appends a line to its journal; after a commit was acknowledged it
appends what the commit covers. Both are single writes to a file opened for appending, which a killed process keeps.
"""

import asyncio
import os
import random
import sys
from collections.abc import Mapping
from typing import Annotated

from moldau.toolkit import App, FromKey, Message, Retry
from moldau.toolkit.scheduler import Where


def main(bootstrap: str, group: str, topic: str, journal: str, failing: str) -> None:
    out = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    class Commits:
        def on_commit(self, offsets: Mapping[Where, int]) -> None:
            for (name, index), offset in offsets.items():
                if name == topic:
                    os.write(out, f"commit {index} {offset}\n".encode())

    app = App(
        group,
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        interceptors=[Commits()],
        commit_every="20ms",
        consumer={"session.timeout.ms": 6_000, "heartbeat.interval.ms": 300},
    )
    app.on_start(lambda: os.write(out, b"started\n"))
    app.on_assigned(lambda wheres: os.write(out, f"assigned {len(wheres)}\n".encode()))

    @app.handler(topic, workers=8, retry=Retry(now=2, backoff="1ms", later=["50ms"]), dead_letter=True)
    async def handle(number: int, key: Annotated[str, FromKey()], message: Message) -> None:
        await asyncio.sleep(random.random() * 0.004)
        if failing == "failing" and random.random() < 0.05:
            raise ValueError("as it happens")
        origin = message.origin
        os.write(out, f"done {key} {number} {origin.partition} {origin.offset} {message.is_ours:d}\n".encode())

    app.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
