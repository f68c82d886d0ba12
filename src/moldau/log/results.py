"""What the log answers: values, nothing else."""

from typing import NamedTuple

from moldau.seams import FileRegion

UNKNOWN_OFFSET = -1


class AppendInfo(NamedTuple):
    first_offset: int
    last_offset: int
    log_append_time: int  # -1 unless the topic stamps it
    log_start_offset: int
    duplicate: bool = False  # a repetition of a batch that is in the log: the offsets are those of then
    needs_flush: bool = False  # flush.messages demands a flush before this append counts


new_tuple = tuple.__new__  # a NamedTuple without its constructor, for the hot path: half the time


class ReadInfo(NamedTuple):
    """Whole batches from the one that holds the asked offset; the last may be cut by the byte limit."""

    region: FileRegion | None
    first_offset: int  # base offset of the first batch in the region, or the asked offset
    segment_base_offset: int
    position: int
    first_batch_incomplete: bool = False

    @property
    def length(self) -> int:
        return self.region.length if self.region else 0


class ActiveProducer(NamedTuple):
    """A row of DescribeProducers."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int
