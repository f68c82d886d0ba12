"""A disk error takes a log offline, whatever it was doing.

That no descriptor is left is not one. What would open files makes sure beforehand that it can, while nothing is changed
yet: it is refused then, and whoever asked asks again.
"""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from moldau.log.context import LogContext
from moldau.log.errors import OutOfDescriptors, StorageError


class CanFail(Protocol):
    context: LogContext

    def fail(self, error: OSError) -> StorageError:
        """Go offline. Returns the error to raise."""


Self = TypeVar("Self", bound=CanFail)
P = ParamSpec("P")
R = TypeVar("R")


def check_descriptors(log: CanFail) -> None:
    """OutOfDescriptors if what comes next may find none left."""
    try:
        log.context.check_descriptors()
    except OSError as error:
        raise _out_of_descriptors() from error


def _out_of_descriptors() -> OutOfDescriptors:
    return OutOfDescriptors("too many files are open: raise the limit on them (ulimit -n)")


def offline_on_error(method: Callable[Concatenate[Self, P], R]) -> Callable[Concatenate[Self, P], R]:
    """For methods that touch the disk: an OSError takes their log offline and leaves as StorageError."""

    @wraps(method)
    def guarded(log: Self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            log.context.check_descriptors()
        except OSError as error:
            raise _out_of_descriptors() from error
        try:
            return method(log, *args, **kwargs)
        except OSError as error:
            raise log.fail(error) from error

    return guarded
