"""Random but valid messages, made from the schema table: the input of oracle and fuzz tests."""

import random
import string
from typing import Any

from moldau.wire import schema
from moldau.wire.codegen import message_class
from moldau.wire.errors import ErrorCode
from moldau.wire.message import Message, Struct
from moldau.wire.schema import FieldSpec, MessageSpec, StructSpec

_RANGES = {
    "int8": (-(1 << 7), (1 << 7) - 1),
    "int16": (-(1 << 15), (1 << 15) - 1),
    "uint16": (0, (1 << 16) - 1),
    "int32": (-(1 << 31), (1 << 31) - 1),
    "uint32": (0, (1 << 32) - 1),
    "int64": (-(1 << 63), (1 << 63) - 1),
}
_ERROR_CODES = [int(code) for code in ErrorCode]
_LETTERS = string.ascii_letters + string.digits + "äß水 .-_"


def random_message(name: str, version: int, rng: random.Random, *, tame_times: bool = False) -> Message:
    """A message whose every field of this version is random; other fields have their defaults.

    `tame_times` keeps times and durations within what oracles with datetime types can represent.
    """
    spec = schema.message(name)
    return _Maker(spec, version, rng, tame_times=tame_times).struct(spec.root)  # type: ignore[return-value]  # the root is a Message


class _Maker:
    def __init__(self, spec: MessageSpec, version: int, rng: random.Random, *, tame_times: bool) -> None:
        self._made = message_class(spec.name)
        self._version = version
        self._flexible = spec.is_flexible_in(version)
        self._rng = rng
        self._tame_times = tame_times

    def struct(self, spec: StructSpec) -> Struct:
        made: Any = self._made if spec.name == self._made.__name__ else getattr(self._made, spec.name)
        values = {
            each.name: self.field(each)
            for each in spec.fields
            if self._version in each.versions and not (each.is_tagged_in(self._version) and self._rng.random() < 0.3)
        }
        result: Struct = made(**values)
        return result

    def field(self, spec: FieldSpec) -> object:
        if spec.is_nullable_in(self._version) and self._rng.random() < 0.3:
            return None
        if spec.is_array:
            return [self.scalar(spec) for _ in range(self._rng.choice([0, 1, 1, 2, 3]))]
        return self.scalar(spec)

    def scalar(self, spec: FieldSpec) -> object:
        rng = self._rng
        if spec.struct is not None:
            return self.struct(spec.struct)
        if spec.type == "string":
            return "".join(rng.choices(_LETTERS, k=rng.choice([0, 1, 5, 20, 200])))
        if spec.type in ("bytes", "records"):
            return rng.randbytes(rng.choice([0, 1, 16, 300]))
        if spec.type == "uuid":
            return rng.randbytes(16)
        if spec.type == "bool":
            return rng.random() < 0.5
        if spec.type == "float64":
            return rng.uniform(-1e9, 1e9)
        if spec.type == "int16" and "error_code" in spec.name:
            return rng.choice(_ERROR_CODES)
        low, high = _RANGES[spec.type]
        if self._tame_times and ("time" in spec.name or spec.name.endswith("_ms")):
            return rng.randint(0, min(high, 1 << 40))
        return rng.choice([low, high, 0, 1, rng.randint(low, high)])


def plain(value: object) -> object:
    """A message as dicts and lists, for comparing and printing."""
    if isinstance(value, Struct):
        return {name: plain(getattr(value, name)) for name in value.__slots__ if name != "unknown_tags"}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value


def every_message_and_version() -> list[tuple[str, int]]:
    return [
        (name, version)
        for name, head in schema.heads().items()
        for version in range(head.versions.first, head.versions.last + 1)
    ]


__all__ = ["every_message_and_version", "plain", "random_message"]
