"""Kafka Streams on Moldau: a word count with exactly-once processing, killed in the middle again and again.

Every count a word ever had is in the output, once and in order: 1, 2, 3 and so on. A record that was processed twice,
or an aborted result that became visible, would repeat a number; a lost one would leave a gap.
"""

import random
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.interop.apache_kafka import compile_java, java_command
from tests.interop.peers.workshop import PEERS, tail
from tests.support.broker_process import BrokerProcess

PARTITIONS = 4
KILLS = 3
LINES_PER_LIFE = 1_500
SEEN_BEFORE_KILL = 1_000
WAIT_SECONDS = 120


class Output:
    """All committed counts so far, read as they come."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        self._consumer = Consumer(settings)
        self._consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        self.counts: dict[str, list[int]] = defaultdict(list)
        self.total = 0

    def read_until(self, total: int, process: subprocess.Popen[bytes], log: Path) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while self.total < total:
            assert process.poll() is None, f"Kafka Streams ended:\n{tail(log.read_bytes())}"
            assert time.monotonic() < deadline, f"{self.total} of {total} counts came:\n{tail(log.read_bytes())}"
            self.read(0.2)

    def read(self, seconds: float) -> int:
        messages = self._consumer.consume(500, seconds)
        for message in messages:
            assert message.error() is None, message.error()
            self.counts[(message.key() or b"").decode()].append(int(message.value() or b""))
        self.total += len(messages)
        return len(messages)

    def close(self) -> None:
        self._consumer.close()


@contextmanager
def word_count(
    bootstrap: str, topics: tuple[str, str], state_dir: Path, log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """The Streams program, killed at the end."""
    classes = compile_java(PEERS / "java" / "WordCount.java")
    command = java_command("WordCount", bootstrap, *topics, f"{topics[0]}-app", str(state_dir), classes=classes)
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_word_count_is_exact_though_killed(
    moldau: BrokerProcess, fresh_topic: Callable[[str], str], tmp_path: Path
) -> None:
    bootstrap = moldau.bootstrap_servers
    topics = fresh_topic("lines"), fresh_topic("counts")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in topics]).values():
        future.result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    choose = random.Random(7)
    expected: Counter[str] = Counter()
    output = Output(bootstrap, topics[1])
    log = tmp_path / "streams.log"
    killed_in_the_middle = 0
    for life in range(KILLS + 1):
        for number in range(LINES_PER_LIFE):
            words = [f"word{choose.randrange(30)}" for _ in range(2)]
            expected.update(words)
            producer.produce(topics[0], " ".join(words), str(number))
        assert producer.flush(30) == 0
        # A folder of its own for each life: nothing is known but what is in the topics.
        with word_count(bootstrap, topics, tmp_path / f"state-{life}", log) as process:
            is_last = life == KILLS
            output.read_until(expected.total() if is_last else output.total + SEEN_BEFORE_KILL, process, log)
        killed_in_the_middle += output.total < expected.total()
    output.read(5)  # should there be too much
    output.close()
    assert killed_in_the_middle == KILLS
    assert {word: counts[-1] for word, counts in output.counts.items()} == expected
    assert output.counts == {word: list(range(1, total + 1)) for word, total in expected.items()}
