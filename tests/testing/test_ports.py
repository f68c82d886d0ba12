"""Ports that are free, and stay so until a node listens."""

import socket
from pathlib import Path

import pytest

from moldau.testing import ports
from moldau.testing.ports import free_ports


def test_they_are_free_different_and_not_handed_out_to_connections() -> None:
    found = free_ports(40)
    assert len(set(found)) == 40
    for port in found:
        socket.create_server(("127.0.0.1", port)).close()
    handed_out = Path("/proc/sys/net/ipv4/ip_local_port_range")
    first = int(handed_out.read_text().split()[0]) if handed_out.exists() else 32_768
    assert max(found) < first or first <= 10_000


def test_what_somebody_listens_on_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    with socket.create_server(("127.0.0.1", port)):
        monkeypatch.setattr(ports, "_FIRST", port)
        monkeypatch.setattr(ports, "_first_handed_out", lambda: port + 1)
        with pytest.raises(OSError, match="no 1 free ports"):
            free_ports(1)


def test_a_system_that_hands_out_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_first_handed_out", lambda: 1024)
    assert len(set(free_ports(5))) == 5
