"""Named contexts: clusters somebody works with, a client.properties file each, in one folder.

`~/.config/moldau/contexts/NAME.properties` (or under `XDG_CONFIG_HOME`, or `MOLDAU_HOME`), so that a file which Java's
clients use can be copied there. The file `current` beside that folder names the one in use.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from moldau.cli.client_settings import read_settings
from moldau.cli.failure import ExitCode, fail, misused

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def home() -> Path:
    own = os.environ.get("MOLDAU_HOME")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "moldau"


def file_of(name: str) -> Path:
    if not _NAME.fullmatch(name):
        misused(f"{name!r} is no name for a context: letters, digits, dots, dashes")
    return home() / "contexts" / f"{name}.properties"


def names() -> list[str]:
    folder = home() / "contexts"
    return sorted(each.stem for each in folder.glob("*.properties")) if folder.is_dir() else []


def current() -> str | None:
    try:
        return (home() / "current").read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def use(name: str | None) -> None:
    place = home() / "current"
    if name is None:
        place.unlink(missing_ok=True)
        return
    require(name)
    place.write_text(f"{name}\n", encoding="utf-8")


def require(name: str) -> Path:
    file = file_of(name)
    if not file.is_file():
        known = (
            "there are " + ", ".join(names())
            if names()
            else "none yet; `moldau context set NAME -b HOST:PORT` makes one"
        )
        fail(f"there is no context {name!r}: {known}", ExitCode.NOT_FOUND)
    return file


def chosen_settings(name: str | None) -> dict[str, str]:
    """Of the context that was named, else of the current one, else none."""
    chosen = name or current()
    return read_settings(str(require(chosen))) if chosen else {}


def write(name: str, settings: dict[str, str]) -> None:
    """Readable by its owner only: passwords may be in it."""
    file = file_of(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{_escaped(key, is_key=True)}={_escaped(value)}\n" for key, value in settings.items())
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="latin-1") as opened:
        os.fchmod(handle, 0o600)  # also one that was copied here and everybody could read
        opened.write(text)


def _escaped(text: str, *, is_key: bool = False) -> str:
    """As java.util.Properties reads it back."""
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    if is_key:
        escaped = re.sub(r"([ :=#!])", r"\\\1", escaped)
    elif escaped.startswith(" "):
        escaped = "\\" + escaped
    units = (escaped[place] for place in range(len(escaped)))
    return "".join(each if ord(each) < 256 else _utf16(each) for each in units)


def _utf16(character: str) -> str:
    data = character.encode("utf-16-be")
    return "".join(f"\\u{data[place : place + 2].hex()}" for place in range(0, len(data), 2))
