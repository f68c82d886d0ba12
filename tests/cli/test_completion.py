"""Completion for the shell that is named, not only for the one the command runs in."""

from pathlib import Path

import pytest

from tests.cli.running import Command

MARKS = {
    "bash": "complete -o default -F",
    "zsh": "#compdef moldau",
    "fish": "complete --command moldau",
    "powershell": "Register-ArgumentCompleter",
    "pwsh": "Register-ArgumentCompleter",
}


@pytest.fixture
def anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("shellingham.detect_shell", lambda: ("bash", "/bin/bash"))
    return Command("127.0.0.1:1", str(tmp_path))


@pytest.mark.parametrize("shell", MARKS)
@pytest.mark.parametrize("form", ["--show-completion {}", "--show-completion={}"])
def test_the_shell_that_is_named(
    anywhere: Command, shell: str, form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert MARKS[shell] in _shown(monkeypatch, capsys, *form.format(shell).split())


def test_without_a_name_it_is_the_present_one(
    anywhere: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert MARKS["bash"] in _shown(monkeypatch, capsys, "--show-completion")


def test_it_is_installed_for_the_shell_that_is_named(
    anywhere: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "fish completion installed" in _shown(monkeypatch, capsys, "--install-completion", "fish")
    assert MARKS["fish"] in (tmp_path / ".config/fish/completions/moldau.fish").read_text()
    assert not (tmp_path / ".bashrc").exists()


@pytest.mark.parametrize("given", [["tcsh"], ["fish", "zsh"], ["--quick"]])
@pytest.mark.parametrize("option", ["--show-completion", "--install-completion"])
def test_what_is_no_shell_is_refused(anywhere: Command, tmp_path: Path, option: str, given: list[str]) -> None:
    said = anywhere.refused(2, option, *given)
    assert f"{option} {' '.join(given)}: choose one of bash, zsh, fish, powershell, pwsh" in said
    assert list(tmp_path.iterdir()) == []


def test_help_says_that_a_shell_may_be_named(anywhere: Command) -> None:
    assert "[SHELL]" in anywhere.ok("--help").out


def _shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Typer ends the process by itself."""
    from moldau import cli

    monkeypatch.setattr("sys.argv", ["moldau", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.run(list(arguments))
    assert ended.value.code == 0
    return capsys.readouterr().out
