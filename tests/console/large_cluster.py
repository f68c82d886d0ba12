"""The console over a real broker with 10,000 topics and 5,000 groups: how long first pages take, and what it holds.

    python -m tests.console.large_cluster [TOPICS GROUPS]

The broker and the console are processes of their own. A page is asked for eleven times, one after the other; the first
time is told apart, for it is what somebody who comes waits for.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

from moldau.wire import messages as m
from tests.broker.requests.handlers.wire_client import WireClient
from tests.support.broker_process import read_ready, spawn_serve

PAGES = ("/", "/topics", "/topics?page=50", "/topics?q=river-99", "/topics?sort=records", "/groups",
         "/groups?q=boat-49", "/topics/river-7", "/group?name=boat-7", "/api/topics", "/api/groups")  # fmt: skip
_AT_ONCE = 200


def fill(address: str, topics: int, groups: int) -> None:
    kind, commit = m.CreateTopicsRequest, m.OffsetCommitRequest
    with WireClient(address, "filler") as client:
        for begin in range(0, topics, _AT_ONCE):
            names = [f"river-{number}" for number in range(begin, min(begin + _AT_ONCE, topics))]
            answer = client.ask(kind([kind.CreatableTopic(name, 1, 1) for name in names], 120_000), 7)
            assert not any(each.error_code for each in answer.topics)
        client.ask(m.FindCoordinatorRequest("boat", 0, ["boat"]), 4)  # makes the coordinators' topic
        for number in range(groups):
            place = commit.OffsetCommitRequestTopic(
                f"river-{number % topics}", partitions=[commit.OffsetCommitRequestPartition(0, 0)]
            )
            request = commit(f"boat-{number}", topics=[place])
            while client.ask(request, 8).topics[0].partitions[0].error_code:
                time.sleep(0.1)  # the coordinator loads


def resident_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


def main() -> None:
    topics, groups = (int(each) for each in sys.argv[1:3]) if len(sys.argv) > 2 else (10_000, 5_000)
    with tempfile.TemporaryDirectory(prefix="moldau-large-") as folder:
        broker = spawn_serve("--listen", "127.0.0.1:0", "--data-dir", folder, stderr=subprocess.DEVNULL)
        console: subprocess.Popen[str] | None = None
        try:
            address = read_ready(broker)
            begun = time.monotonic()
            fill(address, topics, groups)
            print(f"{topics:,} topics and {groups:,} groups made in {time.monotonic() - begun:.0f} s", flush=True)
            command = [sys.executable, "-m", "moldau", "console", "-b", address, "--listen", "127.0.0.1:0"]
            console = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            url = read_ready(console)
            begun = time.monotonic()
            with httpx.Client(base_url=url, timeout=60) as client:
                while client.get("/api/topics").json()["total"] < topics:
                    time.sleep(0.2)
                while client.get("/api/groups").json()["total"] < groups:
                    time.sleep(0.2)
                print(f"all of it is shown {time.monotonic() - begun:.0f} s after the console's start", flush=True)
                for page in PAGES:
                    times = []
                    for _ in range(11):
                        begun = time.monotonic()
                        answer = client.get(page)
                        times.append((time.monotonic() - begun) * 1000)
                        assert answer.status_code == 200, (page, answer.status_code)
                    rest = sorted(times[1:])
                    middle = statistics.median(rest)
                    print(f"{page:24} first {times[0]:4.0f} ms, then {middle:4.0f}, worst {rest[-1]:4.0f}")
            print(f"the console holds {resident_mib(console.pid):.0f} MiB, the broker {resident_mib(broker.pid):.0f}")
        finally:
            for process in (console, broker):
                if process is not None:
                    process.kill()
                    process.communicate()


if __name__ == "__main__":
    main()
