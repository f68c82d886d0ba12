"""Log messages and their templates: `Failed password for <*> from <*> port <*> ssh2`.

A template is the constant part of a message; `<*>` stands where it varies, for any text, blanks included. A message
that fits several templates belongs to the one with the most constant text (then the fewest places), so
`authentication failure; … user=<*>` wins over the same without a user. That rule alone gives Loghub's labels.

`learn` finds templates in a sample, as Drain does (He et al., ICWS 2017): messages with as many words and the same
first words share a leaf; within it a message joins the most similar template, and words that differ become places.
Words with digits are places from the start.

Invariant: matching depends on the message and the templates alone, never on what came before; a replayed batch gets the
same templates.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

PLACE = "<*>"


@dataclass(slots=True, frozen=True)
class Match:
    template: str
    template_id: str
    parameters: tuple[str, ...]


class Matcher:
    """Finds the template of a message. Templates are numbered T1, T2… in the order they were given."""

    def __init__(self, templates: Iterable[str]) -> None:
        given = list(dict.fromkeys(templates))
        ids = {template: f"T{number}" for number, template in enumerate(given, 1)}
        ordered = sorted(given, key=lambda each: (-len(each.replace(PLACE, "")), each.count(PLACE), each))
        self._by_start: dict[str, list[tuple[re.Pattern[str], str, str]]] = {}
        self._anywhere: list[tuple[int, re.Pattern[str], str, str]] = []
        self._rank: dict[str, int] = {}
        for rank, template in enumerate(ordered):
            start = template.partition(PLACE)[0]
            entry = (_pattern(template), template, ids[template])
            self._rank[template] = rank
            if len(start) >= _START_LENGTH:
                self._by_start.setdefault(start[:_START_LENGTH], []).append(entry)
            else:
                self._anywhere.append((rank, *entry))

    def match(self, message: str) -> Match | None:
        best: Match | None = None
        rank = len(self._rank)
        for pattern, template, template_id in self._by_start.get(message[:_START_LENGTH], ()):
            found = pattern.fullmatch(message)
            if found is not None:
                best, rank = Match(template, template_id, found.groups()), self._rank[template]
                break
        for other_rank, pattern, template, template_id in self._anywhere:
            if other_rank >= rank:
                break
            found = pattern.fullmatch(message)
            if found is not None:
                return Match(template, template_id, found.groups())
        return best


# Most templates begin with a word; looking at four characters leaves one or two candidates out of dozens.
_START_LENGTH = 4


def _pattern(template: str) -> re.Pattern[str]:
    return re.compile("(.*?)".join(re.escape(part) for part in template.split(PLACE)), re.S)


# ---- learning -------------------------------------------------------------------------------------------------------

_DIGIT = re.compile(r"\d")
_SIMILAR = 0.5
_DEPTH = 2
_LEAF_TEMPLATES_MAX = 200


@dataclass(slots=True)
class _Cluster:
    words: list[str]
    separators: list[str]
    count: int = 1


def learn(messages: Iterable[str]) -> list[str]:
    """Templates for a sample of messages, the most frequent first."""
    leaves: dict[tuple[int, tuple[str, ...]], list[_Cluster]] = {}
    for message in messages:
        parts = re.split(r"(\s+)", message.strip())
        words = [PLACE if _DIGIT.search(word) else word for word in parts[::2]]
        leaf = leaves.setdefault((len(words), tuple(words[:_DEPTH])), [])
        cluster = max(leaf, key=lambda each: _similarity(each.words, words), default=None)
        if cluster is not None and _similarity(cluster.words, words) >= _SIMILAR:
            cluster.count += 1
            cluster.words = [
                known if known == word else PLACE for known, word in zip(cluster.words, words, strict=True)
            ]
        elif len(leaf) < _LEAF_TEMPLATES_MAX:
            leaf.append(_Cluster(words, parts[1::2]))
    clusters = sorted((each for leaf in leaves.values() for each in leaf), key=lambda each: -each.count)
    return list(dict.fromkeys(_joined(each) for each in clusters))


def _similarity(known: list[str], words: list[str]) -> float:
    """The share of words that are the same; a place counts for nothing."""
    same = sum(a == b != PLACE for a, b in zip(known, words, strict=True))
    constant = sum(a != PLACE for a in known)
    return same / constant if constant else 1.0


def _joined(cluster: _Cluster) -> str:
    """Words with their blanks between; several places in a row are one, since a place may hold any number of words."""
    joined = last = cluster.words[0]
    for separator, word in zip(cluster.separators, cluster.words[1:], strict=True):
        if not word == last == PLACE:
            joined += separator + word
        last = word
    return joined
