"""Byte for byte against kio, for every message and version it has: same bytes, same values."""

import dataclasses
import datetime
import enum
import io
import random
import re
import uuid
from typing import Any

import kio.index
import pytest
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from moldau.wire import ZERO_UUID, codec, messages, schema
from moldau.wire.message import Struct
from tests.support.random_messages import every_message_and_version, random_message

# kio names plain data after its Kafka schema.
_DATA_NAMES = {
    re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower(): name
    for name, head in schema.heads().items()
    if head.kind == "data"
} | {"k_raft_version_record": "KRaftVersionRecord"}
_KINDS: dict[str, Any] = {"request": EntityType.request, "response": EntityType.response}


def _kio_class(name: str, version: int) -> type[Any] | None:
    head = schema.head(name)
    if head.kind in _KINDS:
        kio_name = api_key_map.get(head.number)
        kind = _KINDS[head.kind]
    else:
        kio_name = next((kio_name for kio_name, ours in _DATA_NAMES.items() if ours == name), None)
        kind = EntityType.data
    if kio_name is None or kind not in schema_name_map.get(kio_name, {}).get(version, {}):
        return None
    return kio.index.load_entity_schema(kio_name, version, kind)


KNOWN = [(name, version) for name, version in every_message_and_version() if _kio_class(name, version)]


def _milliseconds(value: datetime.timedelta) -> int:
    return round(value / datetime.timedelta(milliseconds=1))


def _our_name(name: str, ours: Struct) -> str:
    """kio drops the unit from times, and appends an underscore to what Python reserves."""
    name = name.rstrip("_").replace("k_raft", "kraft")
    candidates = [name, name + "_ms", name + "_timestamp", name + "_timestamp_ms"]
    return next(each for each in candidates if each in ours.__slots__)


def _same(ours: object, theirs: object, path: str) -> None:
    """Every field kio has, has the value we gave it."""
    if dataclasses.is_dataclass(theirs):
        assert isinstance(ours, Struct), path
        for field in dataclasses.fields(theirs):
            name = _our_name(field.name, ours)
            _same(getattr(ours, name), getattr(theirs, field.name), f"{path}.{name}")
    elif isinstance(theirs, tuple):
        assert isinstance(ours, list), path
        assert len(ours) == len(theirs), path
        for mine, yours in zip(ours, theirs, strict=True):
            _same(mine, yours, path + "[]")
    elif isinstance(theirs, datetime.timedelta):
        assert ours == _milliseconds(theirs), path
    elif isinstance(theirs, datetime.datetime):
        assert ours == _milliseconds(theirs - datetime.datetime.fromtimestamp(0, datetime.UTC)), path
    elif isinstance(theirs, uuid.UUID):
        assert ours == theirs.bytes, path
    elif isinstance(theirs, enum.IntEnum):
        assert ours == int(theirs), path
    elif theirs is None:
        # kio shows a zero uuid and an absent timestamp as None.
        assert ours is None or ours in (ZERO_UUID, -1), path
    else:
        assert ours == theirs, path


def test_kio_knows_most_of_the_protocol() -> None:
    names = {name for name, _ in KNOWN}
    assert len(names) >= 170
    assert {schema.head(name).number for name in names if schema.head(name).kind == "request"} >= set(range(8, 80)) - {
        52, 53, 54
    } - {58}  # fmt: skip


@pytest.mark.parametrize(("name", "version"), KNOWN, ids=[f"{name}-v{version}" for name, version in KNOWN])
def test_same_bytes_and_values(name: str, version: int) -> None:
    theirs = _kio_class(name, version)
    assert theirs is not None
    read, write = entity_reader(theirs), entity_writer(theirs)
    rng = random.Random(f"{name} {version}")
    for _ in range(12):
        ours = random_message(name, version, rng, tame_times=True)
        data = codec.encode(ours, version)
        entity, size = read(data, 0)
        assert size == len(data)
        _same(ours, entity, name)
        again = io.BytesIO()
        write(again, entity)
        assert again.getvalue() == data
        assert codec.decode(getattr(messages, name), version, data) == ours
