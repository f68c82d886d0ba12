"""Pytest fixtures, found through the `pytest11` entry point. Importing this costs next to nothing: every run does.

    @pytest.mark.moldau(settings={"num.partitions": 3}, topics={"orders": 6})
    def test_orders(moldau_broker): ...

The marker says how the broker or cluster of a test is made; classes and modules can have it, too. With pytest-xdist
every worker has brokers of its own.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from moldau.testing import Broker, Cluster

_NAME_MAX = 100
_BY_MARKER = {"moldau_broker", "moldau_cluster"}
_WITHOUT_MARKER = {"moldau_shared_broker", "moldau_topic"}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "moldau(settings=None, topics=None, nodes=3, security=None): how the broker or cluster of this test is made",
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A marker that has no effect is a mistake. (On a class or module it may be meant for other tests.)"""
    if any(each.name == "moldau" for each in item.own_markers):
        used = set(getattr(item, "fixturenames", ()))
        # A fixture of the user's own may read the marker and make brokers with the factory.
        if used & _WITHOUT_MARKER and not used & (_BY_MARKER | {"moldau_broker_factory"}):
            raise pytest.UsageError(
                "@pytest.mark.moldau says how moldau_broker and moldau_cluster are made, and this test uses neither: "
                "moldau_shared_broker is made once for all"
            )


def _wanted(request: pytest.FixtureRequest, *known: str) -> dict[str, Any]:
    """What markers say, the nearest last: a test's own settings and topics are added to those of its class and module.
    What is said twice is as the nearest says."""
    wanted: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers("moldau"))):
        unknown = set(marker.kwargs) - {"settings", "topics", "nodes", "security"}
        if marker.args or unknown:
            what = f"{sorted(unknown)}" if unknown else f"{marker.args}"
            raise pytest.UsageError(
                f"@pytest.mark.moldau does not know {what}: use settings=, topics=, nodes=, security="
            )
        for key, value in marker.kwargs.items():
            before = wanted.get(key)
            if before and key == "settings":
                wanted[key] = {**before, **(value or {})}
            elif before and key == "topics":
                from moldau.testing.topics import as_topics

                wanted[key] = list({each.name: each for each in as_topics(before) + as_topics(value)}.values())
            else:
                wanted[key] = value
    return {key: value for key, value in wanted.items() if key in known}


@pytest.fixture
def moldau_broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A fresh broker for this test: `moldau_broker.bootstrap_servers` is where it listens."""
    from moldau.testing import Broker

    with Broker(**_wanted(request, "settings", "topics", "security")) as broker:
        yield broker


@pytest.fixture(scope="session")
def moldau_shared_broker() -> Iterator[Broker]:
    """One broker for the whole session: quicker, for tests that use topic names of their own."""
    from moldau.testing import Broker

    with Broker() as broker:
        yield broker


@pytest.fixture
def moldau_topic(moldau_shared_broker: Broker, request: pytest.FixtureRequest) -> str:
    """A fresh topic on the shared broker, named after the test."""
    base = re.sub(r"[^a-zA-Z0-9._-]", "-", request.node.name)[:_NAME_MAX]
    name = f"{base}-{uuid.uuid4().hex[:8]}"
    moldau_shared_broker.create_topics([name])
    return name


@pytest.fixture
def moldau_broker_factory() -> Iterator[Callable[..., Broker]]:
    """Brokers as `Broker(…)` makes them, started, and stopped when the test ends."""
    from moldau.testing import Broker

    with ExitStack() as stack:

        def make(settings: Any = None, **more: Any) -> Broker:
            return stack.enter_context(Broker(settings, **more))

        yield make


@pytest.fixture
def moldau_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A fresh cluster for this test, of three nodes unless the marker says `nodes=`."""
    from moldau.testing import Cluster

    if _wanted(request, "security"):
        raise pytest.UsageError(
            "security= is for moldau_broker; say with settings= how a cluster's listeners are secured"
        )
    with Cluster(**_wanted(request, "settings", "topics", "nodes")) as cluster:
        yield cluster
