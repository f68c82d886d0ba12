"""Dead letters: by topic, by reason, one by one; and sending them back, none of them twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import quote

from starlette.responses import JSONResponse, Response

from moldau.console.cluster.model import Topic
from moldau.console.gate.refusal import Refusal
from moldau.console.house import House
from moldau.console.listing import Listed, listed, searched
from moldau.console.messages import reading
from moldau.console.messages.masking import Masks
from moldau.console.messages.reading import Budget, Placed
from moldau.console.messages.records import Lens, Record, header_text
from moldau.console.messages.text import one_line
from moldau.console.screens import common
from moldau.console.visit import Visit
from moldau.records.client_headers import headers_of
from moldau.toolkit.dead_letters import Letter, audit_topic, redrive

_LETTERS_MAX = 20_000
_REASONS_SHOWN = 100
_RATE_MAX = 100_000
_Choose = Callable[[Letter], bool]


@dataclass(slots=True)
class LetterRow(Placed):
    partition: int
    offset: int
    timestamp_ms: int
    id: str
    reason: str
    error: str
    origin: str
    origin_link: str
    group: str
    attempts: int
    value: str
    was_sent_back: bool = False


@dataclass(slots=True)
class ReasonRow:
    name: str
    count: int
    sent_back: int
    first_ms: int
    last_ms: int
    example: LetterRow


def letter_topics(house: House) -> list[Topic]:
    return [topic for topic in house.snapshot.topics.values() if _has_letters(house, topic.name)]


def _has_letters(house: House, name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in house.settings.dead_letters)


async def dead_letters(visit: Visit) -> Response:
    return visit.house.views.page(
        visit, "dead_letters.html", title="Dead letters", list=letter_topic_list(visit), q=visit.query("q")
    )


def letter_topic_list(visit: Visit) -> Listed[Topic]:
    """Those with the most letters first."""
    found = sorted(letter_topics(visit.house), key=lambda topic: (-topic.records, topic.name))
    return listed(visit, searched(found, visit.query("q"), lambda topic: topic.name))


def read_letters(house: House, topic: str) -> tuple[list[LetterRow], bool]:
    """The newest letters, and whether there are more. Blocks."""
    lens = Lens(topic, house.masks, house.registry)

    def accept(message: Any) -> LetterRow:
        record = Record(message, lens)
        raw = headers_of(message)
        # A header as it is (some are numbers), unless a rule hides it: an error often quotes the value it is about.
        headers = [(name, _masked(house.masks, topic, name, value, record.origins)) for name, value in raw]
        letter = Letter(topic, message.partition(), message.offset(), message.timestamp()[1], None, None, headers)
        origin = letter.origin
        is_known = origin.topic != topic
        value = record.row().value
        return LetterRow(
            message.partition(),
            message.offset(),
            letter.timestamp_ms,
            letter.id,
            one_line(letter.reason, 200),
            one_line(letter.error, 400),
            f"{origin.topic}-{origin.partition} @ {origin.offset}" if is_known else "unknown",
            f"/topics/{quote(origin.topic, safe='')}/messages/{origin.partition}/{origin.offset}" if is_known else "",
            one_line(letter.group, 200),
            letter.attempts,
            value,
        )

    reader = reading.consumer(house.client)
    try:
        bounds = reading.bounds(reader, topic, None)
        page = reading.read_newest(reader, topic, bounds, _LETTERS_MAX, accept, Budget(rows=_LETTERS_MAX, seconds=8.0))
    finally:
        reader.close()
    done = _sent_back(house, topic)
    for row in page.records:
        row.was_sent_back = row.id in done
    return page.records, page.older is not None


def _masked(masks: Masks, topic: str, name: str, value: Any, origins: tuple[str, ...]) -> Any:
    text = header_text(value)
    shown = masks.header(topic, name, text, origins)
    return value if shown == text else shown.encode(errors="replace")


def _sent_back(house: House, topic: str) -> set[str]:
    if audit_topic(topic) not in house.snapshot.topics:
        return set()
    found: set[str] = set()

    def accept(message: Any) -> None:
        found.add((message.key() or b"").decode(errors="replace"))

    reader = reading.consumer(house.client)
    try:
        bounds = reading.bounds(reader, audit_topic(topic), None)
        reading.read_forward(reader, audit_topic(topic), bounds, 1, accept, Budget(seconds=6.0))
    finally:
        reader.close()
    return found


def by_reason(rows: list[LetterRow]) -> list[ReasonRow]:
    found: dict[str, ReasonRow] = {}
    for row in rows:
        reason = found.get(row.reason)
        if reason is None:
            reason = found[row.reason] = ReasonRow(row.reason, 0, 0, row.timestamp_ms, row.timestamp_ms, row)
        reason.count += 1
        reason.sent_back += row.was_sent_back
        reason.first_ms = min(reason.first_ms, row.timestamp_ms)
        reason.last_ms = max(reason.last_ms, row.timestamp_ms)
    return sorted(found.values(), key=lambda each: (-each.count, each.name))


def letter_topic(visit: Visit) -> Topic:
    topic = common.topic_of(visit)
    if not _has_letters(visit.house, topic.name):
        patterns = ", ".join(visit.house.settings.dead_letters)
        raise Refusal(404, f"{topic.name} is no dead-letter topic: those are called {patterns} (--dead-letters).")
    return topic


async def dead_letter_topic(visit: Visit) -> Response:
    topic = letter_topic(visit)
    house = visit.house
    if not visit.is_fragment or visit.request.headers.get("hx-target") != "letters":
        job = house.jobs.last(f"redrive {topic.name}")
        return house.views.page(
            visit,
            "dead_letter_topic.html",
            title=topic.name,
            topic=topic,
            job=job,
            q=visit.query("q"),
            reason=visit.query("reason"),
        )
    reasons, found, is_more = await letter_list(visit, topic)
    return common.fragment(
        visit,
        "letter_rows.html",
        topic=topic,
        reasons=reasons[:_REASONS_SHOWN],
        reason_count=len(reasons),
        list=found,
        is_more=is_more,
        reason=visit.query("reason"),
        q=visit.query("q"),
    )


async def letter_list(visit: Visit, topic: Topic) -> tuple[list[ReasonRow], Listed[LetterRow], bool]:
    """The reasons of all, a page of those that were asked for, and whether there are more than were looked at."""
    rows, is_more = await visit.house.ask(read_letters, visit.house, topic.name)
    reason = visit.query("reason")
    chosen = [row for row in rows if not reason or row.reason == reason]
    chosen = searched(chosen, visit.query("q"), lambda row: f"{row.origin} {row.group} {row.error} {row.value}")
    return by_reason(rows), listed(visit, chosen), is_more


async def redrive_letters(visit: Visit) -> Response:
    topic = letter_topic(visit)
    house, form = visit.house, visit.form
    to = form.get("to", "").strip() or None
    if to is not None and to not in house.snapshot.topics:
        raise Refusal(404, f"There is no topic {to}.")
    if to is not None and not house.masks.cover(topic.name, to):
        raise Refusal(403, f"{topic.name} has masked fields which {to} would show: letters can only go back.")
    rate = common.whole(form["rate"], "The rate", 1, _RATE_MAX) if form.get("rate", "").strip() else None
    choose = _choice(form)
    if to is not None:
        choose = _unless_it_shows(house.masks, topic.name, to, choose)
    if form.get("what") == "all":
        common.confirmed(visit, topic.name)
    who = visit.person.name or "anonymous"

    def work() -> str:
        done = redrive(house.client, topic.name, choose, to=to, rate=rate, by=f"{who} (console)")
        return f"{done.sent:,} sent back, {done.skipped:,} were before, {done.left:,} left."

    job = house.jobs.start(f"redrive {topic.name}", who, work)
    return common.done(visit, f"/dead-letters/{topic.name}", f"Redrive {job.number} has begun; its end is shown here.")


def _unless_it_shows(masks: Masks, topic: str, to: str, choose: _Choose) -> _Choose:
    """A letter may come from a topic with rules, whatever the one it lies in is called: it stays then."""
    return lambda letter: choose(letter) and masks.cover(topic, to, masks.origins(letter.headers))


def _choice(form: Mapping[str, str]) -> _Choose:
    what = form.get("what", "")
    if what == "all":
        return lambda letter: True
    if what == "reason" and form.get("reason"):
        reason = form["reason"]
        return lambda letter: one_line(letter.reason, 200) == reason
    if what == "ids" and form.get("ids"):
        places = set(form["ids"].split(",")[:_LETTERS_MAX])
        return lambda letter: f"{letter.partition}:{letter.offset}" in places
    raise Refusal(400, "Say which letters: those of a reason, some by place, or all.")


async def redrive_job(visit: Visit) -> Response:
    """How the last redrive of a topic is doing."""
    topic = letter_topic(visit)
    job = visit.house.jobs.last(f"redrive {topic.name}")
    if not visit.is_fragment:
        return JSONResponse({"job": None if job is None else {"state": job.state, "result": job.result}})
    return common.fragment(visit, "job.html", job=job, topic=topic)
