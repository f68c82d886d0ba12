"""One measurement beside what it is measured against."""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(slots=True, frozen=True)
class Row:
    name: str
    ours: float
    unit: str
    # What others reach in the same run on the same machine.
    peers: dict[str, float] = field(default_factory=dict)
    target: str = ""
    better: Literal["higher", "lower"] = "higher"
