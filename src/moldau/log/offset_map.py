"""The newest offset of every key in the dirty part of a log, in bounded memory.

Short keys are kept as they are. Longer ones by a 128-bit digest that is keyed with a secret of the cleaning round, so
nobody can choose two keys that collide. When the map is full, the round ends there and the next one goes on.
"""

import secrets
from collections.abc import Iterable
from hashlib import blake2b

# Measured with tracemalloc: an entry of a dict with a 16-byte key and an offset above 2^30, the table half empty.
ENTRY_BYTES = 200
KEPT_WHOLE_BYTES = 16
_DIGEST_BYTES = 16


class OffsetMap:
    __slots__ = ("_newest", "_secret", "latest_offset", "max_entries")

    def __init__(self, memory_bytes: int) -> None:
        self.max_entries = max(1, memory_bytes // ENTRY_BYTES)
        self.latest_offset = -1  # everything up to here is in the map
        self._newest: dict[bytes, int] = {}
        self._secret = secrets.token_bytes(_DIGEST_BYTES)

    def __len__(self) -> int:
        return len(self._newest)

    @property
    def is_full(self) -> bool:
        return len(self._newest) >= self.max_entries

    def put_all(self, keys_and_offsets: Iterable[tuple[bytes, int]]) -> None:
        """Offsets come in order, so the last one put is the newest."""
        newest, digest = self._newest, self.digest
        for key, offset in keys_and_offsets:
            newest[key if len(key) <= KEPT_WHOLE_BYTES else digest(key)] = offset

    def newest(self, key: bytes) -> int:
        """The newest offset of a key in the dirty part; -1 if it is not there."""
        return self._newest.get(key if len(key) <= KEPT_WHOLE_BYTES else self.digest(key), -1)

    def digest(self, key: bytes) -> bytes:
        return blake2b(key, digest_size=_DIGEST_BYTES, key=self._secret).digest()
