"""For all tests: property tests assert what happens, never how quickly. A loaded machine is no failure."""

import signal

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("moldau", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("moldau")

# A shell that runs the tests in the background has them ignore Ctrl-C, and all processes they start: some are sent one.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests on Spark come first, so that one of several workers gets them all: each would start a JVM of its own."""
    items.sort(key=lambda item: not item.nodeid.startswith("tests/spark/"))
