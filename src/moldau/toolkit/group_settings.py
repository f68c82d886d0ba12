"""What an app says about a consumer group: its settings, and the functions it wants called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from moldau.toolkit.positions import Reset
from moldau.toolkit.scheduler import Where

Hook = Callable[[list[Where]], Any]


@dataclass(slots=True)
class Hooks:
    """What the app wants to be told of."""

    assigned: list[Hook] = field(default_factory=list)
    revoked: list[Hook] = field(default_factory=list)
    lost: list[Hook] = field(default_factory=list)
    consume: list[Callable[[Sequence[Any]], None]] = field(default_factory=list)
    commit: list[Callable[[Mapping[Where, int]], None]] = field(default_factory=list)


@dataclass(slots=True, frozen=True)
class GroupSettings:
    name: str
    config: Mapping[str, Any]
    reset: Reset
    commit_ms: int
    drain_ms: int
    batch_size: int = 2_000
    refresh_s: float = 30.0
    is_transactional: bool = False
    transaction_step: Callable[[str], None] = lambda _: None
