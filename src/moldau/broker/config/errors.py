"""The one exception of this package: a setting that cannot be used, with what to do about it.

Invariant: `str(error)` is fit for the user as it stands; `error_code` is what a Kafka client is answered with.
"""

from typing import Self

INVALID_CONFIG = 40
INVALID_REQUEST = 42


class InvalidConfig(Exception):
    """A key or value that cannot be used. `key` and `value` are None where no single one is to blame."""

    def __init__(
        self, message: str, key: str | None = None, value: str | None = None, error_code: int = INVALID_CONFIG
    ) -> None:
        super().__init__(message)
        self.key = key
        self.value = value
        self.error_code = error_code

    @classmethod
    def for_value(cls, key: str, value: object, reason: str) -> Self:
        """In the wording of Kafka, which tools and people already know."""
        text = _as_java_prints(value)
        return cls(f"Invalid value {text} for configuration {key}: {reason}", key, text)

    def as_invalid_request(self) -> "InvalidConfig":
        """The same complaint with the error code Kafka gives for broker settings that fail validation."""
        return InvalidConfig(str(self), self.key, self.value, INVALID_REQUEST)


def _as_java_prints(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    if value is None:
        return "null"
    return str(value)
