"""A long run with trouble in it: `python -m benchmarks.spark_soak --minutes 30`. For a quiet machine, and by hand.

One broker as a process, one pipeline (topic to topic, exactly-once, with dead letters) and a producer at a steady rate.
The broker is restarted every few minutes and once stays away for two. At the end the output holds each record once, and
the memory of the driver and of the Python workers is in `build/spark-soak.csv`, to be plotted.
"""

from __future__ import annotations

import argparse
import json
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
  - {{topic: {out}, name: out}}
"""
_AWAY_SECONDS = 120.0


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
    memory = [("seconds", "kilobytes", "sent")]
    with start(loads(text, "soak.yaml", folder=str(folder))) as running:
        restart_at, was_away = began + restart_every, False
        while (now := time.monotonic()) < began + seconds:
            running.wait(5)
            memory.append((f"{now - began:.0f}", str(_kilobytes()), str(sent[0])))
            if now >= restart_at:
                broker.kill()
                if not was_away and now > began + seconds / 2:
                    was_away = True
                    ended.wait(_AWAY_SECONDS)
                broker.start()
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
    print(f"{sent[0]:,} sent, {len(found):,} arrived, {doubled} doubled, {missing} missing")


def _produce(bootstrap: str, topic: str, rate: int, sent: list[int], ended: threading.Event) -> None:
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "message.timeout.ms": 0, "log_level": 2}
    )
    while not ended.wait(0.1):
        for _ in range(rate // 10):
            producer.produce(topic, json.dumps({"n": sent[0]}), str(sent[0] % 64))
            sent[0] += 1
        producer.poll(0)
    producer.flush(300)


def _kilobytes() -> int:
    """Resident memory of the driver's Java and of all Python workers."""
    told = subprocess.run(["ps", "-eo", "rss,args"], capture_output=True, text=True, check=True).stdout
    return sum(int(line.split()[0]) for line in told.splitlines()[1:] if "pyspark" in line or "SparkSubmit" in line)


if __name__ == "__main__":
    main()
