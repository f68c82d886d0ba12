"""What every message class has in common: fields in slots, equality, a readable form.

The classes themselves are made from the table by `codegen`; `messages` names them.
"""

from typing import Any, ClassVar

# What one could log in with, or guess a password from: never in a log or a traceback.
_SECRET = frozenset({"auth_bytes", "hmac", "salt", "salted_password", "server_key", "stored_key"})


class Struct:
    """A struct of a message: fields in `__slots__`, in the table's order."""

    __slots__: tuple[str, ...] = ()
    # Tagged fields this version of the table does not know, kept as they came; None when there are none.
    unknown_tags: dict[int, bytes] | None

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]  # mutable values are not keys

    def __repr__(self) -> str:
        fields = ", ".join(
            f"{name}={'[hidden]' if name in _SECRET else repr(getattr(self, name))}"
            for name in self.__slots__
            if name != "unknown_tags" or getattr(self, name) is not None
        )
        return f"{type(self).__name__}({fields})"

    def replace(self, **changes: Any) -> Any:
        """A shallow copy with some fields changed."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return type(self)(**(values | changes))


class Message(Struct):
    """A whole message: a request, a response, or an internal record."""

    __slots__ = ()
    # Request and response: the API key. Records: the record type. Plain data: -1.
    number: ClassVar[int]
    first_version: ClassVar[int]
    last_version: ClassVar[int]
