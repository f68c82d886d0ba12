"""What the toolkit's pages show is run: every Python block as a program of its own, on a broker of this test."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "toolkit").glob("*.md"))
BLOCKS = [
    pytest.param(found[1], id=f"{page.stem}-{number}")
    for page in PAGES
    for number, found in enumerate(re.finditer(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL))
]


@pytest.mark.parametrize("text", BLOCKS)
def test_python_blocks_run(text: str, bootstrap: str, tmp_path: Path) -> None:
    program = text.replace("127.0.0.1:9092", bootstrap)
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=55, check=False)
    assert done.returncode == 0, done.stderr


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([\w-]+\.md)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_commands_on_the_pages_exist() -> None:
    """Their options are known; running them is what test_tools does."""
    for page in PAGES:
        for words in re.findall(r"^\$ moldau (.+?)(?: +#.*)?$", page.read_text(), re.MULTILINE):
            name = words.split()[:2] if words.split()[0] in ("dlq", "app") else words.split()[:1]
            command = [sys.executable, "-m", "moldau", *name, "--help"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=55, check=False)
            assert done.returncode == 0
            for option in re.findall(r"--[\w-]+", words):
                assert option in done.stdout, f"{page.name}: {words}"


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem not in ("index", "proof", "bad-luck")])
def test_a_page_tells_problem_code_and_how_others_do_it(page: Path) -> None:
    text = page.read_text()
    missing = [each for each in ("**The problem.**", "```python", "**Elsewhere.**") if each not in text]
    if page.stem not in ("testing", "watching"):  # these look on, and promise nothing about records
        missing += [each for each in ("uaranteed", "ot guaranteed") if each not in text]
    assert not missing, f"{page.name} lacks {missing}"


def test_what_holds_a_promise_exists() -> None:
    """docs/toolkit/proof.md names tests; one that was renamed or left out is noticed."""
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "toolkit" / "proof.md").read_text()))
    rooms = ("toolkit/**/*.py", "interop/test_toolkit*.py", "spark/*.py")
    files = [file for room in rooms for file in (ROOT / "tests").glob(room)]
    there = {name for file in files for name in re.findall(r"def (test_\w+)", file.read_text())}
    assert len(named) > 60
    assert named <= there, named - there
