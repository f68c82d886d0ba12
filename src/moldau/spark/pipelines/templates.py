"""Log messages and their templates: `Failed password for <*> from <*> port <*> ssh2`.

A template is the constant part of a message; `<*>` stands where it varies, for any text, blanks included. A message
that fits several templates belongs to the one with the most constant text (then the fewest places), so
`authentication failure; … user=<*>` wins over the same without a user. That rule alone gives Loghub's labels.

`Learner` finds templates, as Drain does (He et al., ICWS 2017): messages with as many words and the same first words
share a leaf; within it a message joins the most similar template, and words that differ become places. Words with
digits are places from the start. It goes on learning (`template_state.py` says when), and a template keeps its id when
it becomes more general.

Invariant: matching depends on the message and the templates alone, and takes time linear in the message.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

PLACE = "<*>"


@dataclass(slots=True, frozen=True)
class Match:
    template: str
    template_id: str
    parameters: tuple[str, ...]


class Matcher:
    """Finds the template of a message. Templates are numbered T1, T2… in the order given, unless they have ids."""

    def __init__(self, templates: Iterable[str], ids: Mapping[str, str] | None = None) -> None:
        given = list(dict.fromkeys(templates))
        ids = ids or {template: f"T{number}" for number, template in enumerate(given, 1)}
        ordered = sorted(given, key=lambda each: (-len(each.replace(PLACE, "")), each.count(PLACE), each))
        self._by_start: dict[str, list[_Template]] = {}
        self._anywhere: list[_Template] = []
        self._count = len(ordered)
        for rank, template in enumerate(ordered):
            entry = _Template(template, ids[template], rank, tuple(template.split(PLACE)))
            if len(entry.parts[0]) >= _START_LENGTH:
                self._by_start.setdefault(entry.parts[0][:_START_LENGTH], []).append(entry)
            else:
                self._anywhere.append(entry)

    def match(self, message: str) -> Match | None:
        best: Match | None = None
        rank = self._count
        for entry in self._by_start.get(message[:_START_LENGTH], ()):
            found = entry.parameters(message)
            if found is not None:
                best, rank = Match(entry.template, entry.template_id, found), entry.rank
                break
        for entry in self._anywhere:
            if entry.rank >= rank:
                break
            found = entry.parameters(message)
            if found is not None:
                return Match(entry.template, entry.template_id, found)
        return best


# Most templates begin with a word; looking at four characters leaves one or two candidates out of dozens.
_START_LENGTH = 4


@dataclass(slots=True, frozen=True)
class _Template:
    template: str
    template_id: str
    rank: int
    parts: tuple[str, ...]  # the constant text around the places

    def parameters(self, message: str) -> tuple[str, ...] | None:
        """What stands in the places: each ends where the text after it first occurs, the last at the end."""
        first, last = self.parts[0], self.parts[-1]
        if len(self.parts) == 1:
            return () if message == first else None
        end = len(message) - len(last)
        if not message.startswith(first) or not message.endswith(last) or end < len(first):
            return None
        found = []
        at = len(first)
        for part in self.parts[1:-1]:
            place = message.find(part, at, end)
            if place < 0:
                return None
            found.append(message[at:place])
            at = place + len(part)
        found.append(message[at:end])
        return tuple(found)


def masked(message: str) -> Match:
    """The template of a message that fits none so far: its own words, those with digits being places."""
    template = _joined(*_words(message))
    found = _Template(template, "", 0, tuple(template.split(PLACE))).parameters(message) or ()
    return Match(template, f"X{zlib.crc32(template.encode()):08x}", found)


def shortened(message: str) -> str:
    """As much of a message as learning looks at; learning from it, or from the message, is the same."""
    parts = re.split(r"(\s+)", message.strip(), maxsplit=_WORDS_MAX)
    return "".join(PLACE if len(each) > _WORD_CHARACTERS_MAX else each for each in _cut(parts))


def _words(message: str) -> tuple[list[str], list[str]]:
    """The words, those that vary being places, and the blanks between them."""
    parts = _cut(re.split(r"(\s+)", message, maxsplit=_WORDS_MAX))
    return [PLACE if _varies(word) else word for word in parts[::2]], parts[1::2]


def _cut(parts: list[str]) -> list[str]:
    """Whatever comes after so many words is one place: no line is too long to be learnt, or to be compared."""
    return [*parts[:-1], PLACE] if len(parts) > 2 * _WORDS_MAX else parts


def _varies(word: str) -> bool:
    return len(word) > _WORD_CHARACTERS_MAX or _DIGIT.search(word) is not None


# ---- learning -------------------------------------------------------------------------------------------------------

_DIGIT = re.compile(r"\d")
_WORDS_MAX = 120
_WORD_CHARACTERS_MAX = 200
_SIMILAR = 0.5
_DEPTH = 2
_LEAF_TEMPLATES_MAX = 200
_TEMPLATES_MAX = 10_000


@dataclass(slots=True)
class _Cluster:
    number: int
    words: list[str]
    separators: list[str]
    count: int = 1


class Learner:
    """Templates of all messages so far. Bounded: so many templates in a leaf and in all; what is over joins nothing."""

    def __init__(self) -> None:
        self._leaves: dict[tuple[int, tuple[str, ...]], list[_Cluster]] = {}
        self._numbers = 0

    def learn(self, message: str) -> None:
        words, separators = _words(message.strip())
        leaf = self._leaves.setdefault((len(words), tuple(words[:_DEPTH])), [])
        cluster = max(leaf, key=lambda each: _similarity(each.words, words), default=None)
        if cluster is not None and _similarity(cluster.words, words) >= _SIMILAR:
            cluster.count += 1
            cluster.words = [
                known if known == word else PLACE for known, word in zip(cluster.words, words, strict=True)
            ]
        elif len(leaf) < _LEAF_TEMPLATES_MAX and self._numbers < _TEMPLATES_MAX:
            self._numbers += 1
            leaf.append(_Cluster(self._numbers, words, separators))

    def rank(self) -> None:
        """Number the templates anew, the most frequent first: for a first sample, before anybody has seen an id."""
        for number, cluster in enumerate(sorted(self._clusters(), key=lambda each: -each.count), 1):
            cluster.number = number

    def templates(self) -> dict[str, str]:
        """Template to id. Two that have become the same share the older id."""
        found: dict[str, str] = {}
        for cluster in sorted(self._clusters(), key=lambda each: each.number):
            found.setdefault(_joined(cluster.words, cluster.separators), f"T{cluster.number}")
        return found

    def _clusters(self) -> list[_Cluster]:
        return [each for leaf in self._leaves.values() for each in leaf]

    def to_json(self) -> list[Any]:
        return [[each.number, each.words, each.separators, each.count] for each in self._clusters()]

    @classmethod
    def from_json(cls, content: Iterable[Any]) -> Learner:
        """A leaf is found by the first words as they were; a place among them stays one."""
        found = cls()
        for number, words, separators, count in content:
            cluster = _Cluster(number, list(words), list(separators), count)
            found._leaves.setdefault((len(words), tuple(words[:_DEPTH])), []).append(cluster)
            found._numbers = max(found._numbers, number)
        return found


def learn(messages: Iterable[str]) -> list[str]:
    """Templates for a sample of messages, the most frequent first."""
    learner = Learner()
    for message in messages:
        learner.learn(message)
    learner.rank()
    return list(learner.templates())


def _similarity(known: list[str], words: list[str]) -> float:
    """The share of words that are the same; a place counts for nothing."""
    same = sum(a == b != PLACE for a, b in zip(known, words, strict=True))
    constant = sum(a != PLACE for a in known)
    return same / constant if constant else 1.0


def _joined(words: list[str], separators: list[str]) -> str:
    """Words with their blanks between; several places in a row are one, since a place may hold any number of words."""
    joined = last = words[0]
    for separator, word in zip(separators, words[1:], strict=True):
        if not word == last == PLACE:
            joined += separator + word
        last = word
    return joined
