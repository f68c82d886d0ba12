"""Which topic names are allowed, and which two are too alike.

Metric names turn "." into "_", so `a.b` and `a_b` would share their metrics: of such a pair only one may exist.
"""

import re

from moldau.controller.errors import ApiError
from moldau.wire.errors import ErrorCode

NAME_LENGTH_MAX = 249
CLUSTER_METADATA_TOPIC = "__cluster_metadata"
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)


def reason_name_is_invalid(name: str) -> str | None:
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return f"'{name}' is not allowed"
    if len(name) > NAME_LENGTH_MAX:
        return f"the length of '{name}' is longer than the max allowed length {NAME_LENGTH_MAX}"
    if not _LEGAL.fullmatch(name):
        return f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    return None


def check_topic_name(name: str) -> None:
    reason = reason_name_is_invalid(name)
    if reason is not None:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {reason}")


def collision_key(name: str) -> str | None:
    """What two colliding names have in common; None when the name cannot collide with any other."""
    if "." in name or "_" in name:
        return name.replace(".", "_")
    return None
