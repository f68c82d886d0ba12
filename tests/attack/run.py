"""Attack a broker of its own, with a bystander beside it (`tests/attack/bystander.py`), and say what it cost others.

`make attack` runs all moves at their full size on a machine that is otherwise quiet, and fails when a write of the
bystander waited over `LATENCY_MAX_S`, the loop's thread worked longer than `TURN_MAX_MS` at one go, the broker grew by
more than `GROWTH_MAX_BYTES`, one line flooded its log, or the bystander saw an error. The short form in `make test`
leaves the times alone: those are for quiet machines.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.attack import watched
from tests.attack.moves import MOVES
from tests.support.broker_process import read_ready, resident_bytes, spawn_serve

LATENCY_MAX_S = 0.25
TURN_MAX_MS = 50.0
GROWTH_MAX_BYTES = 1024 * 1024 * 1024
SAME_LINES_MAX = 500


@dataclass(slots=True)
class Report:
    """What one move cost."""

    move: str
    seconds: float = 0.0
    latency_max_s: float = 0.0
    turn_max_ms: float = 0.0
    turn_at: str = ""
    writes: int = 0
    growth_bytes: int = 0
    errors: list[str] = field(default_factory=list)
    lines: Counter[str] = field(default_factory=Counter)

    def complaints(self, *, with_latency: bool) -> list[str]:
        found = [f"{self.move}: the bystander saw {error}" for error in self.errors[:5]]
        if with_latency and self.latency_max_s > LATENCY_MAX_S:
            found.append(f"{self.move}: a write waited {self.latency_max_s * 1000:.0f} ms")
        if with_latency and self.turn_max_ms > TURN_MAX_MS:
            found.append(f"{self.move}: a turn of the loop took {self.turn_max_ms:.0f} ms: {self.turn_at}")
        if self.growth_bytes > GROWTH_MAX_BYTES:
            found.append(f"{self.move}: the broker grew by {self.growth_bytes >> 20} MiB")
        found += [f"{self.move}: {count} times: {line}" for line, count in self.lines.items() if count > SAME_LINES_MAX]
        return found

    def __str__(self) -> str:
        return (
            f"{self.move:16} {self.seconds:6.1f} s  {self.writes:5} writes, longest {self.latency_max_s * 1000:6.0f} ms"
            f"  turn {self.turn_max_ms:5.1f} ms  +{self.growth_bytes >> 20} MiB"
            f"  {sum(self.lines.values())} lines  {len(self.errors)} errors"
        )


def attack(moves: Mapping[str, float]) -> Report:
    """Moves of these sizes, one after the other, against a broker of their own."""
    report = Report(", ".join(moves))
    with tempfile.TemporaryDirectory() as folder:
        broker = spawn_serve(
            *("--listen", "127.0.0.1:0", "--data-dir", f"{folder}/data", "--set=auto.create.topics.enable=false"),
            *("--set=offsets.topic.num.partitions=2", "--set=transaction.state.log.num.partitions=2"),
            module="tests.attack.watched",
        )
        try:
            bootstrap = read_ready(broker)
            reading = threading.Thread(target=_read_lines, args=(broker, report))
            reading.start()
            _measure(report, bootstrap, broker.pid, moves)
            broker.terminate()
            broker.wait(60)
            reading.join(10)
        finally:
            broker.kill()
            broker.communicate()
    return report


def _read_lines(broker: subprocess.Popen[str], report: Report) -> None:
    """What the broker says, numbers and names aside; and what its watch does."""
    assert broker.stderr is not None
    for line in broker.stderr:
        if line.startswith(watched.PREFIX):
            turn, _, report.turn_at = line.removeprefix(watched.PREFIX).strip().partition(" ms ")
            report.turn_max_ms = float(turn.removesuffix(" ms"))
            continue
        report.lines[re.sub(r"\d+|'[^']*'", "N", line.strip())[:120]] += 1


def _measure(report: Report, bootstrap: str, pid: int, moves: Mapping[str, float]) -> None:
    command = [sys.executable, "-m", "tests.attack.bystander", bootstrap]
    bystander = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    done = threading.Event()
    peak = before = 0

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.02):
            peak = max(peak, resident_bytes(pid))

    watching = threading.Thread(target=watch)
    try:
        assert bystander.stdout is not None
        if bystander.stdout.readline().strip() != "ready":
            raise AssertionError(f"the bystander did not get ready: {bystander.communicate()}")
        time.sleep(0.5)
        os.kill(pid, signal.SIGUSR1)
        before = resident_bytes(pid)
        watching.start()
        started = time.perf_counter()
        for move, size in moves.items():
            MOVES[move](bootstrap, size)
        report.seconds = time.perf_counter() - started
        time.sleep(0.5)
        os.kill(pid, signal.SIGUSR1)
        said, _ = bystander.communicate("stop\n", 60)
        told = json.loads(said)
        report.writes, report.errors = len(told["latencies"]), told["errors"]
        report.latency_max_s = max(told["latencies"])
    except (json.JSONDecodeError, subprocess.TimeoutExpired) as error:
        report.errors.append(f"an end: {error}")
    finally:
        done.set()
        if watching.ident is not None:
            watching.join()
        bystander.kill()
        bystander.communicate()
    report.growth_bytes = max(0, peak - before)


def _compile(folder: str) -> None:
    """As an installer does. A broker loads what it needs when it is first asked for it, and where nobody may write
    bytecode (PYTHONDONTWRITEBYTECODE) it would compile it then, each time."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = folder
    subprocess.run([sys.executable, "-m", "compileall", "-q", "src/moldau", "tests/attack"], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attack.run")
    parser.add_argument("--size", type=float, default=1.0, help="of the moves, 1 being what once hurt")
    parser.add_argument("moves", nargs="*", default=list(MOVES), help=f"of {', '.join(MOVES)}")
    given = parser.parse_args()
    complaints = []
    with tempfile.TemporaryDirectory() as bytecode:
        _compile(bytecode)
        for move in given.moves:
            report = attack({move: given.size})
            print(report, flush=True)
            complaints += report.complaints(with_latency=True)
    print("\n".join(complaints) or "nobody was hurt")
    return 1 if complaints else 0


if __name__ == "__main__":
    assert Path("tests/attack").is_dir(), "run it from the root of the repository"
    raise SystemExit(main())
