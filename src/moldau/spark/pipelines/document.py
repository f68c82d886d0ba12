"""A YAML document whose every node still knows its line, with `${…}` filled in.

PyYAML's composer gives nodes with marks; its constructor would throw them away. Values become plain text here; what
type a value has to have is the model's business (`load.py`), so `port: 0123` or `key: no` cannot turn into something
else.

Invariant: a document that cannot be read gives a `PipelineError` that names the line, never a YAML traceback.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from moldau.spark.pipelines.errors import Mark, PipelineError, Problem

_VARIABLE = re.compile(r"\$\{([A-Za-z_][\w.-]*)(?::-([^}]*))?\}")
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})


@dataclass(slots=True, frozen=True)
class Scalar:
    text: str
    mark: Mark
    quoted: bool = False

    @property
    def is_null(self) -> bool:
        return not self.quoted and self.text in _NULLS


@dataclass(slots=True, frozen=True)
class Sequence:
    items: tuple[Tree, ...]
    mark: Mark


@dataclass(slots=True, frozen=True)
class Entry:
    key: str
    mark: Mark
    value: Tree


@dataclass(slots=True, frozen=True)
class Map:
    entries: tuple[Entry, ...]
    mark: Mark

    def get(self, key: str) -> Tree | None:
        return next((entry.value for entry in self.entries if entry.key == key), None)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)


Tree = Scalar | Sequence | Map


def parse(text: str, file: str, variables: Mapping[str, str]) -> Map:
    """The document in `text`. `variables` fill `${name}`; the document's own `parameters:` are their defaults."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Mark(file, mark.line + 1, mark.column + 1) if mark else Mark(file, 1, 1)
        raise PipelineError([Problem(place, f"this is not YAML: {error.problem}", _advice(text, place.line))]) from None
    except yaml.YAMLError as error:
        raise PipelineError([Problem(Mark(file, 1, 1), f"this is not YAML: {error}")]) from None
    if not isinstance(node, yaml.MappingNode):
        raise PipelineError(
            [Problem(Mark(file, 1, 1), "a pipeline is a mapping", "start with `name:`, `sources:` and `sinks:`")]
        )
    problems: list[Problem] = []
    known = _parameters(node) | dict(variables)
    tree = _tree(node, file, known, problems)
    if problems:
        raise PipelineError(problems)
    assert isinstance(tree, Map)
    return tree


def _advice(text: str, line: int) -> str:
    lines = text.splitlines()
    shown = lines[line - 1] if 0 < line <= len(lines) else ""
    if "\t" in shown:
        return "indent with spaces, not with tabs"
    return "check the indentation, and put values with `: ` or `#` in quotes"


def _parameters(root: yaml.MappingNode) -> dict[str, str]:
    for key, value in root.value:
        if key.value == "parameters" and isinstance(value, yaml.MappingNode):
            return {name.value: each.value for name, each in value.value if isinstance(each, yaml.ScalarNode)}
    return {}


def _tree(node: Any, file: str, variables: Mapping[str, str], problems: list[Problem]) -> Tree:
    mark = Mark(file, node.start_mark.line + 1, node.start_mark.column + 1)
    if isinstance(node, yaml.ScalarNode):
        return Scalar(_filled(node.value, mark, variables, problems), mark, node.style is not None)
    if isinstance(node, yaml.SequenceNode):
        return Sequence(tuple(_tree(each, file, variables, problems) for each in node.value), mark)
    entries: list[Entry] = []
    for key, value in node.value:
        place = Mark(file, key.start_mark.line + 1, key.start_mark.column + 1)
        if not isinstance(key, yaml.ScalarNode):
            problems.append(Problem(place, "a key has to be a word"))
            continue
        before = next((entry for entry in entries if entry.key == key.value), None)
        if before is not None:
            problems.append(
                Problem(place, f"{key.value!r} stands here twice", f"the first is in line {before.mark.line}")
            )
        entries.append(Entry(key.value, place, _tree(value, file, variables, problems)))
    return Map(tuple(entries), mark)


def _filled(text: str, mark: Mark, variables: Mapping[str, str], problems: list[Problem]) -> str:
    def fill(match: re.Match[str]) -> str:
        name, default = match.groups()
        value: str | None = variables.get(name, default)
        if value is None:
            problems.append(
                Problem(
                    mark,
                    f"${{{name}}} has no value",
                    f"set it with --set {name}=…, in the environment, as ${{{name}:-default}}, or under `parameters:`",
                )
            )
            return ""
        return value

    for _ in range(4):  # a default may name another parameter; four levels are plenty, and end
        filled = _VARIABLE.sub(fill, text)
        if filled == text:
            break
        text = filled
    return text
