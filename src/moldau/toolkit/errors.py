"""What the toolkit raises. Every message says what to do next."""

from __future__ import annotations


class ToolkitError(Exception):
    """Anything the toolkit itself raises."""


class NotThere(ToolkitError):
    """A topic or a record that was named is not there."""


class ClusterAway(ToolkitError):
    """No broker answers for what is to be read; worth trying again."""


class SetupError(ToolkitError):
    """The app is put together wrongly; found before it starts."""


class WrongType(ToolkitError, TypeError):
    """A value that does not fit its topic, at the call that wanted to send it."""


class Undecodable(ToolkitError, ValueError):
    """Bytes that are not what the handler's annotation says. Trying again will not help."""


class SchemaMissing(ToolkitError):
    """A schema id that was not fetched from the registry yet; fetch it and decode again."""

    def __init__(self, schema_id: int) -> None:
        super().__init__(f"schema {schema_id} has not been fetched yet")
        self.schema_id = schema_id


class RegistryAway(ToolkitError):
    """The schema registry does not answer; worth trying again."""


class SendFailed(ToolkitError):
    """The cluster did not take a record. `is_retriable` says whether sending it again may help."""

    def __init__(self, message: str, *, is_retriable: bool, is_too_large: bool = False) -> None:
        super().__init__(message)
        self.is_retriable = is_retriable
        self.is_too_large = is_too_large


class SpoolFull(ToolkitError):
    """The cluster is out of reach and the local spool has no more room."""


class HandlerFailed(ToolkitError):
    """A handler failed for good and there are no dead letters: the app stops, and the record stays unfinished."""


class CircuitOpen(ToolkitError):
    """Too much died: the app stops before more does."""


class BatchFailed(ToolkitError):
    """Raised by a batch handler to say which of its records failed; the others are finished."""

    def __init__(self, failures: dict[int, BaseException]) -> None:
        super().__init__(f"{len(failures)} records of the batch failed")
        self.failures = failures
