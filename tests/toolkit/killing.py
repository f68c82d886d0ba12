"""Members of a group killed with SIGKILL, at random moments and at named steps, while others come and go.

At the end every record was handled; and the members' journals, laid side by side by time, show that no record of a key
was begun before the one before it had ended, that no key was at work twice at once, and that no record was begun again
once a commit that covers it was acknowledged.
"""

import random
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

KEYS = 40
Where = tuple[str, int]


def make_topic(bootstrap: str, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for future in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        future.result(15)


@dataclass(slots=True)
class Line:
    at_ns: int
    member: str
    kind: str
    words: list[str]


@dataclass(slots=True)
class Member:
    name: str
    process: "subprocess.Popen[bytes]"
    journal: Path
    position: int = 0
    rest: bytes = b""

    def news(self) -> list[Line]:
        """What was written since the last time; the line that a kill cut off does not count."""
        if not self.journal.exists():
            return []
        with self.journal.open("rb") as file:
            file.seek(self.position)
            data = file.read()
        self.position += len(data)
        *lines, self.rest = (self.rest + data).split(b"\n")
        found = (line.decode().split() for line in lines)
        return [Line(int(words[0]), self.name, words[1], words[2:]) for words in found]


@dataclass(slots=True)
class Killing:
    """Processes that come and go, and what they wrote."""

    bootstrap: str
    topic: str
    group: str
    folder: Path
    failing: bool
    running: list[Member] = field(default_factory=list)
    members: list[Member] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    done: set[int] = field(default_factory=set)
    sent: int = 0
    killed: int = 0

    def start(self, die_at: str = "") -> Member:
        name = f"member-{len(self.members) + 1}"
        journal = self.folder / f"{name}.txt"
        kind = "failing" if self.failing else "steady"
        arguments = [self.bootstrap, self.group, self.topic, str(journal), kind, die_at]
        with (self.folder / f"{name}.log").open("wb") as log:
            command = [sys.executable, "-m", "tests.toolkit.members", *arguments]
            process = subprocess.Popen(command, stdout=log, stderr=log)
        member = Member(name, process, journal)
        self.running.append(member)
        self.members.append(member)
        return member

    def look(self) -> None:
        for member in self.members:
            for line in member.news():
                self.lines.append(line)
                if line.kind == "ended":
                    self.done.add(int(line.words[1]))

    def has_started(self, member: Member) -> bool:
        self.look()
        return any(line.member == member.name and line.kind == "started" for line in self.lines)

    def kill(self, member: Member) -> None:
        self.lines.append(Line(time.monotonic_ns(), member.name, "dying", []))
        member.process.kill()
        self.bury(member)

    def bury(self, member: Member) -> None:
        assert member.process.wait(240) == -9, self.logs()
        self.running.remove(member)
        self.killed += 1

    def wait(self, condition: Callable[[], bool], seconds: float = 300) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.02)

    def stop(self, members: Sequence[Member]) -> None:
        """In peace."""
        for member in members:
            self.wait(partial(self.has_started, member))  # who has just begun knows no signals yet
            member.process.terminate()
        for member in members:
            assert member.process.wait(240) == 0, self.logs()
            self.running.remove(member)

    def end(self) -> None:
        for member in self.running:
            member.process.kill()
            member.process.wait()

    def logs(self) -> str:
        said = "\n".join(f"{path.name}: {path.read_text()[-2_000:]}" for path in sorted(self.folder.glob("*.log")))
        return f"{len(self.done)} of {self.sent} handled\n{said}"


class Feeder:
    """Sends numbers, key by key in turn, until told to stop."""

    def __init__(self, killing: Killing, per_second: int) -> None:
        self._killing = killing
        self._per_second = per_second
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._feed)
        self._thread.start()

    def _feed(self) -> None:
        settings = {"bootstrap.servers": self._killing.bootstrap, "log_level": 0, "partitioner": "murmur2_random"}
        producer = Producer({**settings, "enable.idempotence": True, "linger.ms": 5})
        while not self._stopping.is_set():
            for _ in range(self._per_second // 20):
                number = self._killing.sent
                producer.produce(self._killing.topic, number.to_bytes(8, "big"), f"k{number % KEYS}".encode())
                self._killing.sent += 1
            producer.poll(0)
            self._stopping.wait(0.05)
        assert producer.flush(60) == 0

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()


def run_killing(
    bootstrap: str,
    topic: str,
    group: str,
    folder: Path,
    *,
    kills: int,
    steps: Sequence[str] = (),
    failing: bool,
    seed: int,
    per_second: int = 200,
) -> Killing:
    """Kill and replace members, at random and at these steps; wait until everything was handled; stop in peace."""
    chance = random.Random(seed)
    make_topic(bootstrap, topic, 6)
    killing = Killing(bootstrap, topic, group, folder, failing)
    killing.start()
    killing.start()
    feeder = Feeder(killing, per_second)
    try:
        try:
            for turn in chance.sample([*steps, *[""] * kills], len(steps) + kills):
                _progress(killing)
                if turn:
                    _die_at(killing, turn, chance)
                else:
                    time.sleep(chance.random())
                    killing.kill(chance.choice(killing.running))
                    killing.start()
                _come_and_go(killing, chance)
        finally:
            feeder.stop()
        _all_done(killing)
        killing.stop(list(killing.running))
        killing.look()
    except BaseException:
        killing.end()
        raise
    return killing


def _progress(killing: Killing) -> None:
    """Something was handled since: the group is not only rebalancing."""
    killing.look()
    before = len(killing.done)

    def has_moved() -> bool:
        killing.look()
        return len(killing.done) > before

    killing.wait(has_moved)


def _die_at(killing: Killing, step: str, chance: random.Random) -> None:
    """A member that dies at this step; others come and go until it has."""
    from tests.toolkit.members import ENDING_STEPS

    member = killing.start(f"{step}:{chance.randint(1, 3) if step not in ENDING_STEPS else 1}")
    if step in ENDING_STEPS:
        _progress(killing)
        killing.wait(partial(killing.has_started, member))
        member.process.terminate()
    deadline = time.monotonic() + 180
    waited = time.monotonic() + 4
    while member.process.poll() is None and time.monotonic() < waited:
        time.sleep(0.02)
    while member.process.poll() is None:
        assert time.monotonic() < deadline, f"{step} was never reached\n{killing.logs()}"
        # Rebalances, which some steps need: everybody else leaves, so that it has everything, and others come.
        killing.stop([each for each in killing.running if each is not member])
        killing.start()
        killing.start()
        waited = time.monotonic() + 10
        while member.process.poll() is None and time.monotonic() < waited:
            time.sleep(0.02)
    killing.bury(member)


def _come_and_go(killing: Killing, chance: random.Random) -> None:
    """Rebalances in peace, between those that are not."""
    if chance.random() < 0.3 and len(killing.running) > 2:
        killing.stop([chance.choice(killing.running)])
    if chance.random() < 0.3 and len(killing.running) < 4:
        killing.start()


def _all_done(killing: Killing) -> None:
    def is_all_done() -> bool:
        killing.look()
        return len(killing.done) == killing.sent

    killing.wait(is_all_done, 300)


def judge(killing: Killing, *, is_ordered: bool) -> dict[str, int]:
    """What the journals say, laid side by side. Returns counts, for whoever wants to know what was tried."""
    lines = sorted(killing.lines, key=lambda line: line.at_ns)
    lost = [(line.member, word, line.at_ns) for line in lines if line.kind == "lost" for word in line.words]
    covered: dict[Where, int] = defaultdict(int)
    beyond: dict[Where, set[int]] = defaultdict(set)
    at_work: dict[str, dict[str, int]] = defaultdict(dict)  # by key: which member is at which number
    ended: set[int] = set()
    counts: dict[str, int] = defaultdict(int)
    for line in lines:
        counts[line.kind] += 1
        match line.kind:
            case "commit":
                where = (line.words[0], int(line.words[1]))
                covered[where] = max(covered[where], int(line.words[2]))
                for pair in line.words[3].split(",") if line.words[3] != "-" else ():
                    start, stop = pair.split("-")
                    beyond[where].update(range(int(start), int(stop)))
            case "began":
                key, number, topic, index, offset = line.words
                where = (topic, int(index))
                is_zombie = any(
                    member == line.member and word == f"{topic}:{index}" and at_ns > line.at_ns
                    for member, word, at_ns in lost
                )
                is_covered = int(offset) < covered[where] or int(offset) in beyond[where]
                assert is_zombie or not is_covered, f"begun again after its commit: {line}"
                counts["repeated"] += int(number) in ended
                if not is_ordered:
                    continue
                assert int(number) < KEYS or int(number) - KEYS in ended, f"begun before the one before it: {line}"
                others = at_work[key]
                assert is_zombie or not others, f"{others} is at work on the same key: {line}"
                others[line.member] = int(number)
            case "ended":
                ended.add(int(line.words[1]))
                at_work[line.words[0]].pop(line.member, None)
            case "broke":
                at_work[line.words[0]].pop(line.member, None)
            case "dying":
                for others in at_work.values():
                    others.pop(line.member, None)
    assert len(ended) == killing.sent
    return dict(counts)
