"""What goes wrong in a command: an error code, and a message that says what to do about it."""

from moldau.wire.errors import ErrorCode


class ApiError(Exception):
    """One item of a request, or all of it, was refused. Commands turn it into the response's error fields."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(f"{code.name}: {message or code.meaning}")
        self.code = code
        self.message = message


class NotController(Exception):
    """This node is not, or no longer, the active controller. Ask the one that is; what was under way may have
    happened or not."""


class TooManyRecords(Exception):
    """A client's request would make more metadata records than one may: all of it is refused (POLICY_VIOLATION)."""

    def __init__(self) -> None:
        super().__init__("Unable to perform excessively large batch operation.")


class MetadataCorrupt(Exception):
    """A record that cannot follow the ones before it. The log is damaged, or was written by a newer version."""
