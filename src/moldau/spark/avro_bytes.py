"""Bytes that end where they end: for fields that a reader's schema does not have, which fastavro skips unseen."""

from __future__ import annotations

import io


class ExactBytes(io.BytesIO):
    """What is asked for, or an error. BytesIO gives less at the end, and all of the rest for a negative length."""

    def read(self, size: int | None = -1, /) -> bytes:
        found = super().read(size)
        if len(found) != size:
            raise EOFError("it ends too early, or a length in it is none")
        return found
