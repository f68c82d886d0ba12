"""Processes that are killed between every two steps, started again, and counted at the end."""

import asyncio
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from sqlalchemy import Engine, func, insert, select

from moldau.toolkit.db import Outbox
from moldau.toolkit.db.outbox import CONFIRMED
from moldau.toolkit.reading import read_topic
from tests.toolkit.db.killed import results_table
from tests.toolkit.killing import make_topic


class Processes:
    """Members of tests.toolkit.db.killed, with their output in files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[subprocess.Popen[bytes]] = []
        self._count = 0

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        self._count += 1
        with (self._folder / f"process-{self._count}.log").open("wb") as log:
            command = [sys.executable, "-m", "tests.toolkit.db.killed", *arguments]
            process = subprocess.Popen(command, stdout=log, stderr=log)
        self._running.append(process)
        return process

    def until_killed(self, process: subprocess.Popen[bytes], meanwhile: Callable[[], None]) -> None:
        """It has reached its step; until then there is always something more to do."""

        def has_ended() -> bool:
            meanwhile()
            return process.poll() is not None

        self.until(has_ended, "it reaches its step")
        assert process.returncode == -9, f"exit code {process.returncode}\n{self.logs()}"

    def until(self, condition: Callable[[], bool], what: str, seconds: float = 240) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"{what}\n{self.logs()}"
            time.sleep(0.05)

    def logs(self) -> str:
        return "\n".join(path.read_text()[-1_500:] for path in sorted(self._folder.glob("process-*.log")))

    def stop(self) -> None:
        for process in self._running:
            if process.poll() is None:
                process.kill()
                process.wait()


@contextmanager
def processes(folder: Path) -> Iterator[Processes]:
    made = Processes(folder)
    try:
        yield made
    finally:
        made.stop()


class Words:
    """Sends words to two partitions, each under its id and twice."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        make_topic(bootstrap, topic, 2)
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
        self.sent: list[str] = []

    def send(self, count: int = 2) -> None:
        for _ in range(count):
            word = f"w{len(self.sent)}"
            for _ in range(2):
                self._producer.produce(
                    self._topic, word, word, headers=[("moldau-id", word.encode())], partition=len(self.sent) % 2
                )
            self.sent.append(word)
        assert self._producer.flush(30) == 0


def is_consumed(bootstrap: str, group: str, topic: str) -> bool:
    """Whether the group has committed the end of both partitions."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    try:
        found = consumer.committed([TopicPartition(topic, index) for index in range(2)], timeout=10)
        return all(each.offset == consumer.get_watermark_offsets(each, timeout=10)[1] for each in found)
    finally:
        consumer.close()


def words_in(engine: Engine, table: str) -> dict[str, int]:
    """How often each was written."""
    results = results_table(table)
    with engine.connect() as connection:
        rows = connection.execute(select(results.c.word, func.count()).group_by(results.c.word))
        return {str(word): int(number) for word, number in rows}


def kill_once(
    bootstrap: str, url: str, engine: Engine, topic: str, table: str, folder: Path, steps: Sequence[str], rounds: int
) -> None:
    """Every word is sent twice under one id: it is written once."""
    _kill_members("once", 1, bootstrap, url, engine, topic, table, folder, steps, rounds)


def kill_exactly_once(
    bootstrap: str, url: str, engine: Engine, topic: str, table: str, folder: Path, steps: Sequence[str], rounds: int
) -> None:
    """Every word is sent twice, as two records: it is written twice."""
    _kill_members("exactly_once", 2, bootstrap, url, engine, topic, table, folder, steps, rounds)


def _kill_members(
    kind: str,
    times: int,
    bootstrap: str,
    url: str,
    engine: Engine,
    topic: str,
    table: str,
    folder: Path,
    steps: Sequence[str],
    rounds: int,
) -> None:
    """One member killed at every step, in several rounds; another beside it; then everything was done."""
    kills = [f"{step}:{count}" for count in range(2, 2 + rounds) for step in steps]
    results_table(f"{table}_results").metadata.create_all(engine)
    words = Words(bootstrap, topic)
    with processes(folder) as running:
        running.start(kind, "-", bootstrap, url, topic, "steady", table)
        for kill in kills:
            killed = running.start(kind, kill, bootstrap, url, topic, "killed", table)
            running.until_killed(killed, words.send)
        running.start(kind, "-", bootstrap, url, topic, "killed", table)
        wanted = set(words.sent)
        running.until(lambda: set(words_in(engine, f"{table}_results")) == wanted, "every word is written")
        running.until(lambda: is_consumed(bootstrap, topic, topic), "everything is consumed")
    assert words_in(engine, f"{table}_results") == dict.fromkeys(words.sent, times)


def kill_outbox(
    bootstrap: str, url: str, engine: Engine, topic: str, table: str, folder: Path, steps: Sequence[str], rounds: int
) -> None:
    """Writers and relays killed at every step, a relay beside them; then orders and messages are the same."""
    outbox = Outbox(url, table=table)

    async def make() -> None:
        await outbox.create()
        await outbox.database.close()

    asyncio.run(make())
    results_table(f"{table}_orders").metadata.create_all(engine)
    make_topic(bootstrap, topic, 2)
    per_writer = 30 * rounds
    with processes(folder) as running:
        for count in range(2, 2 + rounds):
            for step in ("written", "committed"):
                killed = running.start("writer", f"{step}:{count}", url, topic, "a", table, str(per_writer))
                running.until_killed(killed, lambda: None)
        steady = 0

        def more() -> None:
            """There is always something for the relay that is to be killed."""
            nonlocal steady
            with engine.begin() as transaction:
                word = f"steady-{steady}"
                transaction.execute(insert(results_table(f"{table}_orders")).values(word=word))
                outbox.send(transaction, topic, f"steady-{steady % 5}", word)
            steady += 1

        running.start("relay", "-", bootstrap, url, table)
        for count in range(1, 1 + rounds):
            for step in steps:
                killed = running.start("relay", f"{step}:{count}", bootstrap, url, table)
                running.until_killed(killed, more)
        for name in ("a", "b"):
            assert running.start("writer", "-", url, topic, name, table, str(per_writer)).wait(240) == 0, running.logs()

        def is_sent() -> bool:
            with engine.connect() as connection:
                column = outbox.table.c.state
                return set(connection.scalars(select(column).distinct())) == {CONFIRMED}

        running.until(is_sent, "everything is confirmed")
    check_messages(bootstrap, topic, words_in(engine, f"{table}_orders"))


def check_messages(bootstrap: str, topic: str, orders: dict[str, int]) -> None:
    """Every order has its message, every message its order; a key's messages are in order but for repeats."""
    first_seen: dict[bytes, list[int]] = defaultdict(list)
    seen: dict[str, str] = {}
    for message in read_topic({"bootstrap.servers": bootstrap, "group.id": "none"}, topic):
        own, word = str(dict(message.headers() or ())["id"]), (message.value() or b"").decode()
        if own not in seen:
            seen[own] = word
            first_seen[message.key() or b""].append(int(word.rpartition("-")[2]))
    assert sorted(seen.values()) == sorted(orders)
    assert set(orders.values()) == {1}
    for key, numbers in first_seen.items():
        assert numbers == sorted(numbers), f"{key!r}: {numbers}"
