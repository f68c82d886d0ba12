"""Any order of appends, reads, truncations, rolls, retention, compaction and restarts agrees with a dict."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from moldau.log import LogConfig, open_log
from moldau.log.cleaner.cleanable import log_to_clean
from moldau.log.cleaner.cleaner import CleanJob
from moldau.records import Codec
from tests.log.helpers import START_MS, KeyValue, ManualClock, batch, read_records, sim_context
from tests.support.sim_disk import SimDisk

KEYS = [b"a", b"b", b"c", b"d"]
keyed = st.tuples(st.sampled_from(KEYS), st.one_of(st.none(), st.binary(max_size=40)))


class LogModel(RuleBasedStateMachine):
    """The model: offset -> record, as if nothing was ever compacted, and the offsets compaction may have taken."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimDisk()
        self.clock = ManualClock()
        self.records: dict[int, KeyValue] = {}
        self.times: dict[int, int] = {}
        self.epoch = 0
        self.flushed = 0
        self.cleaned_to: int | None = None

    @initialize(
        segment_bytes=st.sampled_from([300, 1000, 100_000]),
        interval=st.sampled_from([0, 100, 4096]),
        policy=st.sampled_from([("delete",), ("compact",), ("compact", "delete")]),
    )
    def open(self, segment_bytes: int, interval: int, policy: tuple[str, ...]) -> None:
        self.config = LogConfig(
            segment_bytes=segment_bytes,
            index_interval_bytes=interval,
            cleanup_policy=frozenset(policy),
            retention_ms=100,
            delete_retention_ms=50,
        )
        self.context = sim_context(self.disk, self.clock, open_files=3)
        self.log = open_log(self.context, "/data/t-0", "t", 0, self.config)

    @property
    def compacted(self) -> bool:
        return self.config.compact

    @rule(records=st.lists(keyed, min_size=1, max_size=5), codec=st.sampled_from([Codec.NONE, Codec.LZ4]))
    def append(self, records: list[KeyValue], codec: Codec) -> None:
        first, last, _ = self.log.append_as_leader(batch(records, self.clock.now_ms, codec=codec), self.epoch)
        assert last - first == len(records) - 1
        for index, record in enumerate(records):
            self.records[first + index] = record
            self.times[first + index] = self.clock.now_ms
        self.log.update_high_watermark(self.log.log_end_offset)

    @rule()
    def new_epoch(self) -> None:
        self.epoch += 1

    @rule(ms=st.integers(1, 60))
    def wait(self, ms: int) -> None:
        self.clock.advance(ms)

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def retain(self) -> None:
        self.log.apply_retention()
        self._forget_before_start()

    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        start, end = self.log.log_start_offset, self.log.high_watermark
        self.log.delete_records_before(start + int((end - start) * share))
        self._forget_before_start()

    def _forget_before_start(self) -> None:
        self.records = {o: r for o, r in self.records.items() if o >= self.log.log_start_offset}

    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        # Never into what was compacted: that is below the high watermark, where no follower truncates.
        start, end = max(self.log.log_start_offset, self.cleaned_to or 0), self.log.log_end_offset
        offset = start + int((end - start) * share)
        boundaries = [h.base_offset for s in self.log.segments for _, h in s.headers() if h.last_offset >= offset]
        self.log.truncate_to(offset)
        cut = min([offset, *boundaries]) if offset < end else end
        self.records = {o: r for o, r in self.records.items() if o < cut}
        self.flushed = min(self.flushed, offset)

    @precondition(lambda self: self.compacted)
    @rule()
    def clean(self) -> None:
        job = CleanJob(log_to_clean(self.log, self.cleaned_to, self.clock.now_ms))
        assert job.run_and_finish()
        self.cleaned_to = job.end_offset
        self.flushed = self.log.flushed_offset

    @rule()
    def flush(self) -> None:
        self.log.flush()
        self.flushed = self.log.log_end_offset

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        start, end, mark = self.log.log_start_offset, self.log.log_end_offset, self.log.high_watermark
        recovery_point = end
        if clean:
            self.log.close()
        else:
            recovery_point = self.log.recovery_point
            self.log.release()
        epochs = self.log.epochs.entries
        self.log = open_log(
            self.context,
            "/data/t-0",
            "t",
            0,
            self.config,
            recovery_point=recovery_point,
            log_start_offset=start,
            clean=clean,
        )
        assert self.log.log_start_offset == start
        assert self.log.log_end_offset <= end
        if clean:
            assert self.log.log_end_offset == end
            assert self.log.epochs.entries == [entry for entry in epochs if entry[1] < end]
        assert self.log.log_end_offset >= max(self.records, default=start - 1) + 1 or self.compacted
        self.log.update_high_watermark(mark)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "log"):
            return
        found = read_records(self.log)
        offsets = [record.offset for record in found]
        assert offsets == sorted(set(offsets))
        for record in found:
            assert self.records[record.offset] == (record.key, record.value)
            assert self.times[record.offset] == record.timestamp
        if not self.compacted:
            assert offsets == sorted(self.records)
        else:
            newest = {key: offset for offset, (key, _) in sorted(self.records.items())}
            for offset in newest.values():
                assert offset in offsets or self.records[offset][1] is None
            dirty = [o for o in self.records if self.cleaned_to is None or o >= self.cleaned_to]
            assert set(dirty) <= set(offsets)
        assert self.log.log_start_offset <= self.log.last_stable_offset <= self.log.log_end_offset

    @invariant()
    def finds_times(self) -> None:
        if not hasattr(self, "log") or self.compacted or not self.records:
            return
        for asked in {START_MS, self.clock.now_ms, (START_MS + self.clock.now_ms) // 2}:
            expected = min((o for o in self.records if self.times[o] >= asked), default=None)
            found = self.log.offset_for_timestamp(asked)
            assert (found.offset if found else None) == expected


LogModel.TestCase.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestLogModel = LogModel.TestCase
