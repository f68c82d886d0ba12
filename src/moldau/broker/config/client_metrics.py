"""Settings of a client metrics subscription: which clients push which metrics, and how often.

Invariant: a stored `match` always parses, so that matching a client never fails.
"""

from collections.abc import Mapping
from functools import cache

from moldau.broker.config.definition import Definition, parse_table
from moldau.broker.config.errors import INVALID_REQUEST, InvalidConfig
from moldau.broker.config.topic import without_nulls
from moldau.broker.config.values import ConfigValue
from moldau.groups.regex import check_regex
from moldau.groups.regex_syntax import InvalidRegex

CLIENT_METRICS = """
interval.ms int 300000 - medium cluster
    How often matching clients push their metrics.
match list "" unique medium cluster
    Which clients push: `selector=regular expression`, all of which must match.
metrics list "" unique medium cluster
    Prefixes of the metrics wanted; `*` means all, none switches the subscription off.
"""

_SELECTORS = frozenset(
    {
        "client_instance_id",
        "client_id",
        "client_software_name",
        "client_software_version",
        "client_source_address",
        "client_source_port",
    }
)
_INTERVAL_MS_MIN = 100
_INTERVAL_MS_MAX = 3_600_000


@cache
def client_metrics_definitions() -> dict[str, Definition]:
    return parse_table(CLIENT_METRICS)


def client_metrics_values(configs: Mapping[str, str]) -> dict[str, ConfigValue]:
    """Every setting of a subscription, parsed."""
    return {
        name: known.parse(configs[name]) if name in configs else known.default
        for name, known in client_metrics_definitions().items()
    }


def parse_match(entries: tuple[str, ...]) -> dict[str, str]:
    """The patterns by client attribute; all must match. In RE2's syntax: Java's may take for ever."""
    patterns = {}
    for entry in entries:
        parts = entry.rstrip("=").split("=")
        if len(parts) != 2 or parts[0].strip() not in _SELECTORS:
            raise InvalidConfig(f"Illegal client matching pattern: {entry}", "match", entry)
        try:
            check_regex(parts[1].strip())
            patterns[parts[0].strip()] = parts[1].strip()
        except InvalidRegex as error:
            raise InvalidConfig(f"Illegal client matching pattern: {entry}", "match", entry) from error
    return patterns


def validate_client_metrics_configs(subscription: str, overrides: Mapping[str, str | None]) -> dict[str, str]:
    """The settings as they may be stored, or InvalidConfig."""
    configs = without_nulls(overrides, "client metrics")
    if not subscription:
        raise InvalidConfig("Subscription name can't be empty", error_code=INVALID_REQUEST)
    for name in configs:
        if name not in client_metrics_definitions():
            message = f"Unknown client metrics configuration: {name}"
            raise InvalidConfig(message, name, configs[name], INVALID_REQUEST)
    values = client_metrics_values(configs)
    interval_ms, match = values["interval.ms"], values["match"]
    assert isinstance(interval_ms, int)
    assert isinstance(match, tuple)
    if not _INTERVAL_MS_MIN <= interval_ms <= _INTERVAL_MS_MAX:
        raise InvalidConfig(
            f"Invalid value {interval_ms} for interval.ms, interval must be between 100 and 3600000 (1 hour)",
            "interval.ms",
            str(interval_ms),
            INVALID_REQUEST,
        )
    parse_match(match)
    return configs
