"""The message table: every Kafka message Moldau knows, declared once in `schema/*.txt`.

A message is a head line followed by its fields, indented; a struct's fields are indented below the field that uses it:

    request 3 MetadataRequest 0-13 flexible 9+ on broker
      topics       []MetadataRequestTopic?1+
        topic_id   uuid                       10+
        name       string?10+
      allow_auto_topic_creation  bool         4+ = true

Head   kind number name versions [flexible [versions]] [on listeners] [unstable-last]
       kinds: request, response (number = API key); record (number = metadata record type); key, value (number =
       coordinator record type); data (no number)
Field  name type[?[versions]] [versions] [tag N [versions]] [= default]
       `?` nullable (from which versions); without versions a field is in every version its parent is in;
       `[]` an array; a capitalised type is a struct: declared below the field, or once below `struct Name`
       when several fields use it. Defaults not given are zero, empty or false.

Nothing is parsed before it is asked for: reading the files costs about a millisecond, a message some ten microseconds.
"""

import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

_LATEST = 32767


class Versions(NamedTuple):
    """A closed range of versions."""

    first: int
    last: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last

    def within(self, outer: "Versions") -> "Versions":
        return Versions(max(self.first, outer.first), min(self.last, outer.last))


NEVER = Versions(1, 0)
SCALARS = {
    "bool",
    "int8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "float64",
    "uuid",
    "string",
    "bytes",
    "records",
}


@dataclass(slots=True)
class StructSpec:
    """Fields that belong together."""

    name: str
    versions: Versions
    fields: list["FieldSpec"] = field(default_factory=list)


@dataclass(slots=True)
class FieldSpec:
    """One line of the table."""

    name: str
    type: str  # a scalar's name, or "struct"
    is_array: bool
    struct: StructSpec | None
    versions: Versions
    nullable: Versions
    tag: int | None
    tagged: Versions
    default: str | None  # as written in the table

    def is_nullable_in(self, version: int) -> bool:
        return version in self.nullable

    def is_tagged_in(self, version: int) -> bool:
        return version in self.tagged


@dataclass(slots=True)
class MessageSpec:
    """One message with its versions."""

    kind: str
    number: int
    name: str
    versions: Versions
    flexible: Versions
    listeners: tuple[str, ...]
    unstable_last: bool
    root: StructSpec
    structs: list[StructSpec]

    def is_flexible_in(self, version: int) -> bool:
        return version in self.flexible


class MessageHead(NamedTuple):
    kind: str
    number: int
    name: str
    versions: Versions
    flexible: Versions
    listeners: tuple[str, ...]
    unstable_last: bool


_HEAD = re.compile(
    r"^(?P<kind>request|response|record|key|value|data)(?: (?P<number>\d+))? (?P<name>\w+) (?P<versions>[\d+-]+)"
    r"(?P<flexible> flexible(?: (?P<flexible_versions>[\d+-]+))?)?"
    r"(?: on (?P<listeners>[a-z ]+?))?(?P<unstable> unstable-last)?$"
)
_FIELD = re.compile(
    r"^(?P<indent> *)(?P<name>\w+) +(?P<array>\[\])?(?P<type>\w+)(?P<null>\?(?P<null_versions>[\d+-]+)?)?"
    r"(?: +(?P<versions>[\d+-]+)(?= |$))?(?: +tag (?P<tag>\d+)(?: (?P<tagged>[\d+-]+))?)?(?: += (?P<default>.*))?$"
)
_STRUCT = re.compile(r"^ {2}struct (?P<name>\w+)(?: +(?P<versions>[\d+-]+))?$")


def _parse_versions(text: str, outer: Versions) -> Versions:
    if text.endswith("+"):
        return Versions(int(text[:-1]), _LATEST).within(outer)
    first, _, last = text.partition("-")
    return Versions(int(first), int(last or first)).within(outer)


@cache
def _blocks() -> dict[str, str]:
    """Message name -> its text, from all files of the table."""
    blocks: dict[str, str] = {}
    for path in sorted((Path(__file__).parent / "schema").glob("*.txt")):
        for block in path.read_text("utf-8").rstrip("\n").split("\n\n")[1:]:
            name = block.split(" ", 3)[1 if block.startswith("data ") else 2]
            assert name not in blocks, f"{name} is declared twice"
            blocks[name] = block
    return blocks


def names() -> list[str]:
    """Every message of the table."""
    return list(_blocks())


@cache
def head(name: str) -> MessageHead:
    """The head line of a message."""
    line = _blocks()[name].partition("\n")[0]
    match = _HEAD.match(line)
    if match is None:
        raise ValueError(f"schema table: cannot read the head {line!r}")
    versions = _parse_versions(match["versions"], Versions(0, _LATEST))
    flexible = NEVER
    if match["flexible"]:
        flexible = _parse_versions(match["flexible_versions"], versions) if match["flexible_versions"] else versions
    return MessageHead(
        match["kind"],
        int(match["number"] or -1),
        match["name"],
        versions,
        flexible,
        tuple((match["listeners"] or "").split()),
        bool(match["unstable"]),
    )


@cache
def heads() -> dict[str, MessageHead]:
    """The head lines of all messages, by name."""
    return {name: head(name) for name in names()}


@cache
def message(name: str) -> MessageSpec:
    """A message with its fields."""
    if name not in _blocks():
        raise KeyError(f"no message {name} in the schema table")
    its_head = head(name)
    root = StructSpec(name, its_head.versions)
    structs: dict[str, StructSpec] = {}
    uses: list[tuple[FieldSpec, str]] = []
    # The structs being read, outermost first; a line's indent says which one it belongs to.
    open_structs = [root]
    for line in _blocks()[name].split("\n")[1:]:
        if declared := _STRUCT.match(line):
            versions = _parse_versions(declared["versions"] or "0+", its_head.versions)
            shared = structs.setdefault(declared["name"], StructSpec(declared["name"], versions))
            shared.versions = versions
            open_structs = [root, shared]
            continue
        match = _FIELD.match(line)
        if match is None:
            raise ValueError(f"schema table: {name}: cannot read {line!r}")
        del open_structs[len(match["indent"]) // 2 :]
        parent = open_structs[-1]
        spec = _field(match, parent.versions)
        parent.fields.append(spec)
        if spec.type == "struct":
            struct_name = match["type"]
            uses.append((spec, struct_name))
            # Fields below declare it; if none follow, `struct Name` does.
            open_structs.append(structs.setdefault(struct_name, StructSpec(struct_name, spec.versions)))
    for spec, struct_name in uses:
        spec.struct = structs[struct_name]
        if not spec.struct.fields:
            raise ValueError(f"schema table: {name}: struct {struct_name} has no fields")
    return MessageSpec(*its_head[:7], root, list(structs.values()))


def _field(match: re.Match[str], outer: Versions) -> FieldSpec:
    versions = _parse_versions(match["versions"], outer) if match["versions"] else outer
    nullable = tagged = NEVER
    if match["null"]:
        nullable = _parse_versions(match["null_versions"], versions) if match["null_versions"] else versions
    if match["tag"]:
        tagged = _parse_versions(match["tagged"], versions) if match["tagged"] else versions
    return FieldSpec(
        name=match["name"],
        type=match["type"] if match["type"] in SCALARS else "struct",
        is_array=bool(match["array"]),
        struct=None,
        versions=versions,
        nullable=nullable,
        tag=int(match["tag"]) if match["tag"] else None,
        tagged=tagged,
        default=match["default"],
    )
