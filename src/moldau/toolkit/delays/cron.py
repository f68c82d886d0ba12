"""When a cron expression falls due. What cron means, summer time included, is cronsim's business."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from moldau.toolkit.errors import SetupError


def next_due_ms(expression: str, after_ms: int, zone: str = "UTC") -> int:
    """The first time after `after_ms` that the expression names."""
    from cronsim import CronSim, CronSimError

    try:
        where = UTC if zone == "UTC" else ZoneInfo(zone)
    except (OSError, ValueError, KeyError) as error:
        raise SetupError(f"{zone!r} is no time zone: write, for example, Europe/Prague") from error
    try:
        found = next(CronSim(expression, datetime.fromtimestamp(after_ms / 1_000, where)), None)
    except CronSimError as error:
        raise SetupError(f"{expression!r} is no cron expression: {error}. Five fields, as in `0 9 * * MON`") from error
    if found is None:
        raise SetupError(f"{expression!r} does not fall due in the next fifty years")
    return round(found.timestamp() * 1_000)
