"""The page about pipelines, as a reader copies it: its files are valid, its trial comes out as expected, and its
commands exist."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from typer.testing import CliRunner

from moldau.cli.app import app
from moldau.spark.pipelines import loads, validate
from moldau.spark.pipelines.trial import read_trials, run_trials

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PAGE = (Path(__file__).parents[2] / "docs" / "pipelines.md").read_text()
_FILES = re.findall(r"^```yaml\n(.*?)^```", _PAGE, re.MULTILINE | re.DOTALL)


def test_the_pipeline_and_its_trial(spark: "SparkSession", tmp_path: Path) -> None:
    pipeline = loads(_FILES[0], "orders.yaml", folder=str(tmp_path))
    (tmp_path / "orders.test.yaml").write_text(_FILES[-1])
    trials = read_trials(tmp_path / "orders.test.yaml", pipeline, validate(pipeline))
    assert [outcome.differences for outcome in run_trials(spark, pipeline, trials)] == [()]


@pytest.mark.parametrize("shown", _FILES[1:-1])
def test_what_is_shown_of_other_files_is_valid(shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLICKS_TOKEN", "t0ken")
    (tmp_path / "kafka").write_text("secret\n")
    shown = shown.replace("/run/secrets/kafka", str(tmp_path / "kafka"))
    there = yaml.safe_load(shown.replace("${", "$"))  # which are in the way outside of quotes
    rest = {
        "name": "name: shown\n",
        "kafka": "kafka: {bootstrap.servers: '127.0.0.1:9092'}\n",
        "sources": "sources: {r: {rate: 1}}\n",
        "sinks": "sinks: [{console: 1}]\n",
    }
    whole = shown + "".join(text for key, text in rest.items() if key not in there)
    for environment in ("", *there.get("environments", {})):
        validate(loads(whole, "shown.yaml", folder=str(tmp_path), environment=environment))


def test_its_commands_exist() -> None:
    told = set(re.findall(r"moldau pipeline (\w+)", _PAGE))
    assert {"run", "test", "init", "replay", "backfill", "redrive", "status"} <= told
    for command in told:
        assert CliRunner().invoke(app, ["pipeline", command, "--help"]).exit_code == 0, command
