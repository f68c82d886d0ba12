"""Lag is measured against the brokers, now: with and without reports, running or not."""

import json
from pathlib import Path

from typer.testing import CliRunner

from moldau.cli.pipelines import app
from moldau.spark.pipelines import loads
from moldau.spark.pipelines.lag import LagMeter
from moldau.spark.pipelines.progress import QueryProgress, write_status
from tests.spark.reading import send
from tests.support.clients import create_topic

FILE = """
name: x
kafka: {{bootstrap.servers: '{bootstrap}'}}
checkpoint: {folder}
sources:
  a: {{topic: {topic}, start: {start}, parse: json}}
  numbers: {{rate: 1}}
sinks:
  - {{console: 1, from: a, name: shown}}
  - {{console: 1, from: numbers, name: counted}}
"""


def test_lag_is_what_the_topic_holds_beyond_the_last_batch(bootstrap: str, tmp_path: Path) -> None:
    topic = create_topic(bootstrap, partitions=2)
    send(bootstrap, topic, 10)
    send(bootstrap, topic, 5, partition=1)
    text = FILE.format(bootstrap=bootstrap, topic=topic, start="earliest", folder=tmp_path / "state")
    clock = [0.0]
    pipeline = loads(text, "x.yaml", folder=str(tmp_path))
    meter = LagMeter(pipeline, clock=lambda: clock[0])

    def report(*done: int) -> dict[str, object]:
        offsets = json.dumps({topic: {str(index): offset for index, offset in enumerate(done)}})
        # As Spark reports without a limit: the batch ended at what was the latest when it was planned.
        return {"sources": [{"endOffset": offsets, "latestOffset": offsets}]}

    assert meter.measure("counted", {}) is None
    assert meter.measure("shown", {}) == 15, "nothing was read yet"
    assert meter.measure("shown", report(4, 5)) == 6
    assert meter.measure("dead-letters-a", report(10)) == 5, "a new partition is read from its beginning"
    send(bootstrap, topic, 3, first=10)
    assert meter.measure("shown", report(10, 5)) == 0, "asked once a second"
    clock[0] += 2
    assert meter.measure("shown", report(10, 5)) == 3

    latest = loads(text.replace("earliest", "latest"), "x.yaml", folder=str(tmp_path))
    assert LagMeter(latest).measure("shown", {}) == 0
    at_a_time = loads(text.replace("earliest", "2020-01-01T00:00:00Z"), "x.yaml", folder=str(tmp_path))
    assert LagMeter(at_a_time).measure("shown", {}) == 18, "nothing was read, and all of it is younger"
    in_future = loads(text.replace("earliest", "2099-01-01T00:00:00Z"), "x.yaml", folder=str(tmp_path))
    assert LagMeter(in_future).measure("shown", {}) == 0

    state = tmp_path / "state" / "shown"
    for name in ("commits", "offsets"):
        (state / name).mkdir(parents=True)
    (state / "offsets" / "0").write_text(f'v1\n{{}}\n{{"{topic}":{{"0":9,"1":5}}}}')
    assert LagMeter(latest).measure("shown", {}) == 4, "it began at the end there was, and its first batch failed"
    for batch, offset in ((8, 2), (9, 4), (10, 13)):
        (state / "offsets" / str(batch)).write_text(f'v1\n{{}}\n{{"{topic}":{{"0":{offset},"1":5}}}}')
        if batch < 10:
            (state / "commits" / str(batch)).write_text("v1\n{}")
    assert LagMeter(pipeline).measure("shown", {}) == 9, "batch 10 was planned, and not done"

    file = tmp_path / "x.yaml"
    file.write_text(text)
    write_status(str(tmp_path / "state"), "x", [QueryProgress("shown", "failed", lag_records=0)], running=False)
    told = CliRunner().invoke(app, ["status", str(file), "--json"])
    assert told.exit_code == 0, told.output
    found = json.loads(told.output)
    assert [(each["name"], each["lag_records"]) for each in found["queries"]] == [("shown", 9)]
    assert found["running"] is False
    assert found["lag_is_old"] is False
    away = CliRunner().invoke(app, ["status", str(file), "-b", "127.0.0.1:1"])
    assert "lag too: no broker answers now" in away.output, "what is shown is not from now"
    old = json.loads(CliRunner().invoke(app, ["status", str(file), "-b", "127.0.0.1:1", "--json"]).output)
    assert (old["lag_is_old"], old["queries"][0]["lag_records"]) == (True, 0)
