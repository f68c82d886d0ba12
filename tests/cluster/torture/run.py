"""Three processes under load while they are killed, frozen and cut off; then the clients' histories are checked.

`python -m tests.cluster.torture.run --minutes 10 --seed 7` prints a report; `make torture` is the same.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka.admin import AdminClient

from tests.cluster.torture.clients import TOPIC, Client, Poller, Sender, Transactor, read_everything
from tests.cluster.torture.history import History, anomalies
from tests.cluster.torture.housekeeping import KEYS, KEYS_CONFIG, SETTINGS, KeyWriter, Remaker, read_keys
from tests.cluster.torture.nodes import Nodes
from tests.cluster.workload import QUIET, create_topic, wait_until
from tests.support.link_proxy import CLIENT

PARTITIONS = 6


@dataclass(slots=True)
class Report:
    seed: int
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    acked: int = 0
    unknown: int = 0
    committed: int = 0
    aborted: int = 0
    undecided: int = 0
    polled: int = 0
    keys: int = 0
    rounds: int = 0
    longest_silence: float = 0.0
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        faults = ", ".join(f"{count} {name}" for name, count in sorted(self.faults.items()))
        lines = [
            f"seed {self.seed}: {self.seconds:.0f} s, faults: {faults or 'none'}",
            f"  {self.acked} records acknowledged, {self.unknown} unknown; transactions: {self.committed} committed, "
            f"{self.aborted} aborted, {self.undecided} undecided; {self.polled} records polled",
            f"  {self.keys} keys of a compacted topic read, a topic made again {self.rounds} times",
            f"  longest time without an acknowledgement: {self.longest_silence:.1f} s",
            f"  anomalies: {len(self.wrong)}",
            *(f"    {each}" for each in self.wrong[:20]),
        ]
        return "\n".join(lines)


class Nemesis:
    """Breaks one thing at a time, sometimes two, and mends it again."""

    def __init__(self, nodes: Nodes, seed: int, report: Report) -> None:
        self._nodes = nodes
        self._random = random.Random(seed)
        self._report = report
        self._faults = [self._kill, self._freeze, self._isolate, self._cut_one_way, self._hide_from_clients, self._stop]

    def strike(self) -> None:
        fault = self._random.choice(self._faults)
        victim = self._random.randrange(1, self._nodes.count + 1)
        self._report.faults[fault.__name__.strip("_").replace("_", " ")] += 1
        fault(victim)
        time.sleep(self._random.uniform(0.5, 4))

    def _last(self) -> None:
        time.sleep(self._random.uniform(0.3, 8))

    def _others(self, victim: int) -> list[int]:
        return [each for each in range(1, self._nodes.count + 1) if each != victim]

    def _kill(self, victim: int) -> None:
        victims = [victim]
        if self._random.random() < 0.15:
            victims.append(self._random.choice(self._others(victim)))
        for each in victims:
            self._nodes.kill(each)
        self._last()
        for each in victims:
            self._nodes.spawn(each)
        for each in victims:
            self._nodes.wait_ready(each)

    def _stop(self, victim: int) -> None:
        self._nodes.stop(victim)
        self._nodes.spawn(victim)
        self._nodes.wait_ready(victim)

    def _freeze(self, victim: int) -> None:
        self._nodes.freeze(victim)
        self._last()
        self._nodes.thaw(victim)

    def _isolate(self, victim: int) -> None:
        ways = [(victim, each) for each in self._others(victim)] + [(each, victim) for each in self._others(victim)]
        if self._random.random() < 0.5:
            ways += [(victim, CLIENT), (CLIENT, victim)]
        self._nodes.links.cut(*ways)
        self._last()
        self._nodes.links.heal()

    def _cut_one_way(self, victim: int) -> None:
        other = self._random.choice(self._others(victim))
        self._nodes.links.cut((victim, other))
        self._last()
        self._nodes.links.heal()

    def _hide_from_clients(self, victim: int) -> None:
        self._nodes.links.cut((CLIENT, victim), (victim, CLIENT))
        self._last()
        self._nodes.links.heal()


def torture(data_dir: Path, seed: int, seconds: float) -> Report:
    report = Report(seed)
    nodes = Nodes(3, data_dir, SETTINGS)
    history = History()
    clients: list[Client] = []
    try:
        nodes.start_all()
        servers = nodes.bootstrap_servers
        create_topic(servers, TOPIC, PARTITIONS)
        create_topic(servers, KEYS, PARTITIONS, 3, **KEYS_CONFIG)
        common = (servers, history, PARTITIONS)
        clients += [Sender(f"s{number}", *common) for number in range(2)]
        clients += [Transactor(f"t{number}", *common) for number in range(2)]
        pollers = [Poller(f"poll-{kind}", *common, kind) for kind in ("read_committed", "read_uncommitted")]
        clients += pollers
        keyed = [KeyWriter(f"k{number}", *common) for number in range(2)]
        remaker = Remaker("remaker", *common)
        clients += [*keyed, remaker]
        for client in clients:
            client.start()
        wait_until(lambda: len(history.acked) > 50 and history.committed, "the load began", 40)
        _strike_for(seconds, Nemesis(nodes, seed, report), history, report)
        _settle(servers)
        for client in clients:
            client.stop()
        for client in clients:
            client.join(150)
            if client.is_alive() or client.failure is not None:
                report.wrong.append(f"client {client.name} did not end well: {client.failure!r}")
        final = read_everything(servers, PARTITIONS)
        report.wrong += anomalies(history, final)
        report.wrong += [line for poller in pollers for line in poller.resets]
        newest = read_keys(servers, PARTITIONS)
        for each in keyed:
            report.wrong += each.judge({key: value for key, value in newest.items() if key.startswith(f"{each.name}-")})
        report.wrong += remaker.wrong
        report.keys, report.rounds = len(newest), remaker.rounds
        said = nodes.said()
        if "Traceback" in said:
            report.wrong.append("a node's log has a traceback: " + said[said.index("Traceback") :][:2000])
        report.acked = len(history.acked) + len(history.acked_somewhere)
        report.unknown = len(history.unknown)
        report.committed, report.aborted = len(history.committed), len(history.aborted)
        report.undecided = len(history.undecided)
        report.polled = sum(len(each) for each in history.polls)
    finally:
        for client in clients:
            client.stop()
        nodes.close()
    return report


def _strike_for(seconds: float, nemesis: Nemesis, history: History, report: Report) -> None:
    import threading

    begin = time.monotonic()
    over = threading.Event()

    def listen() -> None:
        last, at = -1, time.monotonic()
        while not over.wait(0.05):
            now = time.monotonic()
            if len(history.acked) != last:
                last, at = len(history.acked), now
            report.longest_silence = max(report.longest_silence, now - at)

    listener = threading.Thread(target=listen)
    listener.start()
    try:
        while time.monotonic() - begin < seconds:
            nemesis.strike()
    finally:
        over.set()
        listener.join()
    report.seconds = time.monotonic() - begin


def _settle(servers: str) -> None:
    """Everything is mended: all replicas are in sync within a bound."""
    client = AdminClient({"bootstrap.servers": servers, **QUIET})

    def is_whole() -> bool:
        partitions = client.list_topics(TOPIC, timeout=20).topics[TOPIC].partitions
        return len(partitions) == PARTITIONS and all(len(each.isrs) == 3 for each in partitions.values())

    wait_until(is_whole, "all replicas in sync", 60)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="moldau-torture-") as folder:
        report = torture(Path(folder), arguments.seed, arguments.minutes * 60)
    print(report)
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
