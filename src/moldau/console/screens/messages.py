"""Messages of a topic: pages of them, one of them, the live tail, sending, and taking them along in a file."""

from __future__ import annotations

import binascii
import csv
import io
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from confluent_kafka import TopicPartition
from starlette.responses import Response, StreamingResponse

from moldau.console.cluster.model import Topic
from moldau.console.gate.refusal import Refusal
from moldau.console.messages import filters, reading
from moldau.console.messages.decoding import FORMATS, Decoded, coloured, compact
from moldau.console.messages.reading import Budget, Page
from moldau.console.messages.records import Lens, Record, Row, rows_through
from moldau.console.messages.text import visible
from moldau.console.screens import common
from moldau.console.visit import Visit

_ROWS = 50
_ROWS_MAX = 500
_FILE_ROWS_MAX = 50_000
_SHOWN_CHARACTERS = 200_000
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
_STARTS = ("newest", "oldest", "offset", "time", "before", "after")
_FILE_BUDGET = Budget(rows=2_000_000, seconds=60.0, bytes=2 << 30)
_KEPT_BYTES_MAX = 32 << 20
_FILE_BYTES_MAX = 256 << 20
_VALUE_BYTES_MAX = 8 << 20


@dataclass(slots=True, frozen=True)
class Wanted:
    """What an address asks for."""

    topic: str
    partitions: frozenset[int] | None
    start: str
    at: str  # an offset, a time, or positions, by `start`
    limit: int
    filter: str
    value_as: str
    key_as: str
    is_committed: bool
    record_bytes: int = 0  # about

    def link(self, **changes: str) -> str:
        asked = {
            "start": self.start,
            "at": self.at,
            "partition": "" if self.partitions is None else ",".join(str(each) for each in sorted(self.partitions)),
            "limit": "" if self.limit == _ROWS else str(self.limit),
            "filter": self.filter,
            "as": "" if self.value_as == "auto" else self.value_as,
            "key_as": "" if self.key_as == "auto" else self.key_as,
            "uncommitted": "" if self.is_committed else "1",
            **changes,
        }
        return "?" + urlencode({name: value for name, value in asked.items() if value})


def wanted_by(visit: Visit, topic: Topic) -> Wanted:
    start = visit.query("start", "newest")
    if start not in _STARTS:
        raise Refusal(400, f"start is one of {', '.join(_STARTS)}.")
    partition = visit.query("partition").strip()
    partitions = None
    if partition:
        most = len(topic.partitions) - 1
        partitions = frozenset(common.whole(each, "A partition", 0, most) for each in partition.split(",")[:1_000])
    for name in ("as", "key_as"):
        if visit.query(name, "auto") not in FORMATS:
            raise Refusal(400, f"{name} is one of {', '.join(FORMATS)}.")
    return Wanted(
        topic.name,
        partitions,
        start,
        visit.query("at").strip()[:4_000],
        visit.number("limit", _ROWS, 1, _ROWS_MAX),
        visit.query("filter").strip(),
        visit.query("as", "auto"),
        visit.query("key_as", "auto"),
        visit.query("uncommitted") != "1",
        (topic.size_bytes or 0) // max(1, topic.replication) // max(1, topic.records),
    )


def _lens(visit: Visit, wanted: Wanted) -> Lens:
    house = visit.house
    return Lens(wanted.topic, house.masks, house.registry, wanted.key_as, wanted.value_as)


def time_ms(text: str) -> int:
    """Milliseconds since 1970, or a time as ISO 8601 writes it (UTC if it does not say)."""
    if text.lstrip("-").isdecimal() and len(text) < 18:
        return int(text)
    try:
        found = datetime.fromisoformat(text)
        return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1_000)
    except (ValueError, OverflowError) as error:
        raise Refusal(
            400, f"{text[:40]!r} is no time: write 2026-11-16T09:30:00Z, or milliseconds since 1970."
        ) from error


def _positions(text: str) -> dict[int, int]:
    """`0:17,1:4`, as the links of a page say it."""
    found = {}
    for part in filter(None, text.split(",")):
        index, _, offset = part.partition(":")
        found[common.whole(index, "A partition", 0, 1 << 31)] = common.whole(offset, "An offset", 0, 1 << 62)
    return found


def read(client: dict[str, Any], wanted: Wanted, accept: Any, budget: Budget, limit: int | None = None) -> Page[Any]:
    """Blocks."""
    reader = reading.consumer(client, is_committed=wanted.is_committed)
    most = limit or wanted.limit
    try:
        bounds = reading.bounds(reader, wanted.topic, set(wanted.partitions) if wanted.partitions is not None else None)
        if wanted.start == "newest":
            return reading.read_newest(reader, wanted.topic, bounds, most, accept, budget, wanted.record_bytes)
        if wanted.start == "before":
            positions = _positions(wanted.at)
            ranges = {i: (low, max(low, min(high, positions.get(i, high)))) for i, (low, high) in bounds.items()}
            return reading.read_newest(reader, wanted.topic, ranges, most, accept, budget, wanted.record_bytes)
        starts = _starts(reader, wanted, bounds)
        ranges = {i: (max(low, min(high, starts.get(i, low))), high) for i, (low, high) in bounds.items()}
        return reading.read_forward(reader, wanted.topic, ranges, most, accept, budget)
    finally:
        reader.close()


def _starts(reader: Any, wanted: Wanted, bounds: dict[int, tuple[int, int]]) -> dict[int, int]:
    if wanted.start == "after":
        return _positions(wanted.at)
    if wanted.start == "offset":
        offset = common.whole(wanted.at or "0", "The offset", 0, 1 << 62)
        return dict.fromkeys(bounds, offset)
    if wanted.start == "time":
        when = time_ms(wanted.at or "0")
        asked = [TopicPartition(wanted.topic, index, when) for index in bounds]
        found = reader.offsets_for_times(asked, timeout=8.0)
        return {each.partition: each.offset if each.offset >= 0 else bounds[each.partition][1] for each in found}
    return {index: low for index, (low, _) in bounds.items()}


def _text(positions: dict[int, int] | None) -> str:
    return ",".join(f"{index}:{offset}" for index, offset in sorted((positions or {}).items()))


async def messages(visit: Visit) -> Response:
    topic = common.topic_of(visit)
    wanted = wanted_by(visit, topic)
    house = visit.house
    if not visit.is_fragment:
        return house.views.page(
            visit, "messages.html", title=topic.name, topic=topic, tab="messages", wanted=wanted, formats=FORMATS
        )
    page = await _page(visit, wanted)
    return common.fragment(
        visit,
        "message_rows.html",
        topic=topic,
        wanted=wanted,
        page=page,
        older=wanted.link(start="before", at=_text(page.older)) if page.older is not None else "",
        newer=wanted.link(start="after", at=_text(page.newer)) if page.newer is not None else "",
        is_masked=house.masks.concern(topic.name),
        away=_away(wanted, topic, page),
    )


def _away(wanted: Wanted, topic: Topic, page: Page[Any]) -> list[int]:
    """Partitions that were asked for and have nobody to read them from."""
    asked = wanted.partitions or {each.index for each in topic.partitions}
    return sorted(asked - page.looked_at)


async def _page(visit: Visit, wanted: Wanted) -> Page[Row]:
    accept = rows_through(_lens(visit, wanted), filters.parse(wanted.filter))
    return await visit.house.ask(read, visit.house.client, wanted, accept, Budget())


async def api_messages(visit: Visit) -> Response:
    topic = common.topic_of(visit)
    wanted = wanted_by(visit, topic)
    lens = _lens(visit, wanted)
    matches = filters.parse(wanted.filter)

    def answer() -> str:
        page = read(visit.house.client, wanted, _kept(lens, matches), Budget())
        body = {
            "records": [record.plain() for record in page.records],
            "older": wanted.link(start="before", at=_text(page.older)) if page.older is not None else None,
            "newer": wanted.link(start="after", at=_text(page.newer)) if page.newer is not None else None,
            "scanned": page.spent.rows,
            "is_cut": page.is_cut,
            "away": _away(wanted, topic, page),
        }
        return json.dumps(body, default=str)

    return Response(await visit.house.ask(answer), media_type="application/json")


def _kept(lens: Lens, matches: filters.Filter | None, most: int = _KEPT_BYTES_MAX) -> Any:
    """What a reader calls for each message: those that are wanted whole, as long as they fit into memory."""
    kept = 0

    def accept(message: Any) -> Record | None:
        nonlocal kept
        if matches is not None and not matches(Record(message, lens)):
            return None
        kept += len(message)
        if kept > most:
            raise Refusal(413, f"That is more than {most >> 20} MiB at once: ask for fewer rows, or filter them.")
        return Record(message, lens)  # a fresh one: what the filter decoded is not kept

    return accept


# ---- one of them ----------------------------------------------------------------------------------------------------


def _one(visit: Visit, lens: Lens, partition: int, offset: int) -> Record:
    """The record at an offset, or the next one behind it if it was compacted away. Blocks."""
    wanted = Wanted(lens.topic, frozenset({partition}), "offset", str(offset), 1, "", "auto", "auto", False)
    page = read(visit.house.client, wanted, lambda message: Record(message, lens), Budget(rows=1_000), 1)
    if not page.records:
        raise Refusal(404, f"{lens.topic}-{partition} has no record at offset {offset} (any more).")
    return page.records[0]  # type: ignore[no-any-return]


def _place(visit: Visit, topic: Topic) -> tuple[int, int]:
    parameters = visit.request.path_params
    partition = common.whole(str(parameters["partition"]), "The partition", 0, len(topic.partitions) - 1)
    return partition, common.whole(str(parameters["offset"]), "The offset", 0, 1 << 62)


async def message(visit: Visit) -> Response:
    topic = common.topic_of(visit)
    partition, offset = _place(visit, topic)
    wanted = wanted_by(visit, topic)
    record = await visit.house.ask(_one, visit, _lens(visit, wanted), partition, offset)
    data: dict[str, Any] = {
        "topic": topic,
        "record": record,
        "wanted": wanted,
        "formats": FORMATS,
        "key": await visit.house.ask(coloured, record.key, 20_000),
        "value": await visit.house.ask(coloured, record.value, _SHOWN_CHARACTERS),
        "value_is_cut": len(record.value.text) > _SHOWN_CHARACTERS,
        "headers": [(visible(name), visible(text)) for name, text in record.headers],
        "asked_offset": offset,
        "is_masked": record.is_masked,
        "base": f"/topics/{topic.name}/messages/{partition}/{record.offset}",
    }
    if visit.is_fragment:
        return common.fragment(visit, "message_detail.html", **data)
    last = topic.partitions[partition].end - 1 if partition < len(topic.partitions) else offset
    return visit.house.views.page(visit, "message.html", title=topic.name, tab="messages", last=last, **data)


async def raw_message(visit: Visit) -> Response:
    """The value, byte for byte, as a file: never as something a browser would show."""
    topic = common.topic_of(visit)
    partition, offset = _place(visit, topic)
    record = await visit.house.ask(_one, visit, Lens(topic.name, visit.house.masks), partition, offset)
    if record.is_masked:
        raise Refusal(403, f"{topic.name} has masked fields, so its raw bytes cannot be taken.")
    name = f"{topic.name}-{partition}-{record.offset}.bin"
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(record.raw_value() or b"", media_type="application/octet-stream", headers=headers)


# ---- the tail -------------------------------------------------------------------------------------------------------


async def tail(visit: Visit) -> Response:
    topic = common.topic_of(visit)
    wanted = wanted_by(visit, topic)
    matches = filters.parse(wanted.filter)
    house = visit.house
    indexes = [each.index for each in topic.partitions if wanted.partitions is None or each.index in wanted.partitions]
    viewer = visit.person.name or visit.session.id
    following = house.tails.follow(topic.name, indexes, _lens(visit, wanted), matches, viewer)
    first = await anext(following)  # refuses here, while a refusal can still be answered

    async def words() -> AsyncIterator[str]:
        quiet = 0
        said = ""
        pending: Any = first
        try:
            while not house.stopping.is_set() and house.sessions.is_open(visit.session):
                rows, skipped, trouble = pending
                if rows or skipped or trouble != said:
                    said = trouble
                    markup = house.views.fragment("tail_rows.html", rows=rows, topic=topic, wanted=wanted)
                    told = {"html": markup, "skipped": skipped, "trouble": trouble}
                    yield f"event: rows\ndata: {json.dumps(told)}\n\n"
                    quiet = 0
                elif (quiet := quiet + 1) % 40 == 0:
                    yield ": still here\n\n"
                pending = await anext(following)
        finally:
            await following.aclose()  # type: ignore[attr-defined]

    return StreamingResponse(words(), media_type="text/event-stream")


# ---- sending --------------------------------------------------------------------------------------------------------


def _bytes(text: str, how: str, what: str) -> bytes | None:
    if how == "null":
        return None
    if how == "hex":
        try:
            return binascii.unhexlify("".join(text.split()))
        except (binascii.Error, ValueError) as error:
            raise Refusal(400, f"The {what} is no hexadecimal text: {error}.") from error
    if how == "json":
        try:
            json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Refusal(400, f"The {what} is no JSON: {error}.") from error
    return text.encode()


async def produce(visit: Visit) -> Response:
    topic = common.topic_of(visit)
    form = visit.form
    value = _bytes(form.get("value", ""), form.get("value_as", "text"), "value")
    key_how = form.get("key_as", "text")
    key = _bytes(form.get("key", ""), "null" if key_how == "text" and not form.get("key") else key_how, "key")
    if len(value or b"") > _VALUE_BYTES_MAX:
        raise Refusal(413, f"At most {_VALUE_BYTES_MAX >> 20} MiB can be sent through the console.")
    headers = []
    for line in form.get("headers", "").splitlines()[:200]:
        if line.strip():
            name, colon, text = line.partition(":")
            if not colon:
                raise Refusal(400, f"{line[:80]!r} is no header: write name: value, one a line.")
            headers.append((name.strip(), text.strip().encode()))
    partition = None
    if form.get("partition", "").strip():
        partition = common.whole(form["partition"], "The partition", 0, len(topic.partitions) - 1)
    sent = await visit.house.ask(visit.house.send, topic.name, value, key, headers, partition)
    place = f"/topics/{topic.name}/messages/{sent.partition()}/{sent.offset()}"
    return common.done(visit, place, f"Stored in partition {sent.partition()} at offset {sent.offset()}.")


# ---- files ----------------------------------------------------------------------------------------------------------


async def download(visit: Visit) -> Response:
    """What a filter finds, as lines of JSON or as CSV; as masked as everywhere."""
    topic = common.topic_of(visit)
    wanted = wanted_by(visit, topic)
    form = visit.query("format", "ndjson")
    if form not in ("ndjson", "csv"):
        raise Refusal(400, "format is ndjson or csv.")
    limit = visit.number("rows", 10_000, 1, _FILE_ROWS_MAX)
    lens = _lens(visit, wanted)
    matches = filters.parse(wanted.filter)

    page = await visit.house.ask(
        lambda: read(visit.house.client, wanted, _kept(lens, matches, _FILE_BYTES_MAX), _FILE_BUDGET, limit),
        timeout_s=_FILE_BUDGET.seconds + 15,
    )
    lines = _csv_lines(page.records) if form == "csv" else _json_lines(page.records)
    headers = {"content-disposition": f'attachment; filename="{topic.name}.{form}"'}
    kind = "text/csv; charset=utf-8" if form == "csv" else "application/x-ndjson"
    return StreamingResponse(lines, media_type=kind, headers=headers)


def _json_lines(records: list[Record]) -> Iterator[bytes]:
    for record in records:
        line = json.dumps(record.plain(), ensure_ascii=False, default=str) + "\n"
        yield line.encode(errors="backslashreplace")  # halves of surrogate pairs, as JSON writes them


def _csv_lines(records: list[Record]) -> Iterator[bytes]:
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["partition", "offset", "timestamp", "key", "value", "headers"])
    for record in records:
        headers = json.dumps(dict(record.headers), ensure_ascii=False)
        cells = [_cell(record.key), _cell(record.value), headers]
        # A cell that begins like a formula would be run by a spreadsheet.
        safe = [f"'{cell}" if cell.startswith(_FORMULA) and not _is_number(cell) else cell for cell in cells]
        writer.writerow([record.partition, record.offset, _time(record.timestamp_ms), *safe])
        yield out.getvalue().encode(errors="backslashreplace")
        out.seek(0)
        out.truncate()


def _time(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1_000, UTC).isoformat() if ms >= 0 else ""
    except (ValueError, OverflowError, OSError):
        return str(ms)  # producers may write any number


def _cell(decoded: Decoded) -> str:
    return compact(decoded.tree) if decoded.has_fields else "" if decoded.kind == "null" else decoded.text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
