"""`moldau pipeline`: everything that answers without Spark."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from moldau.cli.app import app
from moldau.metrics.whereabouts import started_at, whereabouts
from moldau.spark.pipelines import ready
from tests.support.broker_process import free_port

FILE = """\
name: small
sources: {ticks: {rate: 1}}
steps: [{filter: value > 3}]
sinks: [{console: 1}]
"""


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["pipeline", *arguments])
    return result.exit_code, result.output


def test_ready_pipelines_are_listed_valid_and_can_be_shown() -> None:
    code, text = run("list")
    assert code == 0
    assert ready.names() == ["enrich", "events", "integrate", "logs", "metrics"]
    for name in ready.names():
        assert name in text
        assert run("validate", name) == (0, f"{name}: valid\n")
        assert run("show", name) == (0, ready.text(name))


def test_files_in_a_folder_are_listed_too(tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text(FILE + "about: ticks to see\n")
    (tmp_path / "bad.yaml").write_text(FILE.replace("rate", "rat"))
    (tmp_path / "other.yaml").write_text("a: 1\n")
    _, text = run("list", str(tmp_path))
    words = " ".join(text.split())
    assert "ticks to see" in words
    assert "not valid:" in words
    assert "other.yaml" not in words
    listed = {Path(each["pipeline"]).name: each for each in json.loads(run("list", str(tmp_path), "--json")[1])}
    assert set(listed) == {*ready.names(), "good.yaml", "bad.yaml"}
    assert (listed["good.yaml"]["is_valid"], listed["good.yaml"]["about"]) == (True, "ticks to see")
    assert (listed["bad.yaml"]["is_valid"], "did you mean 'rate'?" in listed["bad.yaml"]["about"]) == (False, True)


def test_mistakes_are_printed_one_a_line(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(FILE.replace("filter: value > 3", "filter: (value"))
    code, text = run("validate", str(file))
    assert (code, text) == (2, f"{file}:3:10: filter: a ')' is missing\n")
    file.write_text("name: x\nsorces: {}\n")
    code, text = run("run", str(file))
    assert code == 2
    assert "unknown key 'sorces'; did you mean 'sources'?" in text
    assert "Traceback" not in text
    code, text = run("run", "metric")
    assert (code, "no ready pipeline of that name: enrich, events" in text) == (4, True)
    assert run("validate", str(file), "--set", "oops")[1].endswith("give NAME=VALUE\n")
    assert run("validate", str(file), "--set", "oops")[0] == 2


def test_a_value_for_a_name_that_nothing_asks_for_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(FILE + "about: ${what:-ever}\n")
    assert run("validate", str(file), "--set", "what=else")[0] == 0
    code, text = run("validate", str(file), "--set", "waht=else")
    assert (code, f"--set waht: nothing in {file} asks for ${{waht}}; did you mean 'what'?" in text) == (2, True), text


def test_each_of_several_files_is_looked_at(tmp_path: Path) -> None:
    bad, good = tmp_path / "bad.yaml", tmp_path / "good.yaml"
    bad.write_text("name: x\nsorces: {}\n")
    good.write_text(FILE)
    code, text = run("validate", str(bad), "nowhere", str(good))
    assert code == 2
    assert "sorces" in text
    assert "there is no file 'nowhere'" in text
    assert f"{good}: valid" in text


def test_exit_codes_are_those_of_all_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "p.yaml"
    file.write_text(FILE)
    assert run("status", str(file))[0] == 4, "it has not run yet"
    assert run("show", "nobody")[0] == 4
    assert run("run", str(file), "--generate", "3")[0] == 2, "it has no generator"
    topics = FILE.replace("{rate: 1}", "{topic: t}") + f"kafka: {{bootstrap.servers: '127.0.0.1:{free_port()}'}}\n"
    file.write_text(topics)
    code, text = run("run", str(file))
    assert (code, "no broker answers" in text) == (3, True), text
    assert run("init", "--topic", "t", "--name", "n", "-b", f"127.0.0.1:{free_port()}")[0] == 3


def test_a_pipeline_is_explained_in_words() -> None:
    code, text = run("explain", "metrics", "--bootstrap-server", "kafka:9092", "--set", "threshold=7")
    assert code == 0
    assert "cluster kafka:9092; checkpoint" in text
    assert (
        "measurements: stream of topic metrics, parsed as json, bad records: dead_letter, 30 seconds late by at" in text
    )
    assert "WHERE p95 > 7 (from windows)" in text
    assert "→ topic metrics-alerts, exactly once" in text
    assert "query dead-letters-measurements: bad records of measurements → topic metrics-dlt, exactly once" in text


def test_every_key_is_told() -> None:
    code, text = run("keys")
    assert code == 0
    for part in ("source topic", "parse json", "step aggregate", "sink database", "watermark:", "dead_letters:"):
        assert part in text


@pytest.mark.parametrize(
    ("running", "pid", "said"),
    [(True, os.getpid(), "running"), (True, 2**22 + 1, "ended without saying so"), (False, 1, "not running")],
    ids=["alive", "dead", "stopped"],
)
def test_status_reads_what_the_run_left(tmp_path: Path, running: bool, pid: int, said: str) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(FILE)
    code, text = run("status", str(file))
    assert (code, "small has not run yet" in text) == (4, True)
    folder = tmp_path / "moldau-pipelines" / "small"
    folder.mkdir(parents=True)
    query = {"name": "console-step_1", "state": "waiting", "batch_id": 4, "rows_total": 1234, "lag_records": 56}
    status = {"pipeline": "small", "running": running, "pid": pid, "time": time.time(), "queries": [query]}
    (folder / "status.json").write_text(json.dumps(status))
    code, text = run("status", str(file))
    assert code == 0
    assert text.startswith(f"small: {said}")
    assert "1,234" in text
    assert "56" in text


def _status(tmp_path: Path, **more: object) -> tuple[int, str]:
    (tmp_path / "p.yaml").write_text(FILE)
    (tmp_path / "moldau-pipelines" / "small").mkdir(parents=True, exist_ok=True)
    query = {"name": "console-step_1", "state": "running", "of_a_later_version": 1}
    told = {"pipeline": "small", "running": True, **whereabouts(), "time": time.time(), "queries": [query], **more}
    (tmp_path / "moldau-pipelines" / "small" / "status.json").write_text(json.dumps(told))
    return run("status", str(tmp_path / "p.yaml"))


def test_status_of_another_process_or_another_machine(tmp_path: Path) -> None:
    assert _status(tmp_path)[1].startswith("small: running, as of ")
    code, text = _status(tmp_path, started="long ago")
    assert (code, "small: ended without saying so" in text) == (0, True), "its number is another process's by now"
    dead = 2**22 + 1
    assert _status(tmp_path, host="elsewhere", pid=dead)[1].startswith("small: running on elsewhere")
    code, text = _status(tmp_path, host="elsewhere", time=time.time() - 300)
    assert text.startswith("small: ended without saying so (killed?) on elsewhere, as of 30")


def test_what_runs_already_is_not_run_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    monkeypatch.setattr("moldau.spark.pipelines.runner.start", lambda pipeline, **_: started.append(pipeline.name))
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        told = {"pid": other.pid, "started": started_at(other.pid)}
        _status(tmp_path, **told)
        code, text = run("run", str(tmp_path / "p.yaml"))
        assert (code, f"small is running already, as process {other.pid}: stop it first" in text) == (1, True), text
        for untold in ({"running": False}, {"started": "long ago"}, {"started": ""}, {"host": "elsewhere"}):
            _status(tmp_path, **(told | untold))
            run("run", str(tmp_path / "p.yaml"))
        _status(tmp_path, **told)
        other.kill()
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has asked how
        run("run", str(tmp_path / "p.yaml"))
        assert started == ["small"] * 5
    finally:
        other.kill()
        other.communicate()


def test_a_status_that_cannot_be_read_is_no_traceback(tmp_path: Path) -> None:
    _status(tmp_path)
    status = tmp_path / "moldau-pipelines" / "small" / "status.json"
    for content in ("{", "[]", "{}"):
        status.write_text(content)
        code, text = run("status", str(tmp_path / "p.yaml"))
        assert (code, f"{status} cannot be read: " in text) == (1, True), text
    status.unlink()
    status.mkdir()
    assert "cannot be read: Is a directory" in run("status", str(tmp_path / "p.yaml"))[1]


@pytest.mark.parametrize("command", [("list",), ("validate", "metrics"), ("run", "metrics")])
def test_without_the_extra_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    code, text = run(*command)
    assert code == 2
    assert "pip install 'moldau[spark]'" in text
