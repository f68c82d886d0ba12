"""A disk error takes a log offline, whatever it was doing."""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from moldau.log.errors import StorageError


class CanFail(Protocol):
    def fail(self, error: OSError) -> StorageError:
        """Go offline. Returns the error to raise."""


Self = TypeVar("Self", bound=CanFail)
P = ParamSpec("P")
R = TypeVar("R")


def offline_on_error(method: Callable[Concatenate[Self, P], R]) -> Callable[Concatenate[Self, P], R]:
    """For methods that touch the disk: an OSError takes their log offline and leaves as StorageError."""

    @wraps(method)
    def guarded(log: Self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(log, *args, **kwargs)
        except OSError as error:
            raise log.fail(error) from error

    return guarded
