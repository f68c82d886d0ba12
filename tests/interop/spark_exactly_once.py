"""What the tests of exactly-once have in common: a topic full of batches, and an application that is started again."""

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

from confluent_kafka import Producer

from tests.interop.apache_kafka import QUICK_JVM
from tests.interop.spark_exactly_once_driver import KEYS, PARTITIONS, ROWS_PER_PARTITION, steps_for
from tests.support.clients import quiet

REPOSITORY = Path(__file__).resolve().parents[2]


def fill(bootstrap: str, topic: str, batches: int) -> Counter[bytes]:
    """The same number of records for every batch, partition and key."""
    producer = Producer(quiet(bootstrap, linger_ms=20))
    values = []
    for batch in range(batches):
        for partition in range(PARTITIONS):
            for row in range(ROWS_PER_PARTITION):
                value = f"{batch}.{partition}.{row}".encode()
                number = row + ROWS_PER_PARTITION * partition
                producer.produce(topic, value, b"key-%d" % (number % KEYS), partition)
                values.append(value)
    assert producer.flush(30) == 0
    return Counter(values)


def run_to_the_end(
    bootstrap: str, source: str, target: str, folder: Path, victim: str, query: str, *master: str
) -> None:
    """Start it again and again. Spark itself repairs the death of a worker; that of a driver, the next start."""
    (folder / "fuses").mkdir()
    module = "tests.interop.spark_exactly_once_driver"
    command = [sys.executable, "-m", module, bootstrap, source, target, str(folder), victim, query, *master]
    deaths = len(steps_for(victim)) if victim.startswith("driver") else 0
    environment = os.environ | {"JDK_JAVA_OPTIONS": " ".join(QUICK_JVM)}
    for expected in (*[-signal.SIGKILL] * deaths, 0):
        done = subprocess.run(
            command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == expected, done.stderr[-4000:]
    burnt = {fuse.name for fuse in (folder / "fuses").iterdir() if not fuse.suffix}
    assert burnt == {str(batch) for batch in range(len(steps_for(victim)))}
