"""`kill -9` between every two steps of a pattern. The form with many kills is in tests/interop."""

from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Engine

from moldau.toolkit.db import relay, transactions
from tests.toolkit.db.killing import kill_exactly_once, kill_once, kill_outbox

Name = Callable[[str], str]
pytestmark = pytest.mark.timeout(900)  # processes start one after the other, and a busy machine takes its time


def test_once(bootstrap: str, url: str, engine: Engine, fresh: Name, name: Name, tmp_path: Path) -> None:
    kill_once(bootstrap, url, engine, fresh("words"), name("once"), tmp_path, transactions.STEPS, rounds=1)


def test_outbox(bootstrap: str, url: str, engine: Engine, fresh: Name, name: Name, tmp_path: Path) -> None:
    kill_outbox(bootstrap, url, engine, fresh("orders"), name("outbox"), tmp_path, relay.STEPS, rounds=1)


def test_exactly_once(bootstrap: str, url: str, engine: Engine, fresh: Name, name: Name, tmp_path: Path) -> None:
    kill_exactly_once(bootstrap, url, engine, fresh("words"), name("offsets"), tmp_path, transactions.STEPS, rounds=1)
