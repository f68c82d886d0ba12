"""What the demo has shown, checked: every number it is proud of stands beside the one it had to be."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from rich.console import Console


class DemoFailed(Exception):
    """A result is not what the data says it must be."""


class Summary:
    """Collects results; one that is wrong ends the demo at once, and with an error."""

    def __init__(self) -> None:
        self._rows: list[tuple[str, str, str]] = []
        self._began = time.perf_counter()

    def expect(self, part: str, what: str, found: object, expected: object) -> None:
        if found != expected:
            raise DemoFailed(f"{part}: {what}: {found}, expected {expected}")
        self._rows.append((part, what, _shown(found)))

    def show(self, console: Console) -> None:
        """The last words."""
        if not self._rows:
            raise DemoFailed("nothing was shown")
        table = Table("part", "what", "as it had to be", title="What was shown", title_justify="left")
        for part, what, found in self._rows:
            table.add_row(part, what, found)
        console.print()
        console.print(table)
        seconds = time.perf_counter() - self._began
        console.print(f"{len(self._rows)} results checked in {seconds:.0f} s. [bold green]Done.[/]")


def _shown(found: object) -> str:
    if isinstance(found, int):
        return f"{found:,}"
    if isinstance(found, dict):
        return ", ".join(f"{key} {value:,}" for key, value in sorted(found.items()))
    return ", ".join(sorted(map(str, found))) if isinstance(found, set) else str(found)
