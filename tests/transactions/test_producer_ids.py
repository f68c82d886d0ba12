"""Blocks of producer ids: none twice, the next one in time."""

from moldau.transactions import ProducerIdAllocator, init_idempotent
from moldau.wire import messages as m
from moldau.wire.errors import ErrorCode


def block(start: int, length: int = 10, error: ErrorCode = ErrorCode.NONE) -> m.AllocateProducerIdsResponse:
    return m.AllocateProducerIdsResponse(error_code=error, producer_id_start=start, producer_id_len=length)


def deadline(ids: ProducerIdAllocator) -> float | None:
    return ids.next_deadline_ms


def test_asks_before_the_first_producer_comes() -> None:
    ids = ProducerIdAllocator()
    assert ids.claim() is None
    assert deadline(ids) == 0
    assert [ids.poll(0), ids.poll(0)] == [True, False], "one request at a time"
    assert deadline(ids) is None
    assert ids.on_response(block(100), 1) is ErrorCode.NONE
    assert not ids.poll(2), "nothing is wanted now"
    assert ids.claim() == 100


def test_fetches_the_next_block_before_the_first_is_used_up() -> None:
    ids = ProducerIdAllocator()
    ids.poll(0)
    ids.on_response(block(100), 0)
    assert [ids.claim() for _ in range(9)] == list(range(100, 109))
    assert not ids.poll(0)
    assert ids.claim() == 109, "the id at nine tenths asks for more"
    assert ids.poll(0)
    assert ids.claim() is None
    ids.on_response(block(500), 0)
    assert [ids.claim() for _ in range(9)] == list(range(500, 509))


def test_goes_on_with_the_old_block_while_the_next_one_waits() -> None:
    ids = ProducerIdAllocator()
    ids.poll(0)
    ids.on_response(block(0, 100), 0)
    claimed = [ids.claim() for _ in range(91)]
    assert ids.poll(0)
    ids.on_response(block(1_000, 100), 0)
    claimed += [ids.claim() for _ in range(20)]
    assert claimed == [*range(100), *range(1_000, 1_011)]
    assert not ids.poll(0)


def test_tries_again_after_a_pause() -> None:
    ids = ProducerIdAllocator()
    assert ids.poll(0)
    ids.on_failure(10)
    assert not ids.poll(59)
    assert ids.next_deadline_ms == 60
    assert ids.poll(60)
    assert ids.on_response(block(0, 10, ErrorCode.STALE_BROKER_EPOCH), 70) is ErrorCode.STALE_BROKER_EPOCH
    assert not ids.poll(119)
    assert ids.poll(120)
    assert ids.on_response(m.AllocateProducerIdsResponse(error_code=9_999), 130) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert ids.poll(180)
    ids.on_response(block(0), 190)
    assert ids.claim() == 0


def test_a_block_from_the_past_is_refused() -> None:
    ids = ProducerIdAllocator()
    ids.poll(0)
    ids.on_response(block(100), 0)
    while ids.claim() is not None:
        pass
    for start, length in ((100, 10), (95, 10), (-5, 10), (200, 0), (2**63 - 5, 10)):
        assert ids.poll(1_000_000)
        assert ids.on_response(block(start, length), 0) is ErrorCode.UNKNOWN_SERVER_ERROR
        assert ids.claim() is None
    assert ids.poll(1_000_000)
    ids.on_response(block(2**63 - 10, 10), 0)
    assert ids.claim() == 2**63 - 10


def test_idempotent_producers_get_an_id_at_epoch_0() -> None:
    ids = ProducerIdAllocator()
    refused = init_idempotent(ids)
    assert (refused.error_code, refused.producer_id) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, -1)
    ids.poll(0)
    ids.on_response(block(7), 0)
    granted = init_idempotent(ids)
    assert (granted.error_code, granted.producer_id, granted.producer_epoch) == (ErrorCode.NONE, 7, 0)
