"""The newest offset of every key in the dirty part of a log, in bounded memory.

Short keys are kept as they are. Longer ones by a 128-bit digest that is keyed with a secret of the cleaning round, so
nobody can choose two keys that collide. When the map is full, the round ends there and the next one goes on.
"""

import secrets
from hashlib import blake2b

# Measured with tracemalloc: an entry of a dict with a 16-byte key and an offset above 2^30, the table half empty.
ENTRY_BYTES = 200
_KEPT_WHOLE_BYTES = 16
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

    def put(self, key: bytes, offset: int) -> None:
        """Offsets come in order, so the last one put is the newest."""
        if len(key) > _KEPT_WHOLE_BYTES:
            key = blake2b(key, digest_size=_DIGEST_BYTES, key=self._secret).digest()
        self._newest[key] = offset

    def newest(self, key: bytes) -> int:
        """The newest offset of a key in the dirty part; -1 if it is not there."""
        if len(key) > _KEPT_WHOLE_BYTES:
            key = blake2b(key, digest_size=_DIGEST_BYTES, key=self._secret).digest()
        return self._newest.get(key, -1)
