"""The tests that the pages about testing show are run, as a reader who pastes them would."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("testing.md", "migrating-tests.md", "start/tests.md")

_NO_NAME = str.maketrans("-/", "__")
# Somebody's test from before, that knows nothing of Moldau.
_USES_CONFTEST = """
from confluent_kafka.admin import AdminClient


def test_there_is_a_broker(bootstrap_servers):
    assert AdminClient({"bootstrap.servers": bootstrap_servers}).list_topics(timeout=10).brokers
"""

pytest_plugins = ["pytester"]


@pytest.mark.timeout(180)
def test_what_the_pages_show_passes(pytester: pytest.Pytester) -> None:
    files = {}
    for page in PAGES:
        text = (ROOT / "docs" / page).read_text()
        for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)):
            if "def test_" in block:
                files[f"test_{page.partition('.')[0].translate(_NO_NAME)}_{number}"] = block
            elif "@pytest.fixture" in block:
                files["conftest"] = block
                files["test_that_uses_it"] = _USES_CONFTEST
    assert len(files) == 6
    pytester.makepyfile(**files)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "--strict-markers")
    result.assert_outcomes(passed=11)
