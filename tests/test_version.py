"""What calls itself a version says the same everywhere, and the changelog has its date."""

import re
import tomllib
from pathlib import Path

import moldau

ROOT = Path(__file__).resolve().parent.parent


def test_package_and_changelog_agree_on_the_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    released = [heading for heading in headings if heading != "Unreleased"]
    assert project["version"] == moldau.__version__
    assert re.fullmatch(re.escape(moldau.__version__) + r" \(\d{4}-\d\d-\d\d\)", released[0])
    assert headings[1:] == released or headings == released, "what is unreleased stands first"
