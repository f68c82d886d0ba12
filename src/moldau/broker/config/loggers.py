"""Loggers as configs (KIP-412): what each of this process's loggers lets through, changed until the next start.

Levels go by Kafka's names. `root` is the root logger; the others are those Moldau has used so far, with what they
inherit. Invariant: a request changes all of its loggers, or none.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from moldau.broker.config import Change, Operation
from moldau.controller.errors import ApiError
from moldau.wire import ErrorCode

ROOT = "root"
LEVELS = {
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
_OURS = "moldau"


def levels() -> dict[str, str]:
    """Every logger's level, by name."""
    names = [name for name in logging.root.manager.loggerDict if name == _OURS or name.startswith(_OURS + ".")]
    return {name: level_name(_logger(name).getEffectiveLevel()) for name in sorted([ROOT, *names])}


def change_levels(changes: Sequence[Change], *, validate_only: bool) -> None:
    """Set levels, or take them back (DELETE): then the parent's counts. ApiError if one cannot be."""
    known = levels()
    for change in changes:
        _check(change, known)
    if validate_only:
        return
    for name, operation, value in changes:
        _logger(name).setLevel(logging.NOTSET if operation == Operation.DELETE else LEVELS[value or ""])


def _check(change: Change, known: dict[str, str]) -> None:
    name, operation, value = change
    if operation not in (Operation.SET, Operation.DELETE):
        kind = Operation(operation).name if operation in Operation._value2member_map_ else str(operation)
        message = f"{kind} operation is not allowed for the BROKER_LOGGER resource"
        raise ApiError(ErrorCode.INVALID_REQUEST, message)
    if name not in known:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"Logger {name} does not exist!")
    if operation == Operation.DELETE and name == ROOT:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Removing the log level of the root logger is not allowed")
    if operation == Operation.SET and value not in LEVELS:
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            f"Cannot set the log level of {name} to {value} as it is not a supported log level. "
            f"Valid log levels are {', '.join(sorted(LEVELS))}",
        )


def _logger(name: str) -> logging.Logger:
    return logging.getLogger() if name == ROOT else logging.getLogger(name)


def level_name(level: int) -> str:
    """The most talkative of Kafka's levels that is let through."""
    return next((name for name, number in LEVELS.items() if level <= number), "FATAL")
