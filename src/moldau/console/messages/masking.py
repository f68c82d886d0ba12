"""Fields nobody may see: rules of the one who starts the console, applied on the server before anything else looks.

A rules file has a line per rule, `TOPICS FIELD HOW`: a pattern of topic names, a field, and hide, last4 or hash:

    payments*   value.card.number   last4
    *           header.authorization  hide

Invariants: filters, lists, details, downloads and the tail see masked values only, so none of them can be used to ask
about what is hidden. A record whose fields cannot be told apart, in a topic with rules for them, is hidden whole.

A record that was retried or set aside says in its headers where it came from: the rules of that topic hold too,
whatever the topic it lies in is called. Where a rule hides some of key or value, so are texts of errors: they quote it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from moldau.console.messages.decoding import Decoded, pretty
from moldau.toolkit.delays.topics import DelayTopics

_HOW = ("hide", "last4", "hash")
_PARTS = ("key", "value", "header")
_HIDDEN = "•••"
_DELAYS = DelayTopics()
_CARRIERS = frozenset({_DELAYS.commands, _DELAYS.pending, _DELAYS.dead})  # records of any topic, in envelopes
_SECRET = secrets.token_bytes(32)  # so that a hash can be compared with others, and not guessed
_ORIGINS = ("kafka_dlt-original-topic", "kafka_original-topic", "__connect.errors.topic")
_ERROR_WORDS = ("exception", "error", "stacktrace", "failure")
_NO_TEXTS = re.compile(
    r"kafka_(dlt-)?exception-(cause-)?fqcn|"
    r"__connect\.errors\.(topic|partition|offset|connector\.name|task\.id|stage|class\.name|exception\.class\.name)"
)
WHOLE = Decoded("masked", None, "(masked: this console may not show it)")


@dataclass(slots=True, frozen=True)
class MaskRule:
    topics: str
    part: str  # key, value, header
    path: tuple[str, ...]  # empty: all of it; a header's name is its first word
    how: str


def parse_masks(text: str) -> tuple[MaskRule, ...]:
    """Raises ValueError that says which line."""
    rules = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split("#")[0].split()
        if not words:
            continue
        if len(words) != 3 or words[2] not in _HOW:
            raise ValueError(
                f"line {number}: write TOPICS FIELD {'|'.join(_HOW)}, for example: orders* value.iban last4"
            )
        part, *path = words[1].split(".")
        if part == "header":
            path = [".".join(path)]
        if part not in ("key", "value", "header") or (part == "header" and not path[0]):
            raise ValueError(f"line {number}: a field begins with key, value or header.NAME, and this is {words[1]!r}")
        rules.append(MaskRule(words[0], part, tuple(path), words[2]))
    return tuple(rules)


class Masks:
    def __init__(self, rules: Sequence[MaskRule]) -> None:
        self._rules = tuple(rules)

    def of(self, topic: str, part: str, origins: Collection[str] = ()) -> list[MaskRule]:
        """The rules for a part of a topic's records, and of what was retried or set aside from it. `origins`: where the
        record itself says it was before."""
        if not self._rules:
            return []
        if topic in _CARRIERS:  # an envelope has all of a record in its value
            whole = [MaskRule(topic, part, (), "hide")] if part == "value" else []
            return whole or [rule for rule in self._rules if rule.part == part == "header"]
        names = {name for each in (topic, *origins) for name in _lineage(each)}
        return [rule for rule in self._rules if rule.part == part and any(fnmatchcase(n, rule.topics) for n in names)]

    def origins(self, headers: Iterable[tuple[Any, Any]]) -> tuple[str, ...]:
        """The topics a record says it comes from. Who writes them can only have more hidden, never less."""
        if not self._rules:
            return ()
        return tuple(
            value.decode(errors="replace") if isinstance(value, bytes) else str(value)
            for name, value in headers
            if name in _ORIGINS and value is not None
        )

    def cover(self, topic: str, other: str, origins: Collection[str] = ()) -> bool:
        """Whether nothing that is hidden in `topic` could be seen if its records were sent to `other`."""
        return all(set(self.of(topic, part, origins)) <= set(self.of(other, part)) for part in _PARTS)

    def concern(self, topic: str, origins: Collection[str] = ()) -> bool:
        return any(self.of(topic, part, origins) for part in _PARTS)

    def apply(self, topic: str, part: str, decoded: Decoded, origins: Collection[str] = ()) -> Decoded:
        rules = self.of(topic, part, origins)
        if not rules or decoded.kind == "null":
            return decoded
        if any(not rule.path for rule in rules) or not decoded.has_fields or not decoded.has_names:
            return WHOLE
        tree = decoded.tree
        try:
            for rule in rules:
                tree = _masked(tree, rule.path, rule.how)
            return replace(decoded, tree=tree, text=pretty(tree))
        except RecursionError:
            return WHOLE

    def header(self, topic: str, name: str, text: str, origins: Collection[str] = ()) -> str:
        for rule in self.of(topic, "header", origins):
            if fnmatchcase(name.lower(), rule.path[0].lower()):
                return _hidden(text, rule.how) or ""
        lower = name.lower()
        if any(word in lower for word in _ERROR_WORDS) and not _NO_TEXTS.fullmatch(lower):
            quotes = self.of(topic, "value", origins) or self.of(topic, "key", origins)
            return _HIDDEN if quotes else text
        return text


def _lineage(topic: str) -> set[str]:
    """A topic, and the one whose records are retried or set aside there by its name."""
    names = {topic, *(topic.removesuffix(suffix) for suffix in ("-dlt", "-dlt-redriven"))}
    stem, retry, level = topic.rpartition("-retry-")
    if retry and level.isdecimal():
        names.add(stem)
    return names


def _masked(tree: Any, path: tuple[str, ...], how: str) -> Any:
    """A copy in which what the path leads to is hidden; lists are gone through."""
    if isinstance(tree, list | tuple):
        return [_masked(each, path, how) for each in tree]
    if not path:
        return (
            {name: _masked(each, (), how) for name, each in tree.items()}
            if isinstance(tree, dict)
            else _hidden(tree, how)
        )
    if not isinstance(tree, dict):
        return _hidden(tree, how)  # something else stands where the fields should be: perhaps all of them, as a text
    head, rest = path[0], path[1:]
    return {name: _masked(each, rest, how) if head in ("*", str(name)) else each for name, each in tree.items()}


def _hidden(value: Any, how: str) -> str | None:
    if value is None:
        return None
    text = str(value)
    if how == "last4" and len(text) > 8:
        return _HIDDEN + text[-4:]
    if how == "hash":
        return "#" + hmac.new(_SECRET, text.encode(errors="replace"), hashlib.sha256).hexdigest()[:12]
    return _HIDDEN
