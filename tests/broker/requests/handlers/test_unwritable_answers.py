"""An answer that cannot be encoded is an error to its client, who must not wait for ever; the connection goes on."""

from __future__ import annotations

from typing import Any

import pytest

from moldau.broker.quorum.errors import QuorumStopped
from moldau.broker.requests.registry import served_on
from moldau.wire import ErrorCode
from moldau.wire import messages as m
from tests.broker.requests.handlers.wire_client import WireClient

LIST_GROUPS, METADATA = 16, 3


def spoiled() -> m.ListGroupsResponse:
    return m.ListGroupsResponse(throttle_time_ms=2**40)


def at_once(*_: object) -> Any:
    return spoiled()


async def later(*_: object) -> Any:
    return spoiled()


@pytest.mark.parametrize("handle", [at_once, later])
def test_it_is_an_error_where_there_is_a_place_for_one(
    client: WireClient, monkeypatch: pytest.MonkeyPatch, handle: Any
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(served_on("broker")[LIST_GROUPS], "handle", handle)
        assert client.ask(m.ListGroupsRequest()).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert client.ask(m.ListGroupsRequest()).error_code == ErrorCode.NONE, "the same connection"


@pytest.mark.parametrize("handle", [at_once, later])
def test_the_connection_ends_where_there_is_none(
    client: WireClient, monkeypatch: pytest.MonkeyPatch, handle: Any
) -> None:
    monkeypatch.setattr(served_on("broker")[METADATA], "handle", handle)
    with pytest.raises(ConnectionError):
        client.ask(m.MetadataRequest(), 12)


def test_the_log_names_the_api_where_lines_are_told_apart(
    client: WireClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Lines are limited by their texts, before anything is filled in: an API that fails again and again must not hide
    one that fails once."""
    with monkeypatch.context() as patched:
        patched.setattr(served_on("broker")[LIST_GROUPS], "handle", at_once)
        client.ask(m.ListGroupsRequest())
    (record,) = (each for each in caplog.records if "failed" in each.getMessage())
    assert str(record.msg).startswith("ListGroups failed")
    assert "wire-client" in record.getMessage()


def test_a_node_that_left_the_quorum_says_so_to_all_who_ask_and_its_log_said_it_once(
    client: WireClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its disk failed, perhaps, and the others ask it several times a second."""

    def stopped(*_: object) -> Any:
        raise QuorumStopped("the disk of this node's metadata failed")

    with monkeypatch.context() as patched:
        patched.setattr(served_on("broker")[LIST_GROUPS], "handle", stopped)
        assert client.ask(m.ListGroupsRequest()).error_code == ErrorCode.BROKER_NOT_AVAILABLE
    assert not caplog.records
