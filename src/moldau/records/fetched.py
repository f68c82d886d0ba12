"""What a consumer may see of fetched bytes: no control batches, nothing of aborted transactions, nothing twice.

Brokers send whole batches from before the offset that was asked for, transaction markers, and aborted data together
with the list of aborted transactions; leaving them out is the consumer's part of Kafka's protocol.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from moldau.records.batch import BatchHeader, Buffer, check_crc, iter_batches
from moldau.records.control import read_end_transaction_marker


class AbortedTransaction(NamedTuple):
    """As a Fetch response lists them: from `first_offset` to its abort marker, the producer's batches do not count."""

    producer_id: int
    first_offset: int


class FetchedBatch(NamedTuple):
    position: int
    header: BatchHeader
    visible: bool


def iter_fetched(
    buffer: Buffer,
    fetch_offset: int = 0,
    aborted: Iterable[tuple[int, int]] = (),
    *,
    check_crcs: bool = True,
) -> Iterator[FetchedBatch]:
    """The whole batches of a fetch that end at `fetch_offset` or later, and whether their records are for the reader.

    `aborted` is what the response lists as (producer id, first offset); a read_uncommitted reader passes nothing.
    A visible batch may begin before `fetch_offset`: its earlier records are for the caller to skip.
    """
    pending = sorted(aborted, key=lambda transaction: transaction[1], reverse=True)
    ongoing: set[int] = set()
    for position, header in iter_batches(buffer):
        if header.last_offset < fetch_offset:
            continue
        if check_crcs:
            check_crc(buffer, position, header)
        while pending and pending[-1][1] <= header.last_offset:
            ongoing.add(pending.pop()[0])
        if header.is_control:
            if header.producer_id in ongoing:
                marker = read_end_transaction_marker(buffer, position, header)
                if marker is not None and not marker.committed:
                    ongoing.discard(header.producer_id)
            yield FetchedBatch(position, header, visible=False)
        else:
            hidden = header.is_transactional and header.producer_id in ongoing
            yield FetchedBatch(position, header, visible=not hidden)
