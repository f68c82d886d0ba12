"""What commands show: a table for people, plain columns for pipes, `--json` and `--format` for scripts.

A command says once what there is to show, as rows of named values; how it looks is decided here. Rich is loaded only
where a terminal shows it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from moldau.cli.failure import misused
from moldau.cli.harmless import harmless, harmless_cell

if TYPE_CHECKING:
    from rich.console import Console

Row = Mapping[str, Any]
_FIELD = re.compile(r"\{(\w+)\}|\{\{|\}\}")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}


def unescape(text: str) -> str:
    r"""`\t`, `\n`, `\r`, `\0`, `\\` and `\xHH`, as people write them in shells."""

    def replace(found: re.Match[str]) -> str:
        if found[1] is not None:
            return chr(int(found[1], 16))
        return _ESCAPES.get(found[2], found[0])

    return re.sub(r"\\(?:x([0-9a-fA-F]{2})|(.))", replace, text)


class Output:
    """Made by the frame from `--json` and `--format`."""

    def __init__(self, *, as_json: bool = False, template: str | None = None, console: Console | None = None) -> None:
        if as_json and template is not None:
            misused("--json and --format: choose one")
        self.as_json = as_json
        self.template = None if template is None else unescape(template)
        self._console = console  # where a picture is collected that is shown again and again
        self.is_for_scripts = as_json or template is not None
        self.is_for_people = console is not None or (not self.is_for_scripts and sys.stdout.isatty())

    def show(self, rows: Sequence[Row], *, document: Any = None, title: str = "", empty: str = "") -> None:
        """Rows that all have the same names. `document` is what JSON shows instead of them; `empty` is told if none."""
        if self.as_json:
            self._json(list(rows) if document is None else document)
        elif self.template is not None:
            for row in rows:
                typer.echo(formatted(self.template, row), color=True)  # or a pipe would get less than there is
        else:
            if title:
                self.line(title)
            if rows:
                self._table(rows)
            elif empty:
                typer.echo(empty, err=True)

    def sections(self, parts: Sequence[tuple[str, Sequence[Row]]], *, document: Any, rows: Sequence[Row] = ()) -> None:
        """Several tables under titles; `--format` is about `rows`, or those of the first part."""
        if self.as_json:
            self._json(document)
        elif self.template is not None:
            self.show(rows or (parts[0][1] if parts else ()))
        else:
            for number, (title, each) in enumerate(parts):
                if number:
                    self.line("")
                self.show(each, title=title)

    def done(self, what: str, row: Row) -> None:
        """One thing was done: a line for people, an object a line for scripts."""
        if self.as_json:
            self.line(json.dumps(row, default=str))
        elif self.template is not None:
            typer.echo(formatted(self.template, row), color=True)
        else:
            self.line(what)

    def line(self, text: str) -> None:
        if self._console is not None:
            self._console.print(harmless(text), markup=False, highlight=False)
        else:
            typer.echo(harmless(text))

    def _json(self, document: Any) -> None:
        self.line(
            json.dumps(document, indent=2 if sys.stdout.isatty() and self._console is None else None, default=str)
        )

    def _table(self, rows: Sequence[Row]) -> None:
        if not self.is_for_people:
            for line in plain_table(rows):
                typer.echo(line)
            return
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table

        table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
        for name in rows[0]:
            table.add_column(name.replace("_", " "), justify=_side(rows, name), overflow="fold")
        for row in rows:
            table.add_row(*(_rich(name, value) for name, value in row.items()))
        console = self._console or Console()
        if _natural_width(rows) > console.width:
            table.padding = (0, 0)  # rather close together than words in two halves
        console.print(table)


def _natural_width(rows: Sequence[Row]) -> int:
    """Of a table with its padding, nothing folded."""
    return sum(max(len(name), *(len(shown(row[name])) for row in rows)) + 3 for name in rows[0])


_COLOURS = {
    **dict.fromkeys(("ok", "stable", "online", "in sync", "healthy", "leader", "complete"), "green"),
    **dict.fromkeys(("offline", "failed", "critical", "dead", "no leader", "error"), "red"),
    **dict.fromkeys(("warning", "slow", "lagging", "empty", "under-replicated", "moving"), "yellow"),
}


def _rich(name: str, value: Any) -> Any:
    from rich.text import Text

    text = shown(value)
    return Text(text, style=_COLOURS.get(text.lower(), "") if name in ("state", "status", "health", "result") else "")


def _side(rows: Sequence[Row], name: str) -> Any:
    return "right" if _is_number(rows, name) else "left"


def _is_number(rows: Sequence[Row], name: str) -> bool:
    values = [row[name] for row in rows if row[name] is not None]
    return bool(values) and all(isinstance(each, int | float) and not isinstance(each, bool) for each in values)


def shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, list | tuple | set | frozenset):
        return " ".join(map(shown, value)) or "-"
    if isinstance(value, Mapping):
        return ",".join(f"{harmless_cell(str(key))}={shown(each)}" for key, each in value.items()) or "-"
    return harmless_cell(str(value))


def plain_table(rows: Sequence[Row]) -> list[str]:
    """Aligned columns under a line of names, two blanks apart; nothing is cut off or wrapped."""
    names = list(rows[0])
    cells = [[name.replace("_", "-") for name in names], *([shown(row[name]) for name in names] for row in rows)]
    widths = [max(len(line[place]) for line in cells) for place in range(len(names))]
    right = [_is_number(rows, name) for name in names]
    lines = []
    for line in cells:
        padded = (
            text.rjust(width) if is_right else text.ljust(width)
            for text, width, is_right in zip(line, widths, right, strict=True)
        )
        lines.append("  ".join(padded).rstrip())
    return lines


def formatted(template: str, row: Row) -> str:
    """`{name}` becomes the row's value; a name it does not have is refused with those it has."""
    is_seen = sys.stdout.isatty()

    def replace(found: re.Match[str]) -> str:
        if found[1] is None:
            return found[0][0]
        if found[1] not in row:
            misused(f"--format: there is no {{{found[1]}}}; there are {', '.join(f'{{{name}}}' for name in row)}")
        value = row[found[1]]
        if isinstance(value, str):
            return harmless(value) if is_seen else value
        return json.dumps(value, default=str) if _is_nested(value) else shown(value)

    return _FIELD.sub(replace, template)


def _is_nested(value: Any) -> bool:
    return isinstance(value, Mapping | list | tuple)


def size(count: float | None) -> str:
    """Bytes for people."""
    if count is None:
        return "-"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
