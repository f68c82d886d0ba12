"""Positions in topics as people say them: an offset, a time, the beginning, the end, so many from either."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from moldau.cli.failure import ExitCode, counted, fail, misused
from moldau.cli.target import TIMEOUT_SECONDS

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

Place = tuple[str, int]
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_PERIOD = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|d|w)")
_AGO = re.compile(r"-?(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_MILLISECONDS_DIGITS = 12  # fewer would be before 2001


def parse_time(text: str) -> int:
    """Milliseconds since 1970, of an ISO time (UTC unless it says otherwise), of milliseconds, or of `-1h`: ago."""
    given = text.strip()
    ago = _AGO.fullmatch(given)
    if ago is not None:
        return int((time.time() - float(ago[1]) * _SECONDS[ago[2]]) * 1000)
    if given.isdecimal():
        if len(given) < _MILLISECONDS_DIGITS:
            misused(
                f"{text!r} are no milliseconds since 1970: seconds end in three digits too few, as in 1700000000000"
            )
        return int(given)
    if given == "now":
        return int(time.time() * 1000)
    try:
        found = datetime.fromisoformat(given)
    except ValueError:
        misused(f"{text!r} is no time: write 2026-11-16T08:30, milliseconds since 1970, or -15m for a while ago")
    return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)


def parse_period(text: str) -> int | None:
    """Milliseconds of `90s`, `15m`, `12h`, `7d`; None if it says no period."""
    found = _PERIOD.fullmatch(text.strip())
    return None if found is None else int(float(found[1]) * _SECONDS[found[2]] * 1000)


def show_time(timestamp_ms: int | None) -> str | None:
    if timestamp_ms is None or timestamp_ms < 0:
        return None
    try:
        return (
            datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        )
    except (OverflowError, ValueError):
        return str(timestamp_ms)


def offsets_at(admin: AdminClient, places: Iterable[Place], when: str | int) -> Mapping[Place, int]:
    """Of each partition: the `earliest` or `latest` offset, or the first since a time, -1 if there is none."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import OffsetSpec

    if isinstance(when, int):
        spec = OffsetSpec.for_timestamp(when)
    else:
        make: Any = OffsetSpec.earliest if when == "earliest" else OffsetSpec.latest
        spec = make()
    asked = {TopicPartition(topic, index): spec for topic, index in places}
    if not asked:
        return {}
    futures = admin.list_offsets(asked, request_timeout=TIMEOUT_SECONDS)
    return {(place.topic, place.partition): future.result(TIMEOUT_SECONDS).offset for place, future in futures.items()}


def chosen(known: Mapping[str, Collection[int]], texts: Iterable[str]) -> list[Place]:
    """What TOPIC and TOPIC:0,1 name, of all partitions there are."""
    places: list[Place] = []
    for text in texts:
        name, colon, indexes = text.partition(":")
        if name not in known:
            fail(f"no such topic: {name} (`moldau topic list` shows what there is)", ExitCode.NOT_FOUND)
        there = sorted(known[name])
        if not colon:
            places += [(name, index) for index in there]
            continue
        for index in indexes.split(","):
            if not (index.isascii() and index.isdecimal()):
                misused(f"{text}: write TOPIC:0,1 for partitions 0 and 1")
            if int(index) not in there:
                fail(f"{name} has {counted(len(there), 'partition')}, and no {index}", ExitCode.NOT_FOUND)
            places.append((name, int(index)))
    return list(dict.fromkeys(places))
