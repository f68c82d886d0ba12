"""A long run with trouble in it: `python -m benchmarks.spark_soak --minutes 30`. For a quiet machine, and by hand.

One broker as a process, one pipeline (topic to topic, exactly-once, with dead letters) and a producer at a steady rate.
The broker is killed and started again every few minutes, and once stays away for two. At the end the output holds each
record once, and the memory of Spark's Java and of its Python processes is in `build/spark-soak.csv` and plotted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from confluent_kafka import Producer

from moldau.spark.pipelines import loads, start
from tests.support.broker_process import BrokerProcess
from tests.support.clients import create_topic, read_all

FILE = """
name: soak
kafka: {{bootstrap.servers: "{bootstrap}"}}
checkpoint: {folder}/state
dead_letters: soak-dlt
outage: 5 minutes
sources:
  numbers: {{topic: {topic}, parse: {{format: json, schema: "n bigint not null"}}}}
sinks:
  - {{topic: {out}, name: out, every: 1 second}}
"""
PLOT = Path("docs/benchmarks/spark_soak.svg")
_AWAY_SECONDS = 120.0
_STARTS_MAX = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--rate", type=int, default=500, help="records a second")
    parser.add_argument("--restart-every", type=float, default=240, help="seconds between restarts of the broker")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="spark-soak-") as folder, BrokerProcess(Path(folder) / "data") as broker:
        _soak(broker, Path(folder), given.minutes * 60, given.rate, given.restart_every)


def _soak(broker: BrokerProcess, folder: Path, seconds: float, rate: int, restart_every: float) -> None:
    bootstrap = broker.bootstrap_servers
    topic, out = create_topic(bootstrap, "soak-in", 2), create_topic(bootstrap, "soak-out", 2)
    sent = [0]
    ended = threading.Event()
    producing = threading.Thread(target=_produce, args=(bootstrap, topic, rate, sent, ended))
    producing.start()
    text = FILE.format(bootstrap=bootstrap, topic=topic, out=out, folder=folder)
    began = time.monotonic()
    memory: list[tuple[str, ...]] = [
        ("seconds", "java_kilobytes", "python_kilobytes", "python_processes", "sent", "away")
    ]
    kills = 0
    with start(loads(text, "soak.yaml", folder=str(folder))) as running:
        restart_at, was_away = began + restart_every, False
        while (now := time.monotonic()) < began + seconds:
            running.wait(5)
            memory.append((f"{now - began:.0f}", *map(str, spark_memory(os.getpid())), str(sent[0]), "0"))
            if now >= restart_at:
                broker.kill()
                kills += 1
                if not was_away and now > began + seconds / 2:
                    was_away = True
                    back_at = time.monotonic() + _AWAY_SECONDS
                    while (now := time.monotonic()) < back_at:
                        running.wait(5)  # raises if a query has given up
                        memory.append((f"{now - began:.0f}", *map(str, spark_memory(os.getpid())), str(sent[0]), "1"))
                _start_again(broker)
                restart_at = time.monotonic() + restart_every
        ended.set()
        producing.join()
        while any(each.lag_records for each in running.progress()):
            running.wait(2)
        running.process_available()
    Path("build").mkdir(exist_ok=True)
    Path("build/spark-soak.csv").write_text("\n".join(map(",".join, memory)) + "\n")
    found = Counter(json.loads(each.value() or b"{}")["n"] for each in read_all(bootstrap, out, 2))
    doubled, missing = sum(count > 1 for count in found.values()), sent[0] - len(found)
    print(
        f"{sent[0]:,} sent, {len(found):,} arrived, {doubled} doubled, {missing} missing, {kills} kills of the broker"
    )
    plot(memory[1:])


def _start_again(broker: BrokerProcess) -> None:
    """A machine that is busy with other things may need more than one try."""
    for _ in range(_STARTS_MAX):
        try:
            broker.start()
        except AssertionError as error:
            print(f"the broker did not get ready in time: {error}", flush=True)
            broker.kill()
        else:
            return
    raise SystemExit("the broker does not start any more")


def _produce(bootstrap: str, topic: str, rate: int, sent: list[int], ended: threading.Event) -> None:
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "message.timeout.ms": 0, "log_level": 2}
    )
    while not ended.wait(0.1):
        for _ in range(rate // 10):
            while True:
                try:
                    producer.produce(topic, json.dumps({"n": sent[0]}), str(sent[0] % 64))
                    break
                except BufferError:  # the broker is away for long
                    producer.poll(1)
            sent[0] += 1
        producer.poll(0)
    producer.flush(300)


def spark_memory(root: int) -> tuple[int, int, int]:
    """Resident kilobytes of Java and of Python below a process, and how many Python processes there are."""
    told = subprocess.run(["ps", "-eo", "pid,ppid,rss,args"], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 3) for line in told.splitlines()[1:]]
    below = {str(root)}
    while more := {pid for pid, parent, *_ in rows if parent in below} - below:
        below |= more
    java = [int(rss) for pid, _, rss, args in rows if pid in below and "SparkSubmit" in args]
    python = [int(rss) for pid, _, rss, args in rows if pid in below and "-m pyspark" in args]
    return sum(java), sum(python), len(python)


def plot(memory: list[tuple[str, ...]]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "spark_soak"  # the same numbers give the same file
    from matplotlib import pyplot

    minutes = [float(row[0]) / 60 for row in memory]
    figure, axes = pyplot.subplots(figsize=(9, 3.6))
    axes.plot(minutes, [int(row[1]) / 1024 for row in memory], label="Java", color="#2a7f62")
    axes.plot(minutes, [int(row[2]) / 1024 for row in memory], label="Python, all processes", color="#b5533c")
    away = [minute for minute, row in zip(minutes, memory, strict=True) if row[5] == "1"]
    if away:
        axes.axvspan(min(away), max(away), color="#dddddd", label="the broker is away")
    axes.set_xlabel("minutes")
    axes.set_ylabel("resident memory (MB)")
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.tight_layout()
    PLOT.parent.mkdir(exist_ok=True, parents=True)
    figure.savefig(PLOT, metadata={"Date": None})
    pyplot.close(figure)


if __name__ == "__main__":
    main()
