"""Names, records and errors of others must not control the terminal of whoever looks at them."""

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from moldau.cli import contexts, dlq
from moldau.cli.failure import tell
from moldau.cli.group_reset import read_plan
from moldau.cli.output import Output
from moldau.cli.record_forms import make_form
from moldau.cli.record_lines import Rendering, Shown
from moldau.toolkit.dead_letters import Letter
from tests.cli.running import Command
from tests.support.broker_process import free_port

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\x08"


class Screen(io.TextIOWrapper):
    """Standard output that says whether it is a terminal."""

    def __init__(self, is_terminal: bool) -> None:
        self.seen = io.BytesIO()
        self.is_terminal = is_terminal
        super().__init__(self.seen, "utf-8", newline="", write_through=True)

    def isatty(self) -> bool:
        return self.is_terminal

    def text(self) -> str:
        return self.seen.getvalue().decode()


def _looking(monkeypatch: pytest.MonkeyPatch, *, is_terminal: bool) -> Screen:
    made = Screen(is_terminal)
    monkeypatch.setattr(sys, "stdout", made)
    monkeypatch.setattr(sys, "stderr", made)
    return made


def _rendering(**output: Any) -> Rendering:
    text = make_form("text", "value", "t", None, None)
    return Rendering(Output(**output), text, text, "\\t", "\\n", "-", (True, True, True))


def _record() -> Shown:
    evil = EVIL.encode()
    return Shown("t", 0, 1, 2, evil, evil + b"\xff\xc2\x9b", [(EVIL, evil)], 1, 1)


def _is_harmless(text: str) -> bool:
    return not any((ord(char) < 32 and char not in "\n\t") or 0x7F <= ord(char) < 0xA0 for char in text)


@pytest.mark.parametrize("output", [{}, {"as_json": True}, {"template": "{key} {value} {headers}"}])
def test_records_on_a_terminal(monkeypatch: pytest.MonkeyPatch, output: dict[str, Any]) -> None:
    screen = _looking(monkeypatch, is_terminal=True)
    rendering = _rendering(**output)
    rendering.write(_record())
    rendering.flush()
    assert _is_harmless(screen.text())
    assert "owned" in screen.text()
    if output.get("as_json"):
        assert EVIL in [value for _, value in json.loads(screen.text())["headers"]]


def test_records_in_a_pipe_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = _looking(monkeypatch, is_terminal=False)
    rendering = _rendering()
    rendering.write(_record())
    rendering.flush()
    assert EVIL.encode() + b"\xff\xc2\x9b" in pipe.seen.getvalue()


def test_own_colours_of_a_template_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = _looking(monkeypatch, is_terminal=True)
    Output(template="\\x1b[1m{group}").show([{"group": EVIL}])
    assert screen.text().startswith("\x1b[1m\\u001b]0;owned")


def test_a_name_with_a_newline_is_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = _looking(monkeypatch, is_terminal=False)
    Output().show([{"group": f"a\nb{EVIL}", "lag": 1}], title=f"title {EVIL}")
    assert len(pipe.text().splitlines()) == 3
    assert _is_harmless(pipe.text())


def test_tables_on_a_terminal_and_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = _looking(monkeypatch, is_terminal=True)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("NO_COLOR", "1")
    Output().show([{"group": EVIL, "state": {"x": EVIL}}])
    tell(f"no topic {EVIL}")
    assert "\x1b]" not in screen.text()
    assert "\x9b" not in screen.text()
    assert "\x07" not in screen.text()


def test_dead_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = _looking(monkeypatch, is_terminal=True)
    evil = EVIL.encode()
    names = ("kafka_dlt-exception-message", "kafka_dlt-exception-stacktrace", "kafka_dlt-original-topic", EVIL)
    dlq._print(Letter("t-dlt", 0, 1, 2, evil, evil, [(name, evil) for name in names]))
    assert "owned" in screen.text()
    assert _is_harmless(screen.text())


def test_a_context_that_was_copied_becomes_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOLDAU_HOME", str(tmp_path))
    file = contexts.file_of("prod")
    file.parent.mkdir()
    file.write_text("")
    os.chmod(file, 0o644)
    contexts.write("prod", {"sasl.password": "secret"})
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"a" * 200_000, b"t,0,x"])
def test_a_plan_that_is_none(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "plan.csv"
    file.write_bytes(content)
    with pytest.raises(typer.Exit):
        read_plan(file)


def test_the_way_back_is_not_overwritten(tmp_path: Path) -> None:
    back = tmp_path / "back.json"
    back.write_text("{}")
    nowhere = Command(f"127.0.0.1:{free_port()}", str(tmp_path))
    assert "only way back" in nowhere.refused(2, "reassign", "plan", "--rollback", str(back))
    assert back.read_text() == "{}"
