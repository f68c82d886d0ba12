"""Compiles the table: a class per struct, and straight-line encoders and decoders per (message, version).

A whole message is one function with nested loops: neighbouring fixed-size fields become one `struct` call, and every
length is checked against what is left of the buffer before anything is allocated. Decoders keep a budget of elements,
so a frame cannot blow up into more than `MAX_ELEMENTS` objects whatever it claims.
"""

import struct
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from moldau.wire import schema
from moldau.wire.message import Message, Struct
from moldau.wire.primitives import (
    ONE_BYTE,
    ZERO_UUID,
    IntArrays,
    MalformedFrame,
    decode_uvarint,
    encode_tags,
    encode_uvarint,
    finish_uvarint,
)
from moldau.wire.schema import FieldSpec, MessageSpec, StructSpec

MAX_ELEMENTS: Final = 1_000_000
_MAX_STRING_BYTES: Final = 32767

# How a fixed-size type is packed.
_FIXED = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
_INT_ARRAYS = {name: IntArrays(_FIXED[name]) for name in ("int8", "int16", "int32", "int64")}
_EMPTY: Final = object()  # "no argument given", where null is a value

Encoder = Callable[[Any], bytes]
Writer = Callable[[Any, Callable[[bytes], object]], None]
Decoder = Callable[[bytes, int], Any]


def default_of(spec: FieldSpec) -> object:
    """The value of a field that is absent: what the table says, else zero, empty or false. Fresh for lists."""
    text = spec.default
    if text == "null":
        return None
    if spec.is_array:
        return []
    if spec.type == "struct":
        return _EMPTY
    if spec.type == "string":
        return text or ""
    if spec.type in ("bytes", "records"):
        return b""
    if spec.type == "uuid":
        return ZERO_UUID
    if spec.type == "bool":
        return text == "true"
    return float(text or 0) if spec.type == "float64" else int(text or 0)


# --- classes -----------------------------------------------------------------------------------------------------


@cache
def message_class(name: str) -> type[Message]:
    """The class of a message; its structs are attributes of it."""
    spec = schema.message(name)
    structs = {struct_spec.name: _struct_class(struct_spec, Struct, {}, name) for struct_spec in spec.structs}
    for struct_spec in spec.structs:
        _bind_struct_defaults(structs[struct_spec.name], struct_spec, structs)
    made = _struct_class(spec.root, Message, dict(structs), name)
    _bind_struct_defaults(made, spec.root, structs)
    made.number = spec.number  # type: ignore[attr-defined]  # made is a Message: its base says so
    made.first_version = spec.versions.first  # type: ignore[attr-defined]  # as above
    made.last_version = spec.versions.last  # type: ignore[attr-defined]  # as above
    return made  # type: ignore[return-value]  # as above


def _struct_class(spec: StructSpec, base: type, attributes: dict[str, Any], message_name: str) -> type[Struct]:
    names = [spec_field.name for spec_field in spec.fields]
    namespace: dict[str, Any] = {"EMPTY": _EMPTY}
    arguments, body = ["self"], []
    for spec_field in spec.fields:
        name, default = spec_field.name, default_of(spec_field)
        if isinstance(default, list):
            arguments.append(f"{name}=EMPTY")
            body.append(f" self.{name} = [] if {name} is EMPTY else {name}")
        elif default is _EMPTY:
            arguments.append(f"{name}=EMPTY")
            body.append(f" self.{name} = NEW_{name}() if {name} is EMPTY else {name}")
        else:
            arguments.append(f"{name}={default!r}")
            body.append(f" self.{name} = {name}")
    source = f"def __init__({', '.join(arguments)}, unknown_tags=None):\n" + "\n".join(body)
    source += "\n self.unknown_tags = unknown_tags\n"
    exec(compile(source, f"<{spec.name}.__init__>", "exec"), namespace)  # noqa: S102 - built from our own table only
    qualified = spec.name if spec.name == message_name else f"{message_name}.{spec.name}"
    members = {
        "__slots__": (*names, "unknown_tags"),
        "__init__": namespace["__init__"],
        "__module__": "moldau.wire.messages",
        "__qualname__": qualified,
        **attributes,
    }
    return type(spec.name, (base,), members)


def _bind_struct_defaults(made: type, spec: StructSpec, structs: dict[str, type[Struct]]) -> None:
    """Give the constructor the classes it needs for struct-typed fields that are not passed."""
    init: Any = made.__dict__["__init__"]
    for spec_field in spec.fields:
        if spec_field.struct is not None and not spec_field.is_array:
            init.__globals__[f"NEW_{spec_field.name}"] = structs[spec_field.struct.name]


# --- code shared by encoders and decoders --------------------------------------------------------------------------


class _Source:
    """Lines of a function under construction, with the constants it refers to."""

    def __init__(self, message_name: str, version: int) -> None:
        self.lines: list[str] = []
        self.indent = 1
        self.constants: dict[str, Any] = {}
        self.spec = schema.message(message_name)
        self.version = version
        self.flexible = self.spec.is_flexible_in(version)
        self._names = 0

    def line(self, text: str) -> None:
        self.lines.append(" " * self.indent + text)

    def fresh(self, stem: str) -> str:
        self._names += 1
        return f"{stem}{self._names}"

    def constant(self, stem: str, value: Any) -> str:
        name = f"{stem}_{len(self.constants)}"
        self.constants[name] = value
        return name

    def compile(self, head: str, tail: str) -> Any:
        source = "\n".join([head, *self.lines, f" {tail}"])
        filename = f"<{self.spec.name} v{self.version}>"
        exec(compile(source, filename, "exec"), self.constants)  # noqa: S102 - built from our own table only
        return self.constants["code"]

    def fields(self, spec: StructSpec) -> tuple[list[FieldSpec], list[FieldSpec]]:
        """(plain fields, tagged fields by tag) of a struct in this version."""
        present = [each for each in spec.fields if self.version in each.versions]
        tagged = [each for each in present if each.is_tagged_in(self.version)]
        plain = [each for each in present if not each.is_tagged_in(self.version)]
        return plain, sorted(tagged, key=lambda each: each.tag or 0)


# --- encoders --------------------------------------------------------------------------------------------------------


class _EncoderSource(_Source):
    def __init__(self, message_name: str, version: int) -> None:
        super().__init__(message_name, version)
        self._pending: list[tuple[str, str]] = []
        self.constants |= {"ONE": ONE_BYTE, "UV": encode_uvarint, "TAGS": encode_tags}

    def fixed(self, code: str, expression: str) -> None:
        self._pending.append((code, expression))

    def flush(self) -> None:
        if not self._pending:
            return
        packer = struct.Struct(">" + "".join(code for code, _ in self._pending))
        if all(expression.isdigit() for _, expression in self._pending):
            literal = packer.pack(*(int(expression) for _, expression in self._pending))
            self.line(f"w({literal!r})")
        else:
            name = self.constant("pack", packer.pack)
            self.line(f"w({name}({', '.join(expression for _, expression in self._pending)}))")
        self._pending.clear()

    def length(self, expression: str, code: str) -> None:
        """A length prefix: plain with the given struct code, or compact (length + 1)."""
        if not self.flexible:
            self.fixed(code, expression)
            return
        self.flush()
        size = self.fresh("n")
        self.line(f"{size} = {expression} + 1")
        self.line(f"w(ONE[{size}] if {size} < 128 else UV({size}))")

    def null(self, code: str) -> None:
        if self.flexible:
            self.fixed("B", "0")
        else:
            self.fixed(code, "-1")
        self.flush()

    def struct(self, spec: StructSpec, value: str) -> None:
        plain, tagged = self.fields(spec)
        for spec_field in plain:
            self.field(spec_field, f"{value}.{spec_field.name}")
        if self.flexible:
            self.tags(tagged, value)

    def tags(self, tagged: list[FieldSpec], value: str) -> None:
        if not tagged:
            self.flush()
            self.line(f"if {value}.unknown_tags: w(TAGS({value}.unknown_tags))")
            self.line("else: w(b'\\0')")
            return
        self.flush()
        section, saved = self.fresh("tags"), self.fresh("outer")
        self.line(f"{section} = dict({value}.unknown_tags or ())")
        for spec_field in tagged:
            attribute = f"{value}.{spec_field.name}"
            self.line(f"if {self._is_set(spec_field, attribute)}:")
            self.indent += 1
            parts = self.fresh("parts")
            self.line(f"{saved} = w; {parts} = []; w = {parts}.append")
            self.field(spec_field, attribute)
            self.flush()
            self.line(f"w = {saved}; {section}[{spec_field.tag}] = b''.join({parts})")
            self.indent -= 1
        self.line(f"w(TAGS({section}) if {section} else b'\\0')")

    def _is_set(self, spec_field: FieldSpec, attribute: str) -> str:
        """Tagged fields are written only when they differ from their default."""
        default = default_of(spec_field)
        if default is None:
            return f"{attribute} is not None"
        if default is _EMPTY:
            assert spec_field.struct is not None
            made = getattr(message_class(self.spec.name), spec_field.struct.name)()
            return f"{attribute} != {self.constant('default', made)}"
        if default == []:
            return f"{attribute} is None or {attribute}" if spec_field.is_nullable_in(self.version) else attribute
        return f"{attribute} != {default!r}"

    def field(self, spec: FieldSpec, value: str) -> None:
        if spec.type in _FIXED and not spec.is_array:
            self.fixed(_FIXED[spec.type], value)
            return
        if not spec.is_nullable_in(self.version):
            self.present(spec, value)
            return
        self.flush()
        local = self.fresh("v")
        self.line(f"{local} = {value}")
        self.line(f"if {local} is None:")
        self.indent += 1
        if spec.type == "struct" and not spec.is_array:
            self.line("w(b'\\xff')")
        else:
            self.null("h" if spec.type == "string" and not spec.is_array else "i")
        self.indent -= 1
        self.line("else:")
        self.indent += 1
        if spec.type == "struct" and not spec.is_array:
            self.fixed("b", "1")
        self.present(spec, local)
        self.flush()
        self.indent -= 1

    def present(self, spec: FieldSpec, value: str) -> None:
        """A value that is known not to be null."""
        if spec.is_array:
            self.array(spec, value)
        elif spec.struct is not None:
            self.struct(spec.struct, value)
        elif spec.type == "string":
            self.string(value)
        else:  # bytes, records
            self.length(f"len({value})", "i")
            self.flush()
            self.line(f"w({value})")

    def string(self, value: str) -> None:
        local = self.fresh("s")
        self.line(f"{local} = {value}.encode()")
        self.length(f"len({local})", "h")
        self.flush()
        self.line(f"w({local})")

    def array(self, spec: FieldSpec, value: str) -> None:
        if spec.type in _INT_ARRAYS:
            packer = _INT_ARRAYS[spec.type]
            self.flush()
            name = self.constant("ints", packer.pack_compact if self.flexible else packer.pack_plain)
            self.line(f"w({name}({value}))")
            return
        self.length(f"len({value})", "i")
        self.flush()
        item = self.fresh("e")
        self.line(f"for {item} in {value}:")
        self.indent += 1
        if spec.struct is not None:
            self.struct(spec.struct, item)
        elif spec.type == "string":
            self.string(item)
        elif spec.type in _FIXED:
            self.fixed(_FIXED[spec.type], item)
        else:
            raise ValueError(f"schema table: {self.spec.name}: arrays of {spec.type} are not supported")
        self.flush()
        self.indent -= 1


@cache
def encoder(name: str, version: int) -> Encoder:
    """The function that turns a message into bytes, compiled on first use."""
    made: Encoder = _encoder_source(name, version).compile(
        "def code(m):\n parts = []; w = parts.append", "return b''.join(parts)"
    )
    return made


@cache
def writer(name: str, version: int) -> Writer:
    """The same for long messages: each piece is given to a function as it is made, so that they are not all kept."""
    made: Writer = _encoder_source(name, version).compile("def code(m, w):", "return None")
    return made


def _encoder_source(name: str, version: int) -> _EncoderSource:
    _check_version(schema.message(name), version)
    source = _EncoderSource(name, version)
    source.struct(source.spec.root, "m")
    source.flush()
    return source


# --- decoders --------------------------------------------------------------------------------------------------------


def _null(path: str) -> MalformedFrame:
    return MalformedFrame(f"{path} is null, which it must not be")


def _beyond(path: str) -> MalformedFrame:
    return MalformedFrame(f"{path} claims to be longer than what is left of the frame, or longer than allowed")


def _too_many(path: str) -> MalformedFrame:
    return MalformedFrame(f"{path}: the frame holds more than {MAX_ELEMENTS} elements")


class _DecoderSource(_Source):
    def __init__(self, message_name: str, version: int) -> None:
        super().__init__(message_name, version)
        self._pending: list[tuple[str, str]] = []
        self.constants |= {
            "UV": decode_uvarint,
            "UV_REST": finish_uvarint,
            "NULL": _null,
            "BEYOND": _beyond,
            "TOO_MANY": _too_many,
            "BAD": MalformedFrame,
        }
        self._made = message_class(message_name)

    def fixed(self, code: str, target: str) -> None:
        self._pending.append((code, target))

    def flush(self) -> None:
        if not self._pending:
            return
        unpacker = struct.Struct(">" + "".join(code for code, _ in self._pending))
        name = self.constant("unpack", unpacker.unpack_from)
        targets = "".join(f"{target}, " for _, target in self._pending)
        self.line(f"{targets}= {name}(b, p); p += {unpacker.size}")
        self._pending.clear()

    def uvarint(self, target: str) -> None:
        self.flush()
        self.line(f"{target} = b[p]; p += 1")
        self.line(f"if {target} > 127: {target}, p = UV_REST(b, p, {target})")

    def length(self, target: str, code: str) -> None:
        """Read a length prefix; null is -1."""
        if self.flexible:
            self.uvarint(target)
            self.line(f"{target} -= 1")
        else:
            self.fixed(code, target)
            self.flush()

    def struct(self, spec: StructSpec, target: str, path: str) -> None:
        plain, tagged = self.fields(spec)
        values = {spec_field.name: self.fresh("f") for spec_field in plain + tagged}
        for spec_field in plain:
            self.field(spec_field, values[spec_field.name], f"{path}.{spec_field.name}")
        unknown = "None"
        if self.flexible:
            for spec_field in tagged:
                self.line(f"{values[spec_field.name]} = {self._default(spec_field)}")
            unknown = self.tags(tagged, values, path)
        self.flush()
        made = self._made if spec is self.spec.root else getattr(self._made, spec.name)
        name = self.constant("make", made)
        arguments = [values.get(each.name) or self._default(each) for each in spec.fields]
        self.line(f"{target} = {name}({', '.join([*arguments, unknown])})")

    def _default(self, spec: FieldSpec) -> str:
        default = default_of(spec)
        if default is _EMPTY:
            assert spec.struct is not None
            return self.constant("make", getattr(self._made, spec.struct.name)) + "()"
        return repr(default)

    def tags(self, tagged: list[FieldSpec], values: dict[str, str], path: str) -> str:
        count, unknown = self.fresh("n"), self.fresh("u")
        self.uvarint(count)
        self.line(f"{unknown} = None")
        self.line(f"if {count}:")
        self.indent += 1
        self.line(f"left -= {count}")
        self.line(f"if left < 0: raise TOO_MANY({path!r})")
        tag, size, stop = self.fresh("t"), self.fresh("n"), self.fresh("stop")
        self.line(f"for _ in range({count}):")
        self.indent += 1
        self.line(f"{tag}, p = UV(b, p); {size}, p = UV(b, p); {stop} = p + {size}")
        self.line(f"if {stop} > end: raise BEYOND({path + ' tag'!r})")
        keyword = "if"
        for spec_field in tagged:
            self.line(f"{keyword} {tag} == {spec_field.tag}:")
            self.indent += 1
            self.field(spec_field, values[spec_field.name], f"{path}.{spec_field.name}")
            self.flush()
            self.line(f"if p != {stop}: raise BAD({path + '.' + spec_field.name + ' does not fill its tag'!r})")
            self.indent -= 1
            keyword = "elif"
        if tagged:
            self.line("else:")
            self.indent += 1
        self.line(f"if {unknown} is None: {unknown} = {{}}")
        self.line(f"{unknown}[{tag}] = b[p:{stop}]; p = {stop}")
        self.indent -= 3 if tagged else 2
        return unknown

    def field(self, spec: FieldSpec, target: str, path: str) -> None:
        if spec.type in _FIXED and not spec.is_array:
            self.fixed(_FIXED[spec.type], target)
        elif spec.is_array:
            self.array(spec, target, path)
        elif spec.struct is not None:
            self.nullable_struct(spec, target, path)
        elif spec.type == "string":
            self.string(target, path, nullable=spec.is_nullable_in(self.version))
        else:
            self.bytes(spec, target, path)

    def nullable_struct(self, spec: FieldSpec, target: str, path: str) -> None:
        assert spec.struct is not None
        if not spec.is_nullable_in(self.version):
            self.struct(spec.struct, target, path)
            return
        marker = self.fresh("n")
        self.fixed("b", marker)
        self.flush()
        self.line(f"if {marker} < 0: {target} = None")
        self.line("else:")
        self.indent += 1
        self.struct(spec.struct, target, path)
        self.indent -= 1

    def _open_if_present(self, size: str, target: str, path: str, *, nullable: bool) -> None:
        """Null gives None or an error; what follows is the `else` branch."""
        if nullable:
            self.line(f"if {size} < 0: {target} = None")
            self.line("else:")
            self.indent += 1
        else:
            self.line(f"if {size} < 0: raise NULL({path!r})")

    def string(self, target: str, path: str, *, nullable: bool) -> None:
        size, stop = self.fresh("n"), self.fresh("stop")
        self.length(size, "h")
        self._open_if_present(size, target, path, nullable=nullable)
        self.line(f"{stop} = p + {size}")
        self.line(f"if {stop} > end or {size} > {_MAX_STRING_BYTES}: raise BEYOND({path!r})")
        self.line(f"{target} = b[p:{stop}].decode(); p = {stop}")
        self.indent -= nullable

    def bytes(self, spec: FieldSpec, target: str, path: str) -> None:
        size, stop = self.fresh("n"), self.fresh("stop")
        nullable = spec.is_nullable_in(self.version)
        self.length(size, "i")
        self._open_if_present(size, target, path, nullable=nullable)
        self.line(f"{stop} = p + {size}")
        self.line(f"if {stop} > end: raise BEYOND({path!r})")
        self.line(f"{target} = b[p:{stop}]; p = {stop}")
        self.indent -= nullable

    def array(self, spec: FieldSpec, target: str, path: str) -> None:
        count = self.fresh("n")
        nullable = spec.is_nullable_in(self.version)
        self.length(count, "i")
        self._open_if_present(count, target, path, nullable=nullable)
        smallest = self.smallest(spec)
        self.line(f"left -= {count}")
        self.line(f"if {count} * {smallest} > end - p: raise BEYOND({path!r})")
        self.line(f"if left < 0: raise TOO_MANY({path!r})")
        if spec.type in _INT_ARRAYS:
            name = self.constant("ints", _INT_ARRAYS[spec.type].unpack)
            self.line(f"{target} = {name}(b, p, {count}); p += {count} * {smallest}")
        else:
            item, add = self.fresh("e"), self.fresh("add")
            self.line(f"{target} = []; {add} = {target}.append")
            self.line(f"for _ in range({count}):")
            self.indent += 1
            if spec.struct is not None:
                self.struct(spec.struct, item, path)
            elif spec.type == "string":
                self.string(item, path, nullable=False)
            else:
                self.fixed(_FIXED[spec.type], item)
                self.flush()
            self.line(f"{add}({item})")
            self.indent -= 1
        self.indent -= nullable

    def smallest(self, spec: FieldSpec) -> int:
        """The fewest bytes one element of an array can have: what bounds a claimed length."""
        if spec.struct is not None:
            fields, _ = self.fields(spec.struct)
            return max(1, sum(self._smallest_field(each) for each in fields) + self.flexible)
        if spec.type in _FIXED:
            return struct.calcsize(">" + _FIXED[spec.type])
        return 1 if self.flexible else 2

    def _smallest_field(self, spec: FieldSpec) -> int:
        if spec.is_array or spec.type in ("bytes", "records"):
            return 1 if self.flexible else 4
        if spec.type == "struct" and spec.is_nullable_in(self.version):
            return 1
        return self.smallest(spec)


@cache
def decoder(name: str, version: int) -> Decoder:
    """The function (bytes, position) -> (message, position after it), compiled on first use."""
    _check_version(schema.message(name), version)
    source = _DecoderSource(name, version)
    source.struct(source.spec.root, "m", name)
    source.flush()
    made: Decoder = source.compile(f"def code(b, p):\n end = len(b); left = {MAX_ELEMENTS}", "return m, p")
    return made


def _check_version(spec: MessageSpec, version: int) -> None:
    if version not in spec.versions:
        raise ValueError(f"{spec.name} has versions {spec.versions.first}-{spec.versions.last}, not {version}")
