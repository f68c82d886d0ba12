"""A broker for the toolkit's tests: Moldau in this process, or the cluster that TOOLKIT_BOOTSTRAP names.

`tests/interop/test_toolkit.py` runs the same tests with Apache Kafka's address there.
"""

import itertools
import os
import secrets
from collections.abc import Callable, Iterator

import pytest

from moldau.testing import Broker


@pytest.fixture(scope="session")
def bootstrap() -> Iterator[str]:
    """Where the cluster listens."""
    if given := os.environ.get("TOOLKIT_BOOTSTRAP"):
        yield given
        return
    with Broker() as broker:
        yield broker.bootstrap_servers


_NUMBERS = itertools.count()


@pytest.fixture
def fresh() -> Callable[[str], str]:
    """Names nobody else uses: `fresh("orders")`."""
    return lambda base: f"{base}-{next(_NUMBERS)}-{secrets.token_hex(3)}"
