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
_SECRET_BEGUN = re.compile(r"\$\{\s*secret\b", re.IGNORECASE)
_LEVELS_MAX, _NODES_MAX = 50, 100_000  # an alias may stand for what it is part of, or for very much
_MERGE = "tag:yaml.org,2002:merge"
_VARIABLES_DEEP = 5  # the default of one may name another, and so on
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
    text: str,
    file: str,
    variables: Mapping[str, str],
    environment: str = "",
    secrets: set[str] | None = None,
    *,
    folder: str = ".",
) -> Map:
    """The document in `text`. `variables` fill `${name}`; the document's own `parameters:` are their defaults.

    `environment` names an entry under `environments:`, whose values go before those defaults; nothing else under
    `environments:` is looked up. In the tree, a parameter has the value that counts. What `${secret:…}` leads to is
    added to `secrets`; paths of files start at `folder`.
    """
    node = composed(text, file)
    if not isinstance(node, yaml.MappingNode):
        raise PipelineError(
            [Problem(Mark(file, 1, 1), "a pipeline is a mapping", "start with `name:`, `sources:` and `sinks:`")]
        )
    problems = list(_of_environments(node, file, text))
    known = _parameters(node) | _environment(node, file, environment, problems) | dict(variables)
    reading = _Reading(file, known, folder, set() if secrets is None else secrets, problems)
    tree = reading.root(node)
    if problems:
        raise PipelineError(problems)
    return tree


def composed(text: str, file: str) -> Any:
    """The nodes of a text; what is no YAML is told with its line."""
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Mark(file, mark.line + 1, mark.column + 1) if mark else Mark(file, 1, 1)
        raise PipelineError([Problem(place, f"this is not YAML: {error.problem}", _advice(text, place.line))]) from None
    except yaml.reader.ReaderError as error:
        lines = f"{text[: error.position]}|".splitlines()
        message = f"this is not YAML: a text has no character {chr(error.character)!a}"
        raise PipelineError([Problem(Mark(file, len(lines), len(lines[-1])), message, "remove it")]) from None
    except RecursionError:
        raise _endless(Mark(file, 1, 1)) from None


def repeated_keys(node: Any, file: str, level: int = 0) -> Iterator[Problem]:
    """Keys that stand twice; raises if there is no end to it."""
    if level > _LEVELS_MAX:
        raise _endless(mark_of(file, node))
    seen: dict[str, int] = {}
    for each in node.value if isinstance(node, yaml.CollectionNode) else ():
        key, value = each if isinstance(each, tuple) else (None, each)
        if isinstance(key, yaml.ScalarNode):
            if key.value in seen:
                yield _twice(key, file, seen[key.value])
            seen.setdefault(key.value, key.start_mark.line + 1)
        yield from repeated_keys(value, file, level + 1)


def _twice(key: Any, file: str, first: int) -> Problem:
    return Problem(mark_of(file, key), f"{key.value!r} stands here twice", f"the first is in line {first}")


def variables_of(text: str) -> set[str]:
    """The names in its `${…}`."""
    return {name for name, _ in _VARIABLE.findall(text)}


def _endless(mark: Mark) -> PipelineError:
    message = "this goes too deep, or repeats itself without end"
    return PipelineError([Problem(mark, message, "look for an alias (`*name`) inside of what it stands for")])


def _advice(text: str, line: int) -> str:
    lines = text.splitlines()
    shown = lines[line - 1] if 0 < line <= len(lines) else ""
    if "\t" in shown:
        return "indent with spaces, not with tabs"
    if re.search(r"[\[{].*(?<![\"'])\$\{", shown):
        return "inside of [ ] and { }, put what begins with ${ in quotes"
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


def _of_environments(root: yaml.MappingNode, file: str, text: str) -> Iterator[Problem]:
    """What is wrong with them: each is a mapping of variables, which something asks for, to values."""
    asked = variables_of(text) | set(_parameters(root))
    for key, value in root.value:
        if key.value != "environments":
            continue
        if not isinstance(value, yaml.MappingNode):
            yield Problem(
                mark_of(file, value), "`environments` is a mapping", "write `NAME: {variable: value}` for each"
            )
            continue
        for name, content in value.value:
            told = f"environment {name.value!r}"
            if not isinstance(content, yaml.MappingNode):
                yield Problem(mark_of(file, content), f"{told} is a mapping", "write `variable: value`, one a line")
                continue
            for variable, each in content.value:
                if not isinstance(each, yaml.ScalarNode):
                    yield Problem(mark_of(file, each), f"{told}: `{variable.value}` is one value, not several")
                elif variable.value not in asked:
                    message = f"{told}: nothing in the file asks for ${{{variable.value}}}"
                    yield Problem(mark_of(file, variable), message, did_you_mean(str(variable.value), asked))


def mark_of(file: str, node: Any) -> Mark:
    return Mark(file, node.start_mark.line + 1, node.start_mark.column + 1)


@dataclass(slots=True)
class _Reading:
    """One walk over the nodes. `${…}` is filled on the way."""

    file: str
    variables: Mapping[str, str]
    folder: str
    secrets: set[str]
    problems: list[Problem]
    nodes: int = 0

    def root(self, node: yaml.MappingNode) -> Map:
        for key, value in node.value:
            if key.value == "parameters" and isinstance(value, yaml.MappingNode):
                for name, each in value.value:
                    if isinstance(each, yaml.ScalarNode) and each.value != self.variables[name.value]:
                        each.value, each.style = self.variables[name.value], '"'  # it may be empty
        # The other environments' secrets need not be there, so none is looked up here.
        kept = [(key, value) for key, value in node.value if key.value != "environments"]
        told = [
            Entry(key.value, mark_of(self.file, key), Scalar("", mark_of(self.file, value)))
            for key, value in node.value
            if key.value == "environments"
        ]
        return Map((*self.entries(kept, 1), *told), mark_of(self.file, node))

    def tree(self, node: Any, level: int) -> Tree:
        mark = mark_of(self.file, node)
        self.nodes += 1
        if level > _LEVELS_MAX or self.nodes > _NODES_MAX:
            raise _endless(mark)
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node, mark)
        if isinstance(node, yaml.SequenceNode):
            return Sequence(tuple(self.tree(each, level + 1) for each in node.value), mark)
        return Map(tuple(self.entries(node.value, level + 1)), mark)

    def entries(self, pairs: list[Any], level: int) -> list[Entry]:
        found: dict[str, Entry] = {}
        merged: list[Entry] = []
        for key, value in pairs:
            place = mark_of(self.file, key)
            if not isinstance(key, yaml.ScalarNode):
                self.problems.append(Problem(place, "a key has to be a word"))
                continue
            if key.tag == _MERGE:
                merged += self.merged(value, level)
                continue
            before = found.get(key.value)
            if before is not None:
                self.problems.append(_twice(key, self.file, before.mark.line))
            found.setdefault(key.value, Entry(key.value, place, self.tree(value, level)))
        for entry in merged:
            found.setdefault(entry.key, entry)
        return list(found.values())

    def merged(self, node: Any, level: int) -> list[Entry]:
        """What `<<: *alias` brings: what stands beside it goes before that, and the first of several."""
        found: list[Entry] = []
        for each in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            tree = self.tree(each, level)
            if isinstance(tree, Map):
                found += tree.entries
            else:
                self.problems.append(Problem(mark_of(self.file, each), "`<<` takes mappings", "write `<<: *alias`"))
        return found

    # ---- values -----------------------------------------------------------------------------------------------------

    def scalar(self, node: yaml.ScalarNode, mark: Mark) -> Scalar:
        """A value with a secret in it is taken as it is, as if in quotes: blanks may belong to it."""
        text, kept = node.value, list[str]()
        if "\0" in text:
            self.problems.append(Problem(mark, "a text has no zero characters", "remove it"))
            return Scalar("", mark, quoted=True)

        def hide(match: re.Match[str]) -> str:
            """A secret is put in last, so that nothing in it is taken for a name."""
            kept.append(self.secret(match[1], match[2], mark))
            return f"\0{len(kept) - 1}\0"

        for _ in range(_VARIABLES_DEEP):
            filled = _VARIABLE.sub(lambda match: self.variable(match, mark), _SECRET.sub(hide, text))
            if filled == text:
                break
            text = filled
        if _VARIABLE.search(text):
            self.problems.append(Problem(mark, f"{node.value} leads to itself, or by way of too many others"))
        if _SECRET_BEGUN.search(text):
            fix = "write ${secret:env:NAME} or ${secret:file:PATH}"
            self.problems.append(Problem(mark, "this is no secret that could be read", fix))
        text = re.sub("\0(\\d+)\0", lambda match: kept[int(match[1])], text)
        return Scalar(text, mark, quoted=node.style is not None or bool(kept))

    def variable(self, match: re.Match[str], mark: Mark) -> str:
        name, default = match.groups()
        value: str | None = self.variables.get(name, default)
        if value is None:
            fix = f"set it with --set {name}=…, in the environment, as ${{{name}:-default}}, or under `parameters:`"
            self.problems.append(Problem(mark, f"${{{name}}} has no value", fix))
            return ""
        return value

    def secret(self, kind: str, name: str, mark: Mark) -> str:
        value, told = "", f"{name} is empty"
        if kind == "env":
            value = os.environ.get(name, "")
            told = told if name in os.environ else f"the environment has no {name}"
        else:
            try:
                value = Path(self.folder, name).read_text(encoding="utf-8").rstrip("\n")
            except (OSError, UnicodeDecodeError) as error:
                told = f"{name}: {getattr(error, 'strerror', None) or 'not UTF-8 text'}"
        if value:
            self.secrets.add(value)
        else:
            self.problems.append(Problem(mark, f"the secret cannot be read: {told}"))
        return value
