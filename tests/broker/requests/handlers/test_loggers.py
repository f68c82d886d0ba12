"""Levels of loggers, asked for and changed over the wire (KIP-412)."""

import logging
from collections.abc import Iterator

import pytest

from moldau.broker.config import Operation
from moldau.broker.config.definition import ResourceType
from moldau.testing import Broker
from moldau.wire import ErrorCode
from moldau.wire import messages as m
from tests.broker.requests.handlers.wire_client import WireClient

ROOM = "moldau.groups"


@pytest.fixture(autouse=True)
def same_levels_after() -> Iterator[None]:
    loggers = [logging.getLogger(), logging.getLogger(ROOM)]
    before = [each.level for each in loggers]
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


def levels(broker: Broker, client: WireClient) -> dict[str, str | None]:
    kind = m.DescribeConfigsRequest
    node = str(broker.node.config.node_id)
    asked = kind.DescribeConfigsResource(resource_type=ResourceType.BROKER_LOGGER, resource_name=node)
    (found,) = client.ask(kind(resources=[asked]), 4).results
    assert found.error_code == ErrorCode.NONE
    return {each.name: each.value for each in found.configs}


def change(broker: Broker, client: WireClient, name: str, level: str | None) -> int:
    kind = m.IncrementalAlterConfigsRequest
    operation = Operation.DELETE if level is None else Operation.SET
    config = kind.AlterableConfig(name=name, config_operation=operation, value=level)
    node = str(broker.node.config.node_id)
    asked = kind.AlterConfigsResource(resource_type=ResourceType.BROKER_LOGGER, resource_name=node, configs=[config])
    (answer,) = client.ask(kind(resources=[asked]), 1).responses
    return int(answer.error_code)


def test_a_level_is_told_changed_and_taken_back(broker: Broker, client: WireClient) -> None:
    room = logging.getLogger(ROOM)
    inherited = levels(broker, client)[ROOM]
    assert change(broker, client, ROOM, "DEBUG") == ErrorCode.NONE
    assert levels(broker, client)[ROOM] == "DEBUG"
    assert room.isEnabledFor(logging.DEBUG)
    assert change(broker, client, ROOM, None) == ErrorCode.NONE
    assert levels(broker, client)[ROOM] == inherited
    assert room.level == logging.NOTSET


@pytest.mark.parametrize(
    ("name", "level", "error"),
    [
        ("moldau.nowhere", "DEBUG", ErrorCode.INVALID_CONFIG),
        (ROOM, "LOUD", ErrorCode.INVALID_CONFIG),
        ("root", None, ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    broker: Broker, client: WireClient, name: str, level: str | None, error: ErrorCode
) -> None:
    before = levels(broker, client)
    assert change(broker, client, name, level) == error
    assert levels(broker, client) == before
