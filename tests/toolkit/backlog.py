"""One app over a long backlog, as a process of its own: prints its resident memory in MiB after every twentieth.

python -m tests.toolkit.backlog BOOTSTRAP TOPIC COUNT. The backlog is written by another process, which is not measured.
"""

import asyncio
import os
import subprocess
import sys

from confluent_kafka import Producer

from moldau.toolkit import App
from tests.toolkit.killing import make_topic


def fill(bootstrap: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "linger.ms": 20})
    for number in range(count):
        while True:
            try:
                producer.produce(topic, bytes(100), str(number % 10_000).encode())
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(300) == 0


def resident_mib() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 2**20


def read(bootstrap: str, topic: str, count: int) -> None:
    app = App(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    step, seen = count // 20, 0

    @app.handler(topic, workers=32)
    async def handle(value: bytes) -> None:
        nonlocal seen
        seen += 1
        if seen % step == 0:
            print(resident_mib(), flush=True)
        if seen == count:
            app.ask_to_stop()
        if seen % 64 == 0:
            await asyncio.sleep(0)

    app.run()


def main(bootstrap: str, topic: str, count: str, part: str = "read") -> None:
    if part == "fill":
        fill(bootstrap, topic, int(count))
        return
    make_topic(bootstrap, topic, 4)
    subprocess.run([sys.executable, "-m", "tests.toolkit.backlog", bootstrap, topic, count, "fill"], check=True)
    read(bootstrap, topic, int(count))


if __name__ == "__main__":
    main(*sys.argv[1:])
