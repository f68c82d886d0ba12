"""Byte for byte against kafka-python, for every message and version it has."""

import importlib
import random
from typing import Any

import pytest
from kafka.protocol.api_message import ApiMessage

from moldau.wire import codec, messages, schema
from tests.support.random_messages import every_message_and_version, random_message

for _room in ("admin", "consumer", "metadata", "producer", "sasl"):
    importlib.import_module(f"kafka.protocol.{_room}")


def _classes(base: type) -> dict[str, Any]:
    found: dict[str, Any] = {}
    each: type
    for each in base.__subclasses__():
        found[each.__name__] = each
        found |= _classes(each)
    return found


THEIRS = _classes(ApiMessage)
KNOWN = [
    (name, version)
    for name, version in every_message_and_version()
    if name in THEIRS and THEIRS[name].min_version <= version <= THEIRS[name].max_version
]


def test_kafka_python_knows_the_client_apis() -> None:
    assert len({schema.head(name).number for name, _ in KNOWN}) >= 45


@pytest.mark.parametrize(("name", "version"), KNOWN, ids=[f"{name}-v{version}" for name, version in KNOWN])
def test_same_bytes(name: str, version: int) -> None:
    rng = random.Random(f"{name} {version}")
    for _ in range(8):
        ours: Any = random_message(name, version, rng)
        if name == "ApiVersionsResponse":
            ours.error_code = 0  # on any error it falls back to version 0, as a client should
        data = codec.encode(ours, version)
        theirs = THEIRS[name].decode(data, version=version)
        theirs._header = None  # its decoder leaves the slot empty when there is no header
        assert bytes(theirs.encode(version=version)) == data
        assert codec.decode(getattr(messages, name), version, data) == ours
