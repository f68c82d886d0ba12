"""How one topic's keys or values become bytes and back, whatever they are made of (`moldau.toolkit.codecs` decides)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from moldau.toolkit.errors import Undecodable, WrongType

Headers = Sequence[tuple[str, bytes | None]]
Part = Literal["key", "value"]


@dataclass(slots=True, frozen=True)
class Codec:
    """How one topic's keys or values become bytes and back."""

    name: str
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    headers: Callable[[Any], Headers] | None = None  # what is sent beside the value
    decode_with_headers: Callable[[bytes, Headers], Any] | None = None
    schema: Callable[[], dict[str, Any]] | None = None  # JSON Schema, for AsyncAPI
    allows_none: bool = False
    types: tuple[Any, ...] = ()  # the classes it may decode to, where there are several

    def read(self, data: bytes | None, headers: Headers) -> Any:
        if data is None:
            if self.allows_none:
                return None
            raise Undecodable(
                f"a null {self.name}: if tombstones are expected here, annotate the parameter with `… | None`"
            )
        if self.decode_with_headers is not None:
            return self.decode_with_headers(data, headers)
        return self.decode(data)

    def write(self, value: Any) -> tuple[bytes | None, Headers]:
        if value is None:
            if self.allows_none:
                return None, ()
            raise WrongType(f"None for a {self.name}: to send tombstones, declare the topic with `… | None`")
        return self.encode(value), self.headers(value) if self.headers is not None else ()
