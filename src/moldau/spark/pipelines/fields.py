"""How a field of a pipeline is declared: what it is for (`about`), and how it is written in a file (`kind`).

`about` is the reference that `moldau pipeline keys` prints; the kind, and what it says besides (choices, least values,
classes of a nested object), is all that the loader knows.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

from moldau.spark.pipelines.errors import Where


def _field(kind: str, default: Any, about: str, **more: Any) -> Any:
    metadata = {"kind": kind, "about": about, **more}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


def text(about: str, default: str | None = "") -> Any:
    return _field("text", default, about)


def choice(about: str, default: str, *known: str) -> Any:
    return _field("choice", default, about, known=known)


def number(about: str, default: int | None = None, at_least: int = 1) -> Any:
    return _field("number", default, about, at_least=at_least)


def flag(about: str, default: bool = False) -> Any:
    return _field("flag", default, about)


def duration(about: str, default: str = "") -> Any:
    return _field("duration", default, about)


def words(about: str) -> Any:
    return _field("words", (), about)


def pairs(about: str) -> Any:
    return _field("pairs", {}, about)


def schema(about: str, default: str = "") -> Any:
    return _field("schema", default, about)


def function(about: str) -> Any:
    return _field("function", "", about)


def part(about: str, *classes: type, key: str = "") -> Any:
    """A nested object; with several classes, `key` names the field whose value chooses."""
    return _field("part", None, about, classes=classes, key=key)


def where() -> Any:
    return field(default=Where(), metadata={"kind": "where"}, compare=False, repr=False)
