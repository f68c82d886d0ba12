"""Randomness. One injected source, so that a seed replays a run exactly."""

import os
import random
from typing import Protocol


class Random(Protocol):
    def below(self, bound: int) -> int:
        """A whole number in [0, bound)."""

    def fraction(self) -> float:
        """A float in [0, 1)."""

    def uuid(self) -> bytes:
        """16 random bytes that Kafka accepts as an id: version 4, never one of the reserved ids."""


def _version4(raw: bytes) -> bytes:
    value = bytearray(raw)
    value[6] = (value[6] & 0x0F) | 0x40
    value[8] = (value[8] & 0x3F) | 0x80
    # Kafka also avoids ids whose base64 form starts with "-": they look like command-line options.
    if value[0] >> 2 == 62:
        value[0] &= 0x7F
    return bytes(value)


class SystemRandom:
    """The operating system's randomness, for production."""

    def __init__(self) -> None:
        self._source = random.SystemRandom()

    def below(self, bound: int) -> int:
        return self._source.randrange(bound)

    def fraction(self) -> float:
        return self._source.random()

    def uuid(self) -> bytes:
        return _version4(os.urandom(16))


class SeededRandom:
    """A replayable source, for the simulator and for tests."""

    def __init__(self, seed: int) -> None:
        self._source = random.Random(seed)  # noqa: S311 - replayable on purpose; never used for secrets
        self._bits = self._source.getrandbits
        self.fraction = self._source.random  # asked for at every simulated frame

    def below(self, bound: int) -> int:
        """As `randrange` chooses it, by a shorter way."""
        if bound <= 0:
            raise ValueError(f"nothing is below {bound}")
        bits = bound.bit_length()
        number = self._bits(bits)
        while number >= bound:
            number = self._bits(bits)
        return number

    def uuid(self) -> bytes:
        return _version4(self._source.randbytes(16))
