"""Limits on connections: of the node, of a listener, of an address, and how fast they may come."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from moldau.broker.quotas.addresses import AddressQuotas
from moldau.broker.quotas.rates import Windows
from moldau.net.gate import Gate
from moldau.net.settings import ConnectionLimits, ListenerLimits
from moldau.testing import Broker
from moldau.wire import messages as m
from tests.broker.requests.handlers.wire_client import WireClient


def test_an_address_that_comes_too_fast_waits_and_does_not_count() -> None:
    quotas = AddressQuotas(Windows(11, 1_000.0))
    assert quotas.connected("10.0.0.1", 0) == 0
    quotas.follow({(("ip", "10.0.0.1"),): {"connection_creation_rate": 1.0}})
    assert [quotas.connected("10.0.0.1", 0) for _ in range(12)] == pytest.approx([0.0] * 10 + [1_000.0] * 2)
    assert quotas.connected("10.0.0.2", 0) == 0
    assert quotas.connected("10.0.0.1", 11_000) == 0


def test_listeners_have_creation_rates_of_their_own() -> None:
    limits = ConnectionLimits(max_creation_rate=10, per_listener={"SLOW": ListenerLimits(max_creation_rate=1)})
    limits.protected_listener = "BROKERS"
    gate = Gate(limits)
    gate.created("SLOW", 1_000)
    assert gate.next_creation_ms("SLOW", 1_000) == 2_000
    assert gate.next_creation_ms("OTHER", 1_000) == 1_000
    for _ in range(10):
        gate.created("OTHER", 1_000)
    assert gate.next_creation_ms("OTHER", 1_000) > 1_000
    assert gate.next_creation_ms("BROKERS", 1_000) == 1_000


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,NARROW://127.0.0.1:0",
        "advertised.listeners": "PLAINTEXT://127.0.0.1:0,NARROW://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,NARROW:PLAINTEXT",
        "listener.name.narrow.max.connections": "1",
        "max.connections.per.ip.overrides": "127.0.0.3:2",
    }
    with Broker(settings) as running:
        yield running


def is_served(client: WireClient) -> bool:
    try:
        return bool(client.ask(m.ApiVersionsRequest(client_software_name="a", client_software_version="1")).api_keys)
    except (ConnectionError, TimeoutError):
        return False


def test_a_full_listener_lets_others_wait(broker: Broker) -> None:
    host, port = broker.node.addresses["NARROW"]
    with WireClient(f"{host}:{port}") as first:
        assert is_served(first)
        waiting = WireClient(f"{host}:{port}")
        waiting._socket.settimeout(0.2)
        assert not is_served(waiting)
        with WireClient(broker.bootstrap_servers) as elsewhere:
            assert is_served(elsewhere)
    waiting._socket.settimeout(10)
    waiting._receive(4)  # the answer to what it asked while it waited
    waiting.close()


def test_an_address_may_have_fewer_connections(broker: Broker) -> None:
    clients = [WireClient(broker.bootstrap_servers, host="127.0.0.3") for _ in range(3)]
    assert [is_served(client) for client in clients] == [True, True, False]
    for client in clients:
        client.close()


def test_connections_beyond_an_addresses_quota_are_closed_later(broker: Broker) -> None:
    kind = m.AlterClientQuotasRequest
    op = kind.OpData("connection_creation_rate", 1.0)
    with WireClient(broker.bootstrap_servers) as admin:
        answer = admin.ask(kind([kind.EntryData([kind.EntityData("ip", "127.0.0.4")], [op])]))
        assert answer.entries[0].error_code == 0
        clients = [WireClient(broker.bootstrap_servers, host="127.0.0.4") for _ in range(11)]
        assert all(is_served(client) for client in clients[:10])
        late = clients[10]._socket
        late.settimeout(0.3)
        with pytest.raises(TimeoutError):
            late.recv(1)
        late.settimeout(5)
        started = time.monotonic()
        assert late.recv(1) == b""
        assert time.monotonic() - started < 3
        assert is_served(admin)
    for client in clients:
        client.close()


def test_a_socket_that_is_held_ends_with_the_node() -> None:
    with Broker() as broker:
        kind = m.AlterClientQuotasRequest
        op = kind.OpData("connection_creation_rate", 1.0)
        with WireClient(broker.bootstrap_servers) as admin:
            admin.ask(kind([kind.EntryData([kind.EntityData("ip", "127.0.0.4")], [op])]))
        host, port = broker.node.client_addresses[0]
        sockets = [socket.create_connection((host, port), 5, source_address=("127.0.0.4", 0)) for _ in range(30)]
    for each in sockets:
        each.close()
