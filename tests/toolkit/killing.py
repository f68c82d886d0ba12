"""Members of a group killed with SIGKILL at random moments, and what must be true at the end."""

import random
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic


def make_topic(bootstrap: str, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for future in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        future.result(15)


class Members:
    """Processes that come and go, and their journals."""

    def __init__(self, bootstrap: str, group: str, topic: str, folder: Path, failing: bool) -> None:
        self._arguments = [bootstrap, group, topic]
        self._folder = folder
        self._failing = "failing" if failing else "steady"
        self._count = 0
        self.running: list[subprocess.Popen[bytes]] = []
        self._journals: dict[int, Path] = {}
        self.killed = 0

    def start(self) -> None:
        self._count += 1
        journal = self._folder / f"member-{self._count}.txt"
        command = [sys.executable, "-m", "tests.toolkit.members", *self._arguments, str(journal), self._failing]
        log = (self._folder / f"member-{self._count}.log").open("wb")
        with log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        self.running.append(process)
        self._journals[process.pid] = journal

    def kill(self) -> None:
        process = self.running.pop(random.randrange(len(self.running)))
        process.kill()
        process.wait()
        del self._journals[process.pid]
        self.killed += 1

    def stop(self) -> list[int]:
        deadline = time.monotonic() + 60
        # Who has just begun knows no signals yet.
        while not all(journal.exists() and journal.stat().st_size for journal in self._journals.values()):
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.02)
        for process in self.running:
            process.terminate()
        codes = [process.wait(60) for process in self.running]
        self.running.clear()
        return codes

    def end(self) -> None:
        for process in self.running:
            process.kill()
            process.wait()

    def lines(self) -> list[list[str]]:
        """Journal by journal; a line that was cut off by a kill does not count."""
        found = []
        for journal in sorted(self._folder.glob("member-*.txt")):
            found += [line.split() for line in journal.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return found

    def done(self) -> set[tuple[str, int]]:
        return {(line[1], int(line[2])) for line in self.lines() if line[0] == "done"}

    def logs(self) -> str:
        return "\n".join(path.read_text()[-2_000:] for path in sorted(self._folder.glob("member-*.log")))


def run_killing(
    bootstrap: str, topic: str, group: str, folder: Path, *, records: int, kills: int, failing: bool, seed: int
) -> Members:
    """Send, kill and replace members, wait until everything was handled; returns the members, still running."""
    random.seed(seed)
    make_topic(bootstrap, topic, 4)
    members = Members(bootstrap, group, topic, folder, failing)
    members.start()
    members.start()
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "partitioner": "murmur2_random"})
    keys = 40
    for number in range(records):
        producer.produce(topic, number.to_bytes(8, "big"), f"k{number % keys}".encode())
    producer.flush(30)
    try:
        wanted = {(f"k{number % keys}", number) for number in range(records)}
        deadline = time.monotonic() + 120 + 30 * kills  # patience only: see `waiting`
        for _ in range(kills):
            before = len(members.done())
            pause = time.monotonic() + random.random() * 2
            while time.monotonic() < pause or (len(members.done()) == before and time.monotonic() < deadline):
                time.sleep(0.02)
            members.kill()
            members.start()
        while members.done() != wanted:
            if time.monotonic() > deadline:
                missing = sorted(wanted - members.done())[:5]
                raise AssertionError(f"not handled: {missing} …\n{members.logs()}")
            time.sleep(0.05)
    except BaseException:
        members.end()
        raise
    return members


def check_journals(folder: Path) -> None:
    """In every journal: a key's numbers grow but for repeats, and nothing is done again that its own commit covered."""
    for journal in sorted(folder.glob("member-*.txt")):
        committed: dict[int, int] = defaultdict(int)
        for line in journal.read_text().splitlines(keepends=True):
            words = line.split()
            if not line.endswith("\n"):
                continue
            if words[0] == "commit":
                committed[int(words[1])] = max(committed[int(words[1])], int(words[2]))
            elif words[0] == "done" and words[5] == "1":
                assert int(words[4]) >= committed[int(words[3])], f"{journal.name}: {line} was committed before"


def check_order(folder: Path) -> None:
    """Without retries through topics: within a member a key's records end in order, repeats after a rebalance aside."""
    for journal in sorted(folder.glob("member-*.txt")):
        last: dict[str, int] = {}
        for line in journal.read_text().splitlines(keepends=True):
            words = line.split()
            if words[0] == "assigned":
                last.clear()  # from here on an earlier record may be repeated
            elif words[0] == "done" and line.endswith("\n") and words[5] == "1":
                key, number = words[1], int(words[2])
                assert number > last.get(key, -1), f"{journal.name}: {line} after {last[key]}"
                last[key] = number
