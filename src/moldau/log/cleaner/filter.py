"""What compaction keeps of a batch.

Of every key the newest record stays; a tombstone stays `delete.retention.ms` after the first cleaning that saw it (its
batch then carries that horizon); records of aborted transactions go; a transaction marker goes once none of its
transaction's records is left, after the same delay. A batch that holds a producer's last sequence number, or the last
offset of a cleaned segment, is kept as an empty header. Offsets, order and what is kept of a batch never change.
"""

from bisect import bisect_left
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import compress

from moldau.log.cleaner.chunks import Chunk, CleanOutput
from moldau.log.cleaner.offset_map import OffsetMap
from moldau.log.cleaner.scan import ScannedRecords, rebuild, scan_records
from moldau.log.errors import CorruptRecord
from moldau.log.index.txn_index import AbortedTxn
from moldau.log.validation import read_marker
from moldau.records import (
    LOG_OVERHEAD_BYTES,
    BatchBuilder,
    BatchHeader,
    BatchOptions,
    CorruptBatch,
    RecordsError,
    check_crc,
    empty_batch,
    read_header,
)
from moldau.records.batch import CONTROL_FLAG, TRANSACTIONAL_FLAG
from moldau.records.reader import RecordTuple, iter_chunks, read_body

_OF_TRANSACTIONS = TRANSACTIONAL_FLAG | CONTROL_FLAG


class TransactionState:
    """Follows transactions through the log while it is read in order."""

    __slots__ = ("_aborted", "_ongoing_aborted", "_ongoing_committed", "_seen")

    def __init__(self) -> None:
        self._aborted: list[tuple[int, AbortedTxn]] = []  # a heap by first offset: not begun yet
        self._ongoing_aborted: dict[int, AbortedTxn] = {}
        self._seen: set[int] = set()  # producers of ongoing aborted transactions with batches left in the log
        self._ongoing_committed: set[int] = set()

    def add_aborted(self, transactions: list[AbortedTxn]) -> None:
        for transaction in transactions:
            heappush(self._aborted, (transaction.first_offset, transaction))

    def _begin_up_to(self, offset: int) -> None:
        while self._aborted and self._aborted[0][0] <= offset:
            transaction = heappop(self._aborted)[1]
            self._ongoing_aborted.setdefault(transaction.producer_id, transaction)

    def on_data(self, header: BatchHeader) -> bool:
        """Whether the batch belongs to an aborted transaction."""
        if self._aborted:
            self._begin_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        if header.producer_id in self._ongoing_aborted:
            self._seen.add(header.producer_id)
            return True
        self._ongoing_committed.add(header.producer_id)
        return False

    def on_control(self, header: BatchHeader, batch: memoryview) -> tuple[bool, AbortedTxn | None]:
        """Whether the marker's transaction has no batches left; and the transaction, if its entry must stay indexed."""
        self._begin_up_to(header.last_offset)
        if not header.record_count:
            return True, None
        marker = read_marker(batch, header)
        if marker is None:
            return False, None
        if marker.committed:
            had_batches = header.producer_id in self._ongoing_committed
            self._ongoing_committed.discard(header.producer_id)
            return not had_batches, None
        aborted = self._ongoing_aborted.pop(header.producer_id, None)
        if aborted is not None and header.producer_id in self._seen:
            self._seen.discard(header.producer_id)
            return False, aborted
        return True, None


@dataclass(slots=True)
class CleanStats:
    """What a cleaning read, kept and dropped."""

    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_written: int = 0


@dataclass(slots=True)
class CleanFilter:
    """Decides which records of a batch survive."""

    newest: OffsetMap
    now_ms: int
    delete_retention_ms: int
    segment_ends: frozenset[int]  # of the cleaned segments: a batch before one of these keeps at least its header
    last_offsets: dict[int, tuple[int, int]]  # producer id -> (last data offset or -1, epoch)
    max_decompressed_bytes: int
    transactions: TransactionState = field(default_factory=TransactionState)
    stats: CleanStats = field(default_factory=CleanStats)
    _wanted_offsets: set[int] = field(init=False)  # a batch that ends here may be kept without records

    def __post_init__(self) -> None:
        self._wanted_offsets = {offset for offset, _ in self.last_offsets.values()}
        self._wanted_offsets.update(offset - 1 for offset in self.segment_ends)

    def clean_chunk(self, chunk: Chunk, output: CleanOutput) -> list[AbortedTxn]:
        """Pass on what is left of a chunk. The aborted transactions that stay indexed.

        Where a whole batch is in the map, that knows which of its offsets stay, so most batches need no other look.
        The marks are in order as the batches are: they are gone through side by side. Batches that stay as they are
        and follow each other are copied together.
        """
        data, newest, stats, wanted_offsets = chunk.data, self.newest, self.stats, self._wanted_offsets
        marks, first_offset, latest_offset = newest.marks, newest.first_offset, newest.latest_offset
        slot = bisect_left(marks, chunk.batches[0][0] << 1)
        indexed: list[AbortedTxn] = []
        run_start = run_end = end = 0  # the run: bytes that stay as they are, and were not copied yet
        single_records = 0  # that stay as they are
        for base_offset, length, _, _, attributes, delta, max_timestamp, count in chunk.batches:
            start = end
            end += LOG_OVERHEAD_BYTES + length
            last_offset = base_offset + delta
            stays = False
            if not attributes & _OF_TRANSACTIONS and base_offset >= first_offset and last_offset <= latest_offset:
                mark = marks[slot]
                if mark < base_offset << 1:
                    slot = bisect_left(marks, base_offset << 1, slot)
                    mark = marks[slot]
                if mark >> 1 > last_offset:
                    if last_offset not in wanted_offsets:
                        continue
                elif count == 1 and not mark & 1:
                    stays = True
                    slot += 1
                    single_records += 1
            if not stays:
                batch = memoryview(data)[start:end]
                kept = self._clean(batch, indexed)
                if kept is None:
                    continue
                if kept is not batch:
                    output.add_bytes(data[run_start:run_end])
                    output.add(kept)
                    run_start = run_end = end
                    continue
            if start != run_end:
                output.add_bytes(data[run_start:run_end])  # a copy: one batch must not keep the chunk in memory
                run_start = start
            run_end = end
            output.batches.append((output.size + start - run_start, end - start, last_offset, max_timestamp))
        output.add_bytes(data[run_start:run_end])
        stats.bytes_read += chunk.size
        stats.records_read += chunk.record_count
        stats.records_written += single_records
        return indexed

    def _clean(self, batch: memoryview, indexed: list[AbortedTxn]) -> bytearray | memoryview | None:
        """What is left of a batch: itself, less, or nothing."""
        header = read_header(batch)
        try:
            check_crc(batch, 0, header)
        except CorruptBatch as error:
            raise CorruptRecord(f"the batch at offset {header.base_offset} cannot be cleaned: {error}") from error
        if header.is_control:
            obsolete, aborted = self.transactions.on_control(header, batch)
            if aborted is not None:
                indexed.append(aborted)
            horizon = header.delete_horizon_ms
            expired = obsolete and (not header.record_count or (horizon is not None and horizon <= self.now_ms))
            return self._keep_control(header, batch, obsolete=obsolete, expired=expired)
        if self.transactions.on_data(header):
            return self._keep_header(header)
        return self._keep_records(header, batch)

    def _keep_header(self, header: BatchHeader) -> bytearray | None:
        """For a batch without records: its header, if anybody needs it."""
        if header.next_offset in self.segment_ends or self._is_last_of_producer(header):
            return empty_batch(header)
        return None

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        last = self.last_offsets.get(header.producer_id) if header.producer_id >= 0 else None
        if last is None:
            return False
        last_data_offset, epoch = last
        if last_data_offset >= 0:
            return header.last_offset == last_data_offset
        return header.is_control and header.producer_epoch == epoch

    def _keep_control(
        self, header: BatchHeader, batch: memoryview, *, obsolete: bool, expired: bool
    ) -> bytearray | memoryview | None:
        if expired:
            return self._keep_header(header)
        if obsolete and header.delete_horizon_ms is None:
            return self._rewrite(header, self._records(header, batch), self.now_ms + self.delete_retention_ms)
        self.stats.records_written += header.record_count
        return batch

    def _keep_records(self, header: BatchHeader, batch: memoryview) -> bytearray | memoryview | None:
        """Where the whole batch is in the map, that knows which offsets stay; elsewhere the keys must be asked."""
        newest = self.newest
        if header.base_offset < newest.first_offset or header.last_offset > newest.latest_offset:
            return self._keep_by_key(header, batch)
        marks = newest.marks_between(header.base_offset, header.last_offset)
        if not marks:
            return self._keep_header(header)
        if any(mark & 1 for mark in marks):
            return self._keep_by_key(header, batch)  # tombstones have rules of their own
        if len(marks) == header.record_count:
            self.stats.records_written += len(marks)
            return batch
        scanned = self._scan(header, batch)
        newest_marks = frozenset(marks)
        kept = [mark in newest_marks for mark in scanned.marks]
        self.stats.records_written += sum(kept)
        return rebuild(header, scanned, kept)

    def _keep_by_key(self, header: BatchHeader, batch: memoryview) -> bytearray | memoryview | None:
        horizon = header.delete_horizon_ms
        scanned = self._scan(header, batch)
        if header.base_offset > self.newest.latest_offset:  # the map ends with a batch: nothing is known of later ones
            kept = [True] * header.record_count
        else:
            kept = self.newest.are_newest(scanned)
            if horizon is not None and self.now_ms >= horizon:
                kept = [keep and not mark & 1 for keep, mark in zip(kept, scanned.marks, strict=True)]
        count = sum(kept)
        if not count:
            return self._keep_header(header)
        if horizon is None and any(mark & 1 for keep, mark in zip(kept, scanned.marks, strict=True) if keep):
            records = list(compress(self._records(header, batch), kept))
            return self._rewrite(header, records, self.now_ms + self.delete_retention_ms)
        self.stats.records_written += count
        return batch if count == header.record_count else rebuild(header, scanned, kept)

    def _scan(self, header: BatchHeader, batch: memoryview) -> ScannedRecords:
        try:
            body = read_body(batch, 0, header, self.max_decompressed_bytes)
            return scan_records(body, header.record_count, header.base_offset)
        except RecordsError as error:
            raise CorruptRecord(f"the batch at offset {header.base_offset} cannot be cleaned: {error}") from error

    def _records(self, header: BatchHeader, batch: memoryview) -> list[RecordTuple]:
        try:
            body = read_body(batch, 0, header, self.max_decompressed_bytes)
            return [record for chunk in iter_chunks(body, header) for record in chunk]
        except RecordsError as error:
            raise CorruptRecord(f"the batch at offset {header.base_offset} cannot be cleaned: {error}") from error

    def _rewrite(self, header: BatchHeader, records: list[RecordTuple], horizon_ms: int) -> bytearray:
        """The batch with a delete horizon: it takes the place of the base timestamp, so every record changes."""
        builder = BatchBuilder(
            BatchOptions(
                base_offset=header.base_offset,
                codec=header.codec,
                leader_epoch=header.leader_epoch,
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                base_sequence=header.base_sequence,
                transactional=header.is_transactional,
                control=header.is_control,
                log_append_time_ms=header.max_timestamp if header.is_log_append_time else None,
                delete_horizon_ms=horizon_ms,
            )
        )
        builder.extend(records)
        self.stats.records_written += len(records)
        # The last offset stays, even if its record went: it carries the last sequence number.
        return builder.finish(header.last_offset)
