"""Producer ids for this broker, from blocks of 1,000 that the controller hands out.

Pure: the broker asks `poll` whether to send AllocateProducerIds and reports how that went. Invariants: an id is
given out once; at most one request is under way; the next block is asked for before the current one is used up, so
that nobody waits.
"""

from __future__ import annotations

from moldau.transactions.metadata import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from moldau.transactions.replies import error_code
from moldau.wire import messages as m
from moldau.wire.errors import ErrorCode

BLOCK_SIZE = 1_000
_PREFETCH_AT = 0.9
_RETRY_BACKOFF_MS = 50
_MAX_PRODUCER_ID = 2**63 - 1


class ProducerIdAllocator:
    __slots__ = ("_block", "_is_in_flight", "_is_wanted", "_next_block", "_prefetch_at", "_retry_at_ms")

    def __init__(self) -> None:
        self._block = range(0)
        self._next_block: range | None = None
        self._prefetch_at = -1
        self._is_wanted = True  # before the first producer comes
        self._is_in_flight = False
        self._retry_at_ms = 0.0

    def claim(self) -> int | None:
        """The next producer id, or None: the block is used up, and the next one has to come first (then `poll`
        asks)."""
        if not self._block:
            if self._next_block is None:
                self._is_wanted = True
                return None
            self._use(self._next_block)
            self._next_block = None
        producer_id, self._block = self._block[0], self._block[1:]
        if producer_id >= self._prefetch_at and self._next_block is None:
            self._is_wanted = True
        return producer_id

    def _use(self, block: range) -> None:
        self._block = block
        self._prefetch_at = block.start + int(len(block) * _PREFETCH_AT)

    def poll(self, monotonic_ms: float) -> bool:
        """True: send AllocateProducerIds now; `on_response` or `on_failure` must follow."""
        if not self._is_wanted or self._is_in_flight or monotonic_ms < self._retry_at_ms:
            return False
        self._is_in_flight = True
        return True

    @property
    def next_deadline_ms(self) -> float | None:
        """When `poll` would say yes; None while there is nothing to wait for."""
        return self._retry_at_ms if self._is_wanted and not self._is_in_flight else None

    def on_response(self, response: m.AllocateProducerIdsResponse, monotonic_ms: float) -> ErrorCode:
        """Take the block; any error (a stale broker epoch, say) is tried again after a pause. Returns the error,
        for the log."""
        error = error_code(response.error_code)
        start, length = response.producer_id_start, response.producer_id_len
        if error is ErrorCode.NONE and not self._is_sane(start, length):
            error = ErrorCode.UNKNOWN_SERVER_ERROR
        if error is not ErrorCode.NONE:
            self.on_failure(monotonic_ms)
            return error
        self._is_in_flight = self._is_wanted = False
        self._retry_at_ms = 0.0
        block = range(start, start + length)
        if self._block:
            self._next_block = block
        else:
            self._use(block)
        return error

    def _is_sane(self, start: int, length: int) -> bool:
        # Ids only grow. A block from the past (a controller that lost its log) would give ids out twice.
        return start >= self._block.stop and length > 0 and start + length - 1 <= _MAX_PRODUCER_ID

    def on_failure(self, monotonic_ms: float) -> None:
        """No answer. Whether the controller gave a block away is unknown; then that block stays unused."""
        self._is_in_flight = False
        self._retry_at_ms = monotonic_ms + _RETRY_BACKOFF_MS


def init_idempotent(producer_ids: ProducerIdAllocator) -> m.InitProducerIdResponse:
    """InitProducerId without a transactional id: any broker gives a fresh producer id at epoch 0."""
    producer_id = producer_ids.claim()
    if producer_id is None:
        return m.InitProducerIdResponse(
            error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            producer_id=NO_PRODUCER_ID,
            producer_epoch=NO_PRODUCER_EPOCH,
        )
    return m.InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
