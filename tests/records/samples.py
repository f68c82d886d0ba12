"""Records and batches for the tests of this room."""

from itertools import pairwise

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from moldau.records import BatchBuilder, BatchOptions, Codec, Headers, Record, iter_records
from moldau.records.columns import BinaryColumn, Columns

NOW_MS = 1_700_000_000_000

# A busy machine is no failure.
unhurried = settings(deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])

blobs = st.none() | st.binary(max_size=40) | st.integers(60, 300).map(lambda size: b"x" * size)
headers = st.lists(st.tuples(st.binary(max_size=8), blobs), max_size=3).map(tuple)
# Deltas around the borders of one, two and three byte varints, and beyond.
timestamps = st.integers(-200, 200).map(lambda delta: NOW_MS + delta) | st.integers(-1, 2**45)


@st.composite
def record_lists(draw: st.DrawFn, min_size: int = 0, max_size: int = 20) -> list[Record]:
    """Records whose offsets grow, with gaps now and then."""
    records = []
    offset = draw(st.integers(0, 2**40))
    for _ in range(draw(st.integers(min_size, max_size))):
        records.append(Record(offset, draw(timestamps), draw(blobs), draw(blobs), draw(headers)))
        offset += draw(st.sampled_from([1, 1, 1, 1, 2, 63, 64, 8191, 8192, 100_000]))
    return records


def plain_records(count: int, base_offset: int = 0) -> list[Record]:
    """The everyday kind: a short key, a value of some bytes, no headers, timestamps that grow slowly."""
    return [
        Record(base_offset + index, NOW_MS + index // 10, b"key-%d" % index, b"value of record %d" % index * 3)
        for index in range(count)
    ]


def mixed_records(base_offset: int = 0) -> list[Record]:
    """One of each kind that is read or written on a road of its own."""
    fields: list[tuple[bytes | None, bytes | None, tuple[tuple[bytes, bytes | None], ...]]] = [
        (b"key", b"value", ()),
        (None, b"no key", ()),
        (b"tombstone", None, ()),
        (None, None, ()),
        (b"", b"", ()),
        (b"headers", b"two", ((b"name", b"content"), (b"empty", b""), (b"null", None), (b"", b"nameless"))),
        (b"k" * 63, b"v" * 63, ()),
        (b"k" * 64, b"v" * 64, ()),
        (b"k" * 8191, b"v" * 8191, ()),
        (b"k" * 8192, b"v" * 70_000, ((b"n" * 200, b"c" * 9000),)),
        (None, None, ((b"only", b"headers"),)),
    ]
    deltas = [0, 0, 63, -64, 64, -65, 8191, 8192, -8193, 10**9, -(10**12)]
    return [
        Record(base_offset + index, NOW_MS + delta, key, value, headers)
        for index, (delta, (key, value, headers)) in enumerate(zip(deltas, fields, strict=True))
    ]


def batch_of(records: list[Record], codec: Codec = Codec.NONE, **options: int | bool) -> bytes:
    """A batch that starts at its first record."""
    base_offset = records[0].offset if records else 0
    builder = BatchBuilder(BatchOptions(base_offset=base_offset, codec=codec, **options))  # type: ignore[arg-type]  # all are int or bool
    builder.extend(records)
    return bytes(builder.finish())


def read(batch: bytes) -> list[Record]:
    return list(iter_records(batch))


def strings(data: bytes | bytearray, column: BinaryColumn) -> list[bytes | None]:
    return [
        None if length < 0 else bytes(data[start : start + length])
        for start, length in zip(column.starts.tolist(), column.lengths.tolist(), strict=True)
    ]


def as_records(columns: Columns) -> list[Record]:
    """Columns turned back into records."""
    headers: list[Headers] = [()] * len(columns)
    if columns.headers is not None:
        names, values = strings(columns.data, columns.headers.names), strings(columns.data, columns.headers.values)
        pairs = [(name or b"", value) for name, value in zip(names, values, strict=True)]
        borders = columns.headers.offsets.tolist()
        headers = [tuple(pairs[start:end]) for start, end in pairwise(borders)]
    return [
        Record(*fields)
        for fields in zip(
            columns.offsets.tolist(),
            columns.timestamps.tolist(),
            strings(columns.data, columns.keys),
            strings(columns.data, columns.values),
            headers,
            strict=True,
        )
    ]
