"""The tests that the pages about testing show are run, as a reader who pastes them would."""

import importlib
import inspect
import re
from collections.abc import Iterator
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


def members_of(kind: type) -> Iterator[tuple[str, str | None]]:
    """What people may call or look at, with what is said about it."""
    for name, member in vars(kind).items():
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if not name.startswith("_") and inspect.isfunction(function):
            yield name, function.__doc__


def test_the_reference_leaves_out_no_member() -> None:
    """What has no docstring is not on the page, and nobody is told: half of `Cluster` was not."""
    named = [
        name
        for page in (ROOT / "docs" / "reference").glob("*.md")
        for name in re.findall(r"^::: ([\w.]+)$", page.read_text(), re.MULTILINE)
    ]
    silent, seen = [], 0
    for name in named:
        module, _, last = name.rpartition(".")
        found = getattr(importlib.import_module(module), last)
        if not inspect.isclass(found):
            continue
        for member, said in members_of(found):
            seen += 1
            if not said:
                silent.append(f"{name}.{member}")
    assert seen > 100
    assert silent == []
