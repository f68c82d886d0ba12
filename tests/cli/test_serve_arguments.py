"""`moldau serve` reads its usual arguments without the command-line library; both must understand the same."""

import pytest
from typer.testing import CliRunner

from moldau.cli import serving
from moldau.cli.app import app


@pytest.mark.parametrize(
    "line",
    [
        "",
        "-d data",
        "--data-dir data --listen 127.0.0.1:0",
        "-c server.properties -l 127.0.0.1:1 -v",
        "--set a=b -s c=d=e --verbose --config x",
        "-l 127.0.0.1:1 -l 127.0.0.1:2",
        "--metrics 9404 -d data",
    ],
)
def test_usual_arguments_mean_the_same_with_and_without_the_library(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[serving.ServeArguments] = []

    def note(arguments: serving.ServeArguments) -> int:
        seen.append(arguments)
        return 7

    monkeypatch.setattr(serving, "serve", note)
    assert CliRunner().invoke(app, ["serve", *line.split()]).exit_code == 7
    assert seen == [serving.plain_arguments(line.split())]


@pytest.mark.parametrize(
    "line", ["--help", "--data-dir", "-d", "--data-dir=x", "-dx", "extra", "--nonsense x", "-s -v"]
)
def test_unusual_arguments_are_left_to_the_library(line: str) -> None:
    assert serving.plain_arguments(line.split()) is None
