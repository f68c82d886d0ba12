"""franz-go and kafkajs over every mechanism they share with us; the others are in `tests/security`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.interop.peers.clients import Client, Record, go_client, node_client
from tests.security.secured import MECHANISMS, PROTOCOLS, Secured


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with Secured(tmp_path_factory.mktemp("secured")) as broker:
        yield broker


@pytest.mark.parametrize("make", [go_client, node_client])
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_round_trip(secured: Secured, make: Callable[[], Client], protocol: str, mechanism: str) -> None:
    client = make()
    topic = secured.new_topic()
    user, password = secured.credentials(mechanism)
    options = {"sasl": mechanism, "user": user, "password": password}
    if protocol == "SASL_SSL":
        options["ca"] = secured.ca_file
    client.produce(secured.address(protocol), topic, [Record("k", "v")], **options)
    (found,) = client.consume(secured.address(protocol), topic, 1, group=topic, **options)
    assert (found.key, found.value) == ("k", "v")
