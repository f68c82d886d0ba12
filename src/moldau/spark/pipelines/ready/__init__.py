"""Pipelines that come with the package, one for each use, each with a generator of data to try it with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from moldau.spark.pipelines.load import load, loads
from moldau.spark.pipelines.model import Pipeline

_FOLDER = Path(__file__).parent


def names() -> list[str]:
    return sorted(file.stem for file in _FOLDER.glob("*.yaml"))


def text(name: str) -> str:
    """The file itself: the way to begin one's own."""
    return (_FOLDER / f"{name}.yaml").read_text(encoding="utf-8")


def find(target: str, variables: Mapping[str, str] | None = None, *, environment: str = "") -> Pipeline:
    """A pipeline by its file, or by the name of a ready one; that one works in the current folder."""
    if not os.path.exists(target) and target in names():
        return loads(text(target), f"{target}.yaml", variables, folder=os.getcwd(), environment=environment)
    return load(target, variables, environment=environment)
