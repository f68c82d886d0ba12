"""Which batches get an index entry: Kafka's rule, whichever way the batches came in."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from moldau.log import LogConfig, PartitionLog
from tests.log.helpers import batch, sim_context, sim_log

INTERVAL_BYTES = 300


@dataclass
class Kafka:
    """`LogSegment.append`: an entry if more than the interval was written since the last, its batch included."""

    entries: list[tuple[int, int]] = field(default_factory=list)
    batches: list[tuple[int, int]] = field(default_factory=list)  # last offset, size
    since_bytes: int = 0

    def add(self, last_offset: int, size: int) -> None:
        if self.since_bytes > INTERVAL_BYTES:
            self.entries.append((last_offset, sum(each for _, each in self.batches)))
            self.since_bytes = 0
        self.since_bytes += size
        self.batches.append((last_offset, size))

    def truncate_to(self, offset: int) -> None:
        self.entries = [entry for entry in self.entries if entry[0] < offset]
        self.batches = [each for each in self.batches if each[0] < offset]
        self.since_bytes = 0

    def rebuild(self) -> None:
        batches, self.entries, self.batches, self.since_bytes = self.batches, [], [], 0
        for each in batches:
            self.add(*each)


sizes = st.integers(1, 400)
steps = st.one_of(
    st.tuples(st.just("lead"), sizes),
    st.tuples(st.just("lead"), sizes),  # twice, because the short way begins with the second
    st.tuples(st.just("follow"), st.lists(sizes, min_size=1, max_size=6)),
    st.tuples(st.just("truncate"), st.integers(0, 40)),
    st.tuples(st.just("rebuild"), st.none()),
)


@given(st.lists(steps, max_size=40))
def test_entries_are_where_kafka_puts_them(plan: list[tuple[str, object]]) -> None:
    log = sim_log(sim_context(), LogConfig(index_interval_bytes=INTERVAL_BYTES))
    kafka = Kafka()
    for what, how in plan:
        _take(log, kafka, what, how)
        index = log.active_segment.offset_index
        assert [index.entry(slot) for slot in range(index.file.count)] == kafka.entries


def _take(log: PartitionLog, kafka: Kafka, what: str, how: object) -> None:
    match what, how:
        case "lead", int():
            data = batch([b"x" * how])
            _, last_offset, _ = log.append_as_leader(data, 1)
            kafka.add(last_offset, len(data))
        case "follow", list():
            run = bytearray()
            for offset, size in enumerate(how, log.log_end_offset):
                data = batch([b"x" * size], base_offset=offset, leader_epoch=1)
                kafka.add(offset, len(data))
                run += data
            log.append_as_follower(bytes(run))
        case "truncate", int() if how < log.log_end_offset:
            log.truncate_to(how)
            kafka.truncate_to(how)
        case "rebuild", None if log.log_end_offset:
            log.active_segment.rebuild_indexes()
            kafka.rebuild()
        case _:
            return
