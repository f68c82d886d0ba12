"""What the log answers: values, nothing else."""

from typing import NamedTuple

from moldau.seams import FileRegion

UNKNOWN_OFFSET = -1


# First offset, last offset, append time (-1 unless the topic stamps it). For a repetition of a batch that is in the log
# those of then. Not a NamedTuple: to make one takes as long as all comparisons of an append together.
Appended = tuple[int, int, int]


class ReadInfo(NamedTuple):
    """Whole batches from the one that holds the asked offset; the byte limit may leave the last one incomplete."""

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
