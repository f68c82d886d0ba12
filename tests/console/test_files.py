"""What the package carries: published files unchanged, with their licences; templates that all parse; the command."""

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import moldau.console
from moldau.console.gate.users import parse_users
from moldau.console.views import Views
from moldau.console.wording import as_number, counted, in_words, noun

HERE = Path(moldau.console.__file__).parent


def test_vendored_files_are_what_was_published() -> None:
    vendor = HERE / "static" / "vendor"
    told = json.loads((vendor / "vendored.json").read_text())
    files = {each["file"] for each in told["files"]}
    for each in told["files"]:
        assert hashlib.sha256((vendor / each["file"]).read_bytes()).hexdigest() == each["sha256"]
        assert (vendor / each["licence_file"]).stat().st_size > 100
    licences = {each["licence_file"] for each in told["files"]}
    assert {file.name for file in vendor.iterdir()} == files | licences | {"vendored.json"}


def test_scripts_are_small_and_make_no_code_of_text() -> None:
    scripts = [*(HERE / "static").rglob("*.js")]
    assert sum(file.stat().st_size for file in scripts) < 130_000
    for name in ("console.js", "theme.js"):
        text = (HERE / "static" / name).read_text()
        for word in ("eval(", "new Function", "innerHTML", "document.write"):
            assert word not in text


def test_every_template_parses() -> None:
    environment = Views()._environment
    for file in (HERE / "templates").iterdir():
        environment.get_template(file.name)


def test_enter_in_a_form_does_what_its_main_button_does() -> None:
    """Browsers take the first button that submits: one that resets or removes must not be it."""
    seen = 0
    for file in (HERE / "templates").iterdir():
        for form in re.findall(r"<form .*?</form>", file.read_text(), re.S):
            buttons = [each for each in re.findall(r"<button[^>]*>", form) if 'type="button"' not in each]
            seen += len(buttons) > 1
            assert not buttons or " name=" not in buttons[0], f"{file.name}: {buttons[0]}"
    assert seen == 2


def test_templates_never_switch_escaping_off() -> None:
    for file in (HERE / "templates").iterdir():
        text = file.read_text()
        assert "| safe" not in text
        assert "autoescape" not in text
    assert "Markup(" not in "".join(file.read_text() for file in HERE.rglob("*.py"))


def _run(*words: str, told: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "moldau", *words]
    return subprocess.run(command, input=told, capture_output=True, text=True, timeout=50, check=False)


def test_a_line_for_the_users_file() -> None:
    done = _run("console-user", "vera", "--role", "operator", told="a long password\n")
    assert parse_users(done.stdout)["vera"].role.word == "operator"
    assert _run("console-user", "vera", told="short\n").returncode == 2


def test_a_console_for_others_wants_a_login() -> None:
    done = _run("console", "--listen", "0.0.0.0:8080")
    assert done.returncode == 2
    assert "--users FILE or --oidc FILE" in done.stderr


def test_one_thing_is_no_things() -> None:
    assert [counted(count, "partition") for count in (0, 1, 2, 1_234)] == [
        "0 partitions",
        "1 partition",
        "2 partitions",
        "1,234 partitions",
    ]
    assert (noun(1, "entry"), noun(2, "entry")) == ("entry", "entries")


@pytest.mark.parametrize(
    ("setting", "written", "number", "words"),
    [
        ("retention.ms", "7d", "604800000", "1 week"),
        ("retention.ms", "36 h", "129600000", "36 hours"),
        ("retention.ms", "1.5h", "5400000", "90 minutes"),
        ("segment.bytes", "1GiB", "1073741824", "1 GiB"),
        ("retention.bytes", "-1", "-1", "no limit"),
        ("flush.ms", "9223372036854775807", "9223372036854775807", "no limit"),
        ("log.retention.hours", "168", "168", ""),
        ("cleanup.policy", "7d", "7d", ""),
        ("retention.ms", "soon", "soon", ""),
        ("retention.ms", "0", "0", ""),
    ],
)
def test_times_and_sizes_of_settings_in_words_and_back(setting: str, written: str, number: str, words: str) -> None:
    assert as_number(setting, written) == number
    assert in_words(setting, number) == words


def test_no_page_has_a_word_for_many_beside_a_number() -> None:
    """`{{ count | n }} topics` says "1 topics" one day: `counted` and `noun` know better."""
    beside = re.compile(r"\|\s*(?:n|short|length)\s*\}\}(?:</b>)?\s*(?:<span[^>]*>)?\s*[a-zA-Z]+s\b")
    found = [
        f"{path.name}: {match[0]}"
        for path in sorted((HERE / "templates").glob("*.html"))
        for match in beside.finditer(path.read_text())
    ]
    assert not found, "\n".join(found)
