"""Settings as tests like to write them: numbers, booleans and paths are as good as Kafka's texts for them."""

import os
from collections.abc import Mapping

Settings = Mapping[str, str | int | float | bool | os.PathLike[str]]


def as_texts(settings: Settings | None) -> dict[str, str]:
    """As server.properties has them: `True` is `true`, `3` is `3`. TypeError says what cannot be one."""
    if settings is not None and not isinstance(settings, Mapping):
        raise TypeError(f'settings={settings!r}: give them by name, as in {{"num.partitions": 3}}')
    return {key: _as_text(key, value) for key, value in (settings or {}).items()}


def _as_text(key: str, value: object) -> str:
    if not isinstance(value, str | int | float | os.PathLike):
        raise TypeError(f"{key}={value!r}: a setting is a text, a number, a path, True or False")
    return str(value).lower() if isinstance(value, bool) else str(value)
