"""Settings of clients as people give them: a file of properties, or KEY=VALUE."""

from __future__ import annotations

import os
from collections.abc import Iterable

from moldau.cli.failure import misused


def read_settings(path: str) -> dict[str, str]:
    """A client.properties file."""
    from moldau.broker.config import InvalidConfig, read_properties

    try:
        return read_properties(path)
    except InvalidConfig as error:
        hint = ""
        if "=" in path and not os.path.exists(path):
            hint = "; here --config is a file of client settings (topic settings are -c KEY=VALUE)"
        misused(f"{error}{hint}")


def pairs(texts: Iterable[str], option: str) -> dict[str, str]:
    """`KEY=VALUE`, from an option that may be repeated."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            misused(f"{option} {text}: give KEY=VALUE")
        found[key.strip()] = value.strip()
    return found
