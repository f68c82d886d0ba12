"""What handlers raise when a request cannot be done."""

from __future__ import annotations


class Refusal(Exception):
    """The request cannot be done; the text says why and what to do."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
