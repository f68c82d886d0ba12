"""Numbers in words: `1 partition`, `2 partitions`; `7 days` for a setting in milliseconds, and back."""

import re

_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_DECIMAL = {"b": 1, "kb": 1_000, "mb": 1_000_000, "gb": 1_000_000_000, "tb": 1_000_000_000_000}
_BYTES = _DECIMAL | {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_NEVER = (1 << 63) - 1


def noun(count: float, one: str) -> str:
    """The word for so many: `one` is it in the singular."""
    if count == 1:
        return one
    return f"{one[:-1]}ies" if one.endswith("y") else f"{one}s"


def counted(count: float, one: str) -> str:
    return f"{count:,.0f} {noun(count, one)}"


def _units(setting: str) -> dict[str, int]:
    """How values of a setting may be written, by its name."""
    if setting.endswith((".ms", ".minutes", ".hours", ".seconds")):
        return _MS if setting.endswith(".ms") else {}
    return _BYTES if setting.endswith(".bytes") else {}


def as_number(setting: str, text: str) -> str:
    """`7d` and `1.5 GiB` as the number brokers take; whatever is not written like that stays."""
    found = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?)\s*([A-Za-z]{1,3})", text)
    unit = _units(setting).get(found[2].lower()) if found else None
    return str(round(float(found[1]) * unit)) if found and unit else text


def in_words(setting: str, text: str | None) -> str:
    """What a number of a setting means, where that is not plain: `7 days`, `1 GiB`, `no limit`."""
    units = _units(setting)
    if not text or not units or not re.fullmatch(r"-?\d{1,19}", text):
        return ""
    value = int(text)
    if value in (-1, _NEVER):
        return "no limit" if value == _NEVER or setting.startswith("retention.") else ""
    steps = (
        [(604_800_000, "week"), (86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1_000, "second")]
        if units is _MS
        else [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")]
    )
    for size, word in steps:
        if value >= size and (value % size == 0 or value >= 10 * size or size == steps[-1][0]):
            about = "" if value % size == 0 else "about "
            return about + (counted(value / size, word) if units is _MS else f"{value / size:,.4g} {word}")
    return ""
