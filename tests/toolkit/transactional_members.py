"""A member with a transactional handler, which dies or stands still between two steps of a transaction.

python -m tests.toolkit.transactional_members BOOTSTRAP GROUP TOPIC OUT STEP COUNT SIGNAL DELAYS

With a name for DELAYS, every fifth record fails the first time, and a relay waits for its retry.
"""

import logging
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

from moldau.toolkit import App, Message, Retry
from moldau.toolkit.delays.topics import DELAYS

STEPS = ("begun", "produced", "offsets", "committed", "noted")


def main(bootstrap: str, group: str, topic: str, out: str, step: str, count: str, number: str, delays: str) -> None:
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
        delays=delays or DELAYS,
    )
    app.transaction_step = at

    retry = Retry(now=0, later=["100ms"], by="relay") if delays else Retry(now=20, backoff="1ms")

    @app.handler(topic, workers=8, retry=retry, transactional=True, to=out)
    async def double(number: str, message: Message) -> str:
        app.send(f"{out}-more", f"more {number}", key=number)
        if (int(number) % 5 == 0 and message.attempt == 1) if delays else random.random() < 0.1:
            raise ValueError("what was sent before is not sent")
        return f"done {number}"

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    app.run()


def start_member(
    bootstrap: str,
    group: str,
    topic: str,
    out: str,
    log: Path,
    step: str = "-",
    count: int = 0,
    number: int = 9,
    delays: str = "",
) -> subprocess.Popen[bytes]:
    words = [bootstrap, group, topic, out, step, str(count), str(int(number)), delays]
    with log.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.toolkit.transactional_members", *words], stdout=file, stderr=file
        )


KILL, STOP, GO_ON = signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT

if __name__ == "__main__":
    main(*sys.argv[1:])
