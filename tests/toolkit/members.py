"""One member of a group as a process of its own, for tests that kill it: python -m tests.toolkit.members …

It handles numbers by key, and writes a journal: when a handler began and how it ended, what a commit that was
acknowledged covers, which partitions came and went, each line with the machine's monotonic time, so that the journals
of all members can be laid side by side. Lines are single writes to a file opened for appending: a killed process keeps
them. With `die_at="step:3"` it kills itself the third time it passes that step (`STEPS`).
"""

import asyncio
import inspect
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from typing import Annotated, Any

from moldau.toolkit import App, FromKey, Message, Retry, offset_map
from moldau.toolkit.consumer_events import Committed
from moldau.toolkit.consuming import ConsumerThread
from moldau.toolkit.group import Group
from moldau.toolkit.scheduler import Scheduler

# A step: what is wrapped, and whether to die before or after it.
STEPS: dict[str, tuple[type, str, str]] = {
    "starting points asked for": (ConsumerThread, "_starts", "before"),
    "starting points known": (ConsumerThread, "_starts", "after"),
    "assignment told": (Group, "_assigned", "before"),
    "assignment taken": (Group, "_assigned", "after"),
    "records told": (Group, "_arrived", "before"),
    "records taken": (Group, "_arrived", "after"),
    "record finished": (Scheduler, "finished", "after"),
    "commit made ready": (Group, "_to_commit", "after"),
    "commit asked for": (ConsumerThread, "_commit", "before"),
    "commit acknowledged": (ConsumerThread, "_commit", "after"),
    "commit taken": (Group, "_committed", "after"),
    "partitions to be given back": (ConsumerThread, "_on_revoke", "before"),
    "handlers given a moment": (Group, "_revoking", "after"),
    "partitions given back": (ConsumerThread, "_forget", "after"),
    "partitions gone": (Group, "_removed", "after"),
}
FAILING_STEPS: dict[str, tuple[type, str, str]] = {
    "retry to be sent": (Group, "_hand_over", "before"),
    "retry acknowledged": (Group, "_hand_over", "after"),
}
ENDING_STEPS: dict[str, tuple[type, str, str]] = {
    "stopping": (Group, "stop", "before"),
    "last commit": (Group, "commit_now", "before"),
    "leaving": (ConsumerThread, "close", "before"),
    "left": (Group, "stop", "after"),
}


class Journal:
    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, (time.monotonic_ns(), *words))) + "\n").encode())

    def die(self) -> None:
        self.note("dying")
        os.kill(os.getpid(), signal.SIGKILL)


def plant(journal: Journal, step: str) -> None:
    """Have this process die at a step."""
    name, _, count = step.partition(":")
    owner, method, when = (STEPS | FAILING_STEPS | ENDING_STEPS)[name]
    original: Callable[..., Any] = getattr(owner, method)
    left = int(count)

    def passed() -> None:
        nonlocal left
        left -= 1
        if not left:
            journal.die()

    def wrapped(*arguments: Any, **named: Any) -> Any:
        if when == "before":
            passed()
        result = original(*arguments, **named)
        if when == "after":
            passed()
        return result

    async def wrapped_async(*arguments: Any, **named: Any) -> Any:
        if when == "before":
            passed()
        result = await original(*arguments, **named)
        if when == "after":
            passed()
        return result

    setattr(owner, method, wrapped_async if inspect.iscoroutinefunction(original) else wrapped)


def note_commits(journal: Journal) -> None:
    original = Group._committed

    def committed(group: Group, event: Committed) -> None:
        if event.error is None:
            for (topic, index), (offset, text) in event.offsets.items():
                beyond = ",".join(f"{start}-{stop}" for start, stop in offset_map.decode(offset, text).finished)
                journal.note("commit", topic, index, offset, beyond or "-")
        original(group, event)

    setattr(Group, "_committed", committed)  # noqa: B010  only to look; mypy would have it otherwise


def main(bootstrap: str, group: str, topic: str, path: str, failing: str, die_at: str = "") -> None:
    journal = Journal(path)
    note_commits(journal)
    if die_at:
        plant(journal, die_at)
    app = App(
        group,
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        commit_every="20ms",
        consumer={"session.timeout.ms": 6_000, "heartbeat.interval.ms": 300},
    )
    app.on_start(lambda: journal.note("started"))
    app.on_assigned(lambda wheres: journal.note("assigned", *(f"{name}:{index}" for name, index in wheres)))
    app.on_lost(lambda wheres: journal.note("lost", *(f"{name}:{index}" for name, index in wheres)))

    later = ["50ms"] if failing == "failing" else []

    @app.handler(topic, workers=8, retry=Retry(now=2, backoff="1ms", later=later), dead_letter=True)
    async def handle(number: int, key: Annotated[str, FromKey()], message: Message) -> None:
        record = (key, number, message.topic, message.partition, message.offset)
        journal.note("began", *record)
        try:
            await asyncio.sleep(random.random() * 0.004)
            # One in fifty goes to the retry topic, and none further.
            if failing == "failing" and number % 10 == 0 and message.attempt <= 3 and random.random() < 0.6:
                raise ValueError("as it happens")
        except BaseException:
            journal.note("broke", *record)
            raise
        journal.note("ended", *record)

    app.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
