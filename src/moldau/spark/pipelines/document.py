"""A YAML document whose every node still knows its line, with `${…}` filled in.

PyYAML's composer gives nodes with marks; its constructor would throw them away. Values become plain text here; what
type a value has to have is the model's business (`load.py`), so `port: 0123` or `key: no` cannot turn into something
else.

Invariant: a document that cannot be read gives a `PipelineError` that names the line, never a YAML traceback.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from moldau.spark.pipelines.errors import Mark, PipelineError, Problem
from moldau.spark.suggestions import did_you_mean

_VARIABLE = re.compile(r"\$\{([A-Za-z_][\w.-]*)(?::-([^}]*))?\}")
# A secret from a file or from the environment: its value is known to be one, and never shown.
_SECRET = re.compile(r"\$\{secret:(file|env):([^}]+)\}")
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


def parse(
    text: str, file: str, variables: Mapping[str, str], environment: str = "", secrets: set[str] | None = None
) -> Map:
    """The document in `text`. `variables` fill `${name}`; the document's own `parameters:` are their defaults.

    `environment` names an entry under `environments:`, whose values go before those defaults. What `${secret:…}` leads
    to is added to `secrets`.
    """
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
    known = _parameters(node) | _environment(node, file, environment, problems) | dict(variables)
    tree = _tree(node, file, _Values(known, set() if secrets is None else secrets), problems)
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


def _environment(root: yaml.MappingNode, file: str, name: str, problems: list[Problem]) -> dict[str, str]:
    """The values of one of the document's environments."""
    if not name:
        return {}
    found: dict[str, Any] = {}
    for key, value in root.value:
        if key.value == "environments" and isinstance(value, yaml.MappingNode):
            found = {each.value: content for each, content in value.value}
    chosen = found.get(name)
    if not isinstance(chosen, yaml.MappingNode):
        fix = did_you_mean(name, found) or "add `environments:` with a mapping of names to values"
        problems.append(Problem(Mark(file, 1, 1), f"there is no environment {name!r}", fix))
        return {}
    return {key.value: each.value for key, each in chosen.value if isinstance(each, yaml.ScalarNode)}


@dataclass(slots=True, frozen=True)
class _Values:
    """What `${…}` may name, and what of it must not be shown."""

    variables: Mapping[str, str]
    secrets: set[str]


def _tree(node: Any, file: str, variables: _Values, problems: list[Problem]) -> Tree:
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


def _secret(kind: str, name: str, mark: Mark, values: _Values, problems: list[Problem]) -> str:
    value: str | None
    if kind == "env":
        value, told = os.environ.get(name), f"the environment has no {name}"
    else:
        try:
            value, told = Path(name).read_text(encoding="utf-8").rstrip("\n"), ""
        except (OSError, UnicodeDecodeError) as error:
            value, told = None, f"{name}: {getattr(error, 'strerror', None) or 'not UTF-8 text'}"
    if value is None:
        problems.append(Problem(mark, f"the secret cannot be read: {told}"))
        return ""
    if value:
        values.secrets.add(value)
    return value


def _filled(text: str, mark: Mark, values: _Values, problems: list[Problem]) -> str:
    variables = values.variables
    kept: list[str] = []

    def hide(match: re.Match[str]) -> str:
        """A secret is put in last, so that nothing in it is taken for a name."""
        kept.append(_secret(match[1], match[2], mark, values, problems))
        return f"\0{len(kept) - 1}\0"

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
        filled = _VARIABLE.sub(fill, _SECRET.sub(hide, text))
        if filled == text:
            break
        text = filled
    return re.sub("\0(\\d+)\0", lambda match: kept[int(match[1])], text)
