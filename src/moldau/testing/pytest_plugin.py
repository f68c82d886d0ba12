"""Pytest fixtures, found through the `pytest11` entry point. Importing this costs next to nothing: every run does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from moldau.testing import Broker


@pytest.fixture
def moldau_broker() -> Iterator[Broker]:
    """A fresh broker for this test: `moldau_broker.bootstrap_servers` is where it listens."""
    from moldau.testing import Broker

    with Broker() as broker:
        yield broker


@pytest.fixture(scope="session")
def moldau_shared_broker() -> Iterator[Broker]:
    """One broker for the whole session: quicker, for tests that use topic names of their own."""
    from moldau.testing import Broker

    with Broker() as broker:
        yield broker
