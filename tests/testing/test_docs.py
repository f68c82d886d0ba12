"""The tests that docs/testing.md and the migration page show are run, as a reader who pastes them would."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("testing.md", "migrating-tests.md")

pytest_plugins = ["pytester"]


@pytest.mark.timeout(180)
def test_what_the_pages_show_passes(pytester: pytest.Pytester) -> None:
    files = {}
    for page in PAGES:
        text = (ROOT / "docs" / page).read_text()
        for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)):
            if "def test_" in block:
                files[f"test_{page.partition('.')[0].replace('-', '_')}_{number}"] = block
    assert len(files) == 3
    pytester.makepyfile(**files)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "--strict-markers")
    result.assert_outcomes(passed=9)
