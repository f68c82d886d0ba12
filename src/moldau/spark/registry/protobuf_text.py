"""`.proto` text into message classes, without protoc: what a registry stores is text.

proto2 and proto3: messages, enums, oneofs, maps, nested types, imports. Options, services and extensions, which are
mostly options of one's own, are read over; groups are refused. Protobuf itself links the result, so names that lead
nowhere are its errors.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

_TOKEN = re.compile(
    r"""\s+|//[^\n]*|/\*.*?\*/|(?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<word>[\w.+-]+)|(?P<sign>.)""", re.S
)
_SCALARS = {
    "double": 1,
    "float": 2,
    "int64": 3,
    "uint64": 4,
    "int32": 5,
    "fixed64": 6,
    "fixed32": 7,
    "bool": 8,
    "string": 9,
    "bytes": 12,
    "uint32": 13,
    "sfixed32": 15,
    "sfixed64": 16,
    "sint32": 17,
    "sint64": 18,
}
_LABELS = {"optional": 1, "required": 2, "repeated": 3}


# What Confluent's registry has by itself; the first holds options only, and those are read over.
_BUILT_IN = {
    "confluent/meta.proto": 'syntax = "proto3"; package confluent;',
    "confluent/type/decimal.proto": """syntax = "proto3"; package confluent.type;
        message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }""",
}


class ProtoError(ValueError):
    """What is wrong with the text."""


def message_class(text: str, imports: Mapping[str, str], path: tuple[int, ...] | str = (0,)) -> Any:
    """The class of a message. `path` are Confluent's message indexes, (0,) being the first of the file, or its name,
    with or without the package."""
    from google.protobuf import descriptor_pool, message_factory  # type: ignore[import-untyped]  # it has no stubs

    pool = descriptor_pool.DescriptorPool()
    file = file_descriptor(text, "moldau-value.proto")
    try:
        _add_well_known(pool, text, imports)
        for name, other in imports.items():
            pool.Add(file_descriptor(other, name))
        pool.Add(file)
        found: Any = pool.FindFileByName("moldau-value.proto")
        first = [found.message_types_by_name[each.name] for each in file.message_type]
        message = _named(first, path) if isinstance(path, str) else _at(first, path)
    except IndexError:
        where = ", ".join(map(str, path))  # who gives a name is told otherwise
        raise ProtoError(f"the Protobuf schema has no message at {where}, where the value says its own is") from None
    except (TypeError, KeyError) as error:
        raise ProtoError(f"the Protobuf schema cannot be used: {error}") from None
    return message_factory.GetMessageClass(message)


def _at(messages: list[Any], path: tuple[int, ...]) -> Any:
    found = messages[path[0]]
    for index in path[1:]:
        found = _nested(found)[index]
    return found


def _nested(message: Any) -> list[Any]:
    """As Java's serializer counts: entries of maps are not there."""
    return [each for each in message.nested_types if not each.GetOptions().map_entry]


def _named(messages: list[Any], name: str) -> Any:
    every = list(messages)
    for each in every:  # and those that are added meanwhile
        every += _nested(each)
    names = {name_in_file(each): each for each in every} | {each.full_name: each for each in every}
    if name not in names:
        there = ", ".join(each.full_name for each in every)
        raise ProtoError(f"the Protobuf schema has no message {name!r}; there are {there}")
    return names[name]


def name_in_file(message: Any) -> str:
    """Without the package, which people change with their schema's version."""
    return str(message.full_name).removeprefix(f"{message.file.package}.")


def _add_well_known(pool: Any, text: str, imports: Mapping[str, str]) -> None:
    """What a registry has without being told: Protobuf's own types, Google's common ones, Confluent's."""
    every = "\n".join((text, *imports.values()))
    wanted = set(re.findall(r'import\s+(?:public\s+|weak\s+)?["\']([^"\']+)["\']', every)) - set(imports)
    added: set[str] = set()
    for name in sorted(wanted):
        if name in _BUILT_IN:
            pool.Add(file_descriptor(_BUILT_IN[name], name))
        elif name.startswith(("google/protobuf/", "google/type/")):
            _add_module(pool, name, added)


def _add_module(pool: Any, name: str, added: set[str]) -> None:
    if name in added:
        return
    added.add(name)
    try:
        module = importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
    except ModuleNotFoundError:
        raise ProtoError(f"the Protobuf schema imports {name!r}: pip install googleapis-common-protos") from None
    for other in module.DESCRIPTOR.dependencies:
        _add_module(pool, other.name, added)
    pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)


def file_descriptor(text: str, name: str) -> Any:
    from google.protobuf import descriptor_pb2

    file = descriptor_pb2.FileDescriptorProto(name=name, syntax="proto2")
    _Reader(text).file(file)
    if file.syntax == "proto2":
        file.ClearField("syntax")
    return file


class _Reader:
    def __init__(self, text: str) -> None:
        self._tokens = list(self._split(text))
        self._at = 0
        self._is_proto3 = False

    @staticmethod
    def _split(text: str) -> Iterator[str]:
        for found in _TOKEN.finditer(text):
            token = found["string"] or found["word"] or found["sign"]
            if token:
                yield token

    def _next(self) -> str:
        if self._at >= len(self._tokens):
            raise ProtoError("the Protobuf schema ends too early")
        self._at += 1
        return self._tokens[self._at - 1]

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _expect(self, sign: str) -> None:
        found = self._next()
        if found != sign:
            raise ProtoError(f"the Protobuf schema has {found!r} where {sign!r} is expected")

    def _skip_statement(self) -> None:
        """To the end of a statement, or over its block."""
        while (word := self._next()) != ";":
            if word == "{":
                self._skip_block()
                if self._peek() == ";":
                    self._next()
                return

    def _skip_block(self) -> None:
        depth = 1
        while depth:
            depth += {"{": 1, "}": -1}.get(self._next(), 0)

    def file(self, file: Any) -> None:
        while self._peek():
            word = self._next()
            if word == "syntax":
                self._expect("=")
                file.syntax = self._next().strip("\"'")
                self._is_proto3 = file.syntax == "proto3"
                self._expect(";")
            elif word == "package":
                file.package = self._next()
                self._expect(";")
            elif word == "import":
                path = self._next()
                path = self._next() if path in ("public", "weak") else path
                file.dependency.append(path.strip("\"'"))
                self._expect(";")
            elif word == "message":
                self._message(file.message_type.add())
            elif word == "enum":
                self._enum(file.enum_type.add())
            elif word in ("option", "service", "extend"):
                self._skip_statement()
            elif word != ";":
                raise ProtoError(f"the Protobuf schema has {word!r}, which is not known here")

    def _message(self, message: Any) -> None:
        message.name = self._next()
        self._expect("{")
        optional: list[Any] = []
        while (word := self._next()) != "}":
            if word == "message":
                self._message(message.nested_type.add())
            elif word == "enum":
                self._enum(message.enum_type.add())
            elif word in ("option", "reserved", "extensions", "extend"):
                self._skip_statement()
            elif word == "oneof":
                self._oneof(message)
            elif word != ";":
                field = self._field(message, word)
                if word == "optional" and self._is_proto3:
                    optional.append(field)
        for field in optional:  # as protoc: an optional field is alone in a oneof of its own, behind all others
            message.oneof_decl.add(name=f"_{field.name}")
            field.oneof_index = len(message.oneof_decl) - 1
            field.proto3_optional = True

    def _oneof(self, message: Any) -> None:
        message.oneof_decl.add(name=self._next())
        index = len(message.oneof_decl) - 1
        self._expect("{")
        while (word := self._next()) != "}":
            if word == "option":
                self._skip_statement()
            else:
                self._field(message, word).oneof_index = index

    def _field(self, message: Any, word: str) -> Any:
        label = 1
        if word in _LABELS:
            label = _LABELS[word]
            word = self._next()
        field = message.field.add(label=label)
        if word == "map" and self._peek() == "<":
            self._map(message, field)
        else:
            self._typed(field, word)
            field.name = self._next()
        self._expect("=")
        field.number = _number(self._next())
        while self._next() != ";":
            pass  # options of the field
        return field

    def _typed(self, field: Any, word: str) -> None:
        if word in _SCALARS:
            field.type = _SCALARS[word]
        elif word == "group":
            raise ProtoError("the Protobuf schema uses a group, which is not known here")
        else:
            field.type_name = word  # a message or an enum: who links the file finds out

    def _map(self, message: Any, field: Any) -> None:
        self._expect("<")
        key = self._next()
        self._expect(",")
        value = self._next()
        self._expect(">")
        field.name = self._next()
        entry_name = "".join(part[:1].upper() + part[1:] for part in field.name.split("_")) + "Entry"
        entry = message.nested_type.add(name=entry_name)
        entry.options.map_entry = True
        self._typed(entry.field.add(name="key", number=1, label=1), key)
        self._typed(entry.field.add(name="value", number=2, label=1), value)
        field.label = 3
        field.type_name = entry_name

    def _enum(self, enum: Any) -> None:
        enum.name = self._next()
        self._expect("{")
        while (word := self._next()) != "}":
            if word in ("option", "reserved"):
                self._skip_statement()
            elif word != ";":
                self._expect("=")
                enum.value.add(name=word, number=_number(self._next()))
                while self._next() != ";":
                    pass


def _number(text: str) -> int:
    """As C writes it: with a zero before it, it is octal."""
    digits = text.lstrip("+-")
    return int(text, 8 if digits.isdigit() and digits.startswith("0") else 0)
