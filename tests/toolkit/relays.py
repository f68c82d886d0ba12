"""A relay as a process of its own, which kills itself between two steps: python -m tests.toolkit.relays …"""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from moldau.toolkit.delays import DelayRelay

STEPS = (
    "fenced",
    "loaded",
    *(f"{kind} {step}" for kind in ("commands", "delivery") for step in ("begun", "produced", "committed", "applied")),
)


def main(bootstrap: str, topic: str, step: str, count: str) -> None:
    left = int(count)
    lock = threading.Lock()

    def at(name: str) -> None:
        nonlocal left
        with lock:
            if name == step:
                left -= 1
                if left <= 0:
                    os.kill(os.getpid(), signal.SIGKILL)

    relay = DelayRelay(bootstrap, topic=topic, partitions=8, at=at)
    relay.start()
    threading.Event().wait()


def start_victim(bootstrap: str, topic: str, step: str, count: int, log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.toolkit.relays", bootstrap, topic, step, str(count)]
    with log.open("wb") as out:
        return subprocess.Popen(command, stdout=out, stderr=out)


if __name__ == "__main__":
    main(*sys.argv[1:])
