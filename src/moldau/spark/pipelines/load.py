"""A pipeline file into the model. The model's fields say what is allowed; this module only reads them.

Invariant: all problems of a file are found in one pass and reported together, each with its line and its fix.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from moldau.spark.avro_types import SchemaError
from moldau.spark.pipelines import model
from moldau.spark.pipelines.document import Entry, Map, Scalar, Sequence, Tree, parse
from moldau.spark.pipelines.durations import is_duration
from moldau.spark.pipelines.errors import Mark, PipelineError, Problem, Where
from moldau.spark.pipelines.model import Pipeline
from moldau.spark.pipelines.schema import parse_schema
from moldau.spark.pipelines.secrecy import without_secrets
from moldau.spark.registry.client import RegistrySettings
from moldau.spark.suggestions import did_you_mean

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_NAME = re.compile(r"[A-Za-z_]\w*")
_PIPELINE_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_DIGITS_MAX = 18  # what a bigint holds
_TRUE, _FALSE = frozenset({"true", "yes", "on"}), frozenset({"false", "no", "off"})
TOP_KEYS = {
    "name": "what the pipeline is called",
    "about": "one sentence for people",
    "parameters": "names and defaults for ${…}",
    "environments": "targets of the file, chosen by --env: a name for each, and values for ${…}",
    "kafka": "bootstrap.servers, and other client settings for all topics",
    "registry": "the schema registry: its URL, or url, basic.auth.user.info and the like",
    "sources": "where rows come from",
    "steps": "what happens to them",
    "sinks": "where they go",
    "dead_letters": "topic for records that cannot be parsed; without it, NAME-dlt",
    "outage": "how long brokers that have answered may be away before the queries end; without it, 5 minutes",
    "share_reads": "true: sinks that rest on one topic by steps without memory read and parse it once, as one query",
    "checkpoint": "folder the queries remember their progress in; without it, moldau-pipelines/NAME",
    "spark": "settings of Spark, for example spark.sql.shuffle.partitions",
    "generator": "module:function that makes data to try the pipeline with",
}


def load(
    path: str | os.PathLike[str], variables: Mapping[str, str] | None = None, *, environment: str = ""
) -> Pipeline:
    """Read a pipeline file. `variables` fill `${…}`, before the process's environment and the file's own parameters;
    `environment` is one of the file's own `environments:`."""
    file = Path(path)
    try:
        source = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        problem = Problem(Mark(str(file), 1, 1), f"cannot be read: {reason}", "give the path of a pipeline file")
        raise PipelineError([problem]) from None
    return loads(source, str(file), variables, folder=str(file.resolve().parent), environment=environment)


def loads(
    source: str,
    file: str,
    variables: Mapping[str, str] | None = None,
    *,
    folder: str = ".",
    environment: str = "",
) -> Pipeline:
    """The same from text; `file` is what errors call it, `folder` is where relative paths start."""
    known = {**os.environ, **(variables or {})}
    reader = _Reader()
    secrets: set[str] = set()
    pipeline = reader.pipeline(parse(source, file, known, environment, secrets, folder=folder), folder)
    if reader.problems or pipeline is None:
        raise without_secrets(PipelineError(reader.problems), secrets)
    return replace(pipeline, secrets=frozenset(secrets))


class _Reader:
    """Walks one document and collects what is wrong with it."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def say(self, mark: Mark, message: str, fix: str = "") -> None:
        self.problems.append(Problem(mark, message, fix))

    # ---- the whole --------------------------------------------------------------------------------------------------

    def pipeline(self, tree: Map, folder: str) -> Pipeline | None:
        for entry in tree:
            if entry.key not in TOP_KEYS:
                self.say(entry.mark, f"unknown key {entry.key!r}", did_you_mean(entry.key, TOP_KEYS))
        for key in ("name", "sources", "sinks"):
            if tree.get(key) is None:
                self.say(tree.mark, f"the pipeline has no `{key}`", f"add `{key}:`, {TOP_KEYS[key]}")
        where = Where(tree.mark, {entry.key: entry.mark for entry in tree})
        plain = {key: self.text(node, key) for key in ("name", "about") if (node := tree.get(key)) is not None}
        for key in ("dead_letters", "checkpoint"):
            plain[key] = self.text(node, key) if (node := tree.get(key)) is not None else ""
        if (outage := tree.get("outage")) is not None:
            plain["outage"] = self.duration(outage, "outage")
        name = plain.get("name", "")
        if name and not _PIPELINE_NAME.fullmatch(name):
            self.say(where.of("name"), f"{name!r} cannot be a name", "use letters, digits, '-', '_' and '.'")
        generator = tree.get("generator")
        kafka = dict(self.optional(tree, "kafka", self.pairs))
        loaded: dict[str, Any] = {
            "sources": self.named(tree.get("sources")),
            "steps": self.listed(tree.get("steps"), "step", model.STEPS),
            "sinks": self.listed(tree.get("sinks"), "sink", model.SINKS),
            "registry": self.optional(tree, "registry", self.registry),
            "spark": self.optional(tree, "spark", self.pairs),
            "generator": self.function(generator, "generator") if generator is not None else "",
            "share_reads": self.flag(shares, "share_reads")
            if (shares := tree.get("share_reads")) is not None
            else False,
            "parameters": self.optional(tree, "parameters", self.pairs),
        }
        if self.problems:
            return None
        servers = kafka.pop("bootstrap.servers", "")
        return Pipeline(**{**plain, **loaded}, bootstrap_servers=servers, kafka=kafka, folder=folder, where=where)

    def optional(self, tree: Map, key: str, read: Callable[[Tree, str], Mapping[str, str]]) -> Mapping[str, str]:
        node = tree.get(key)
        return {} if node is None else read(node, key)

    def registry(self, node: Tree, key: str) -> Mapping[str, str]:
        found = {"url": self.text(node, key)} if isinstance(node, Scalar) else self.pairs(node, key)
        try:
            RegistrySettings.parse(found)
        except ValueError as error:
            self.say(node.mark, str(error).replace("schema.registry.", "`registry`: "))
        return found

    def named(self, node: Tree | None) -> dict[str, Any]:
        if node is None:
            return {}
        if not isinstance(node, Map) or not node.entries:
            self.say(
                node.mark,
                "`sources` is a mapping of names to sources",
                "write `sources:`, then `orders:`, then `topic: orders`",
            )
            return {}
        found = {}
        for entry in node:
            if not _NAME.fullmatch(entry.key):
                self.say(
                    entry.mark,
                    f"{entry.key!r} cannot be a source's name",
                    "use letters, digits and '_': SQL calls it so",
                )
            found[entry.key] = self.chosen(entry.value, "source", model.SOURCES)
        return found

    def listed(self, node: Tree | None, what: str, classes: tuple[type, ...]) -> tuple[Any, ...]:
        if node is None or (isinstance(node, Scalar) and node.is_null):
            return ()
        if not isinstance(node, Sequence):
            example = "sql: SELECT …" if what == "step" else "topic: results"
            self.say(node.mark, f"`{what}s` is a list", f"begin each with a dash: `- {example}`")
            return ()
        return tuple(self.chosen(each, what, classes) for each in node.items)

    def chosen(self, node: Tree, what: str, classes: tuple[type, ...]) -> Any:
        """The object whose kind is named by one of its keys."""
        by_key = {next(iter(each.__dataclass_fields__)): each for each in classes}  # type: ignore[attr-defined]  # all are dataclasses
        if not isinstance(node, Map):
            self.say(node.mark, f"a {what} is a mapping", f"give one of: {', '.join(by_key)}")
            return None
        kinds = [entry for entry in node if entry.key in by_key]
        exact = [entry for entry in kinds if all(_accepts(by_key[entry.key], other.key) for other in kinds)]
        named = next((node.get(key) for key in ("kind", "type") if node.get(key) is not None), None)
        if isinstance(named, Scalar) and named.text in by_key and len(kinds) < 2:
            self.say(named.mark, f"a {what} says what it is by its key", f"write `{named.text}: …`")
            return None
        if not kinds:
            near = next(
                (did_you_mean(entry.key, by_key) for entry in node if "mean" in did_you_mean(entry.key, by_key)), ""
            )
            self.say(node.mark, f"this {what} does not say what it is", near or f"give one of: {', '.join(by_key)}")
            return None
        if len(kinds) > 1 and len(exact) != 1:
            names = " and ".join(f"`{entry.key}`" for entry in kinds)
            self.say(kinds[1].mark, f"this {what} is {names} at once", f"make it two {what}s")
            return None
        return self.object(node, by_key[(exact or kinds)[0].key])

    # ---- one object -------------------------------------------------------------------------------------------------

    def object(self, node: Tree, cls: type, ignore: str = "") -> Any:
        if not isinstance(node, Map):
            self.say(node.mark, "this is a mapping", f"give some of: {', '.join(_keys(cls))}")
            return None
        known = _keys(cls)
        values: dict[str, Any] = {}
        for entry in node:
            if entry.key == ignore:
                continue
            field = known.get(entry.key)
            if field is None:
                self.say(
                    entry.mark,
                    f"unknown key {entry.key!r}",
                    did_you_mean(entry.key, [*known, ignore] if ignore else known),
                )
            else:
                values[field.name] = self.value(entry, field.metadata)
        where = Where(node.mark, {entry.key: entry.mark for entry in node})
        return None if self.problems else cls(**values, where=where)

    def value(self, entry: Entry, how: Mapping[str, Any]) -> Any:
        kind, node = how["kind"], entry.value
        if kind == "part":
            return self.part(node, how)
        if kind == "choice":
            found = self.text(node, entry.key)
            if found and found not in how["known"]:
                self.say(node.mark, f"{found!r} is not possible for `{entry.key}`", did_you_mean(found, how["known"]))
            return found
        if kind == "number":
            return self.number(node, entry.key, how["at_least"])
        if kind == "schema":
            return self.schema(node, entry.key)
        read: Callable[[Tree, str], Any] = getattr(self, kind)
        return read(node, entry.key)

    def part(self, node: Tree, how: Mapping[str, Any]) -> Any:
        if not how["key"]:
            return self.object(node, how["classes"][0])
        by_format = {each.FORMAT: each for each in how["classes"]}
        if isinstance(node, Scalar) and node.text in by_format:  # `parse: json` is enough where nothing else is needed
            return by_format[node.text](where=Where(node.mark))
        if not isinstance(node, Map):
            self.say(node.mark, "unknown format", f"give `{how['key']}:`, one of: {', '.join(by_format)}")
            return None
        chosen = node.get(how["key"])
        if chosen is None:
            self.say(node.mark, f"`{how['key']}` is missing", f"one of: {', '.join(by_format)}")
            return None
        name = self.text(chosen, how["key"])
        if name not in by_format:
            self.say(chosen.mark, f"unknown {how['key']} {name!r}", did_you_mean(name, by_format))
            return None
        return self.object(node, by_format[name], ignore=how["key"])

    # ---- values -----------------------------------------------------------------------------------------------------

    def text(self, node: Tree, key: str) -> str:
        if isinstance(node, Scalar) and not node.is_null:
            return node.text.strip() if not node.quoted else node.text
        if isinstance(node, Sequence) and key == "topic":
            return ",".join(self.words(node, key))
        self.say(node.mark, f"`{key}` is empty" if isinstance(node, Scalar) else f"`{key}` is one value, not several")
        return ""

    def number(self, node: Tree, key: str, at_least: int) -> int:
        found = self.text(node, key).replace("_", "").replace(",", "")
        if not found.isdecimal() or len(found) > _DIGITS_MAX or int(found) < at_least:
            told = found if len(found) <= _DIGITS_MAX else f"{found[:_DIGITS_MAX]}…"
            limit = f", with at most {_DIGITS_MAX} digits" if len(found) > _DIGITS_MAX else ""
            self.say(node.mark, f"`{key}` is a whole number of at least {at_least}{limit}, not {told!r}")
            return at_least
        return int(found)

    def flag(self, node: Tree, key: str) -> bool:
        found = self.text(node, key).lower()
        if found not in _TRUE | _FALSE:
            self.say(node.mark, f"`{key}` is true or false, not {found!r}")
        return found in _TRUE

    def duration(self, node: Tree, key: str) -> str:
        found = self.text(node, key)
        if found and not is_duration(found):
            self.say(node.mark, f"`{key}`: {found!r} is not a length of time", "write `10 seconds` or `5 minutes`")
        return found

    def function(self, node: Tree, key: str) -> str:
        found = self.text(node, key)
        if found and not _FUNCTION.fullmatch(found):
            self.say(node.mark, f"`{key}`: {found!r} does not name a function", "write `package.module:function`")
        return found

    def words(self, node: Tree, key: str) -> tuple[str, ...]:
        if isinstance(node, Sequence):
            return tuple(self.text(each, key) for each in node.items)
        return (self.text(node, key),)

    def pairs(self, node: Tree, key: str) -> dict[str, str]:
        if isinstance(node, Scalar) and node.is_null:
            return {}
        if not isinstance(node, Map):
            self.say(node.mark, f"`{key}` is a mapping", "write `name: value`, one a line")
            return {}
        return {entry.key: self.text(entry.value, entry.key) for entry in node}

    def schema(self, node: Tree, key: str) -> str:
        """Text, or a mapping of columns to types, which becomes that text."""
        if isinstance(node, Map):
            found = ", ".join(f"`{name}` {kind}" for name, kind in self.pairs(node, key).items())
        else:
            found = self.text(node, key)
        if found and found != "sample":
            try:
                parse_schema(found)
            except SchemaError as error:
                message, _, fix = str(error).partition("; ")
                self.say(self._column_mark(node, str(error)), message, fix)
        return found

    @staticmethod
    def _column_mark(node: Tree, error: str) -> Mark:
        if isinstance(node, Map):
            for entry in node:
                word = (
                    entry.value.text.split()[0] if isinstance(entry.value, Scalar) and entry.value.text.split() else ""
                )
                if repr(word) in error or repr(entry.key) in error:
                    return entry.value.mark
        return node.mark


def _keys(cls: type) -> dict[str, Any]:
    """The keys a class has in a file; `from` is a word of Python, so its field has an underscore."""
    return {each.name.rstrip("_"): each for each in fields(cls) if each.metadata["kind"] != "where"}


def _accepts(cls: type, key: str) -> bool:
    return key in _keys(cls)
