"""A member with a transactional handler, which dies or stands still between two steps of a transaction.

python -m tests.toolkit.transactional_members BOOTSTRAP GROUP TOPIC OUT STEP COUNT SIGNAL
"""

import logging
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

from moldau.toolkit import App, Retry

STEPS = ("begun", "produced", "offsets", "committed", "noted")


def main(bootstrap: str, group: str, topic: str, out: str, step: str, count: str, number: str) -> None:
    left = int(count)
    lock = threading.Lock()

    def at(name: str) -> None:
        nonlocal left
        with lock:
            if name == step:
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), int(number))

    app = App(
        group,
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        consumer={"session.timeout.ms": 6_000, "heartbeat.interval.ms": 300},
    )
    app.transaction_step = at

    @app.handler(topic, workers=8, retry=Retry(now=20, backoff="1ms"), transactional=True, to=out)
    async def double(number: str) -> str:
        app.send(f"{out}-more", f"more {number}", key=number)
        if random.random() < 0.1:
            raise ValueError("what was sent before is not sent")
        return f"done {number}"

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    app.run()


def start_member(
    bootstrap: str, group: str, topic: str, out: str, log: Path, step: str = "-", count: int = 0, number: int = 9
) -> subprocess.Popen[bytes]:
    words = [bootstrap, group, topic, out, step, str(count), str(int(number))]
    with log.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.toolkit.transactional_members", *words], stdout=file, stderr=file
        )


KILL, STOP, GO_ON = signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT

if __name__ == "__main__":
    main(*sys.argv[1:])
