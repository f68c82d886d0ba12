"""What is wrong with a pipeline, where it stands, and what to do about it.

Invariant: every problem names a place. In a file that is `file:line:column`; in Python the name of the object.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(slots=True, frozen=True)
class Mark:
    """A place in a pipeline file, lines and columns counted from one; line 0 means it was made in Python."""

    file: str = "<python>"
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


@dataclass(slots=True, frozen=True)
class Where:
    """Where an object of the model was written, and each of its keys."""

    mark: Mark = Mark()
    keys: Mapping[str, Mark] = field(default_factory=dict)

    def of(self, key: str) -> Mark:
        return self.keys.get(key, self.mark)


@dataclass(slots=True, frozen=True)
class Problem:
    mark: Mark
    message: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.mark}: {self.message}" + (f"; {self.fix}" if self.fix else "")


class PipelineError(Exception):
    """One or more problems, in the order of the file. Found before Spark starts wherever that is possible."""

    def __init__(self, problems: Iterable[Problem], *, concerns: str = "file") -> None:
        """`concerns`: the `file`, or what was asked for it: `cluster` (nobody answers), `login`, `topics` (missing)."""
        self.concerns = concerns
        self.problems = sorted(set(problems), key=lambda each: (each.mark.file, each.mark.line, each.mark.column))
        super().__init__("\n".join(map(str, self.problems)))
