"""`moldau consume TOPIC`: records become lines on standard output, from where and as long as somebody wants."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moldau.cli.completing import complete_topics
from moldau.cli.failure import ExitCode, counted, fail, misused, tell
from moldau.cli.frame import Commands, Output, Target
from moldau.cli.outage import Outage
from moldau.cli.places import parse_time
from moldau.cli.record_filters import Filter, parse_filters
from moldau.cli.record_forms import SHORT_NAMES, Unfit, make_form
from moldau.cli.record_lines import Rendering, Shown
from moldau.cli.registry_target import registry_address
from moldau.cli.target import TIMEOUT_SECONDS, is_about_its_group

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

app = Commands()
Place = tuple[str, int]
_BATCH = 500
_POLL_SECONDS = 0.2


@app.command(
    raw=("key_schema", "value_schema"),
    examples=(
        "consume orders --last 10 --follow --format '{key} {value}'",
        "consume orders --since -1h --until now --where 'value.total>10'",
        "consume orders payments --group audit --from-beginning",
    ),
)
def consume(
    target: Target,
    output: Output,
    topics: Annotated[
        list[str],
        typer.Argument(metavar="TOPIC...", help="Topics; with --group also ^patterns.", autocompletion=complete_topics),
    ],
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", "-a", help="From the first record, not the next.")
    ] = False,
    offset: Annotated[
        str | None,
        typer.Option("--offset", "-o", metavar="N", help="From this offset; +N after the first, -N before the end."),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="From this time: ISO, ms since 1970, or -15m.")
    ] = None,
    last: Annotated[
        int | None, typer.Option("--last", "-l", metavar="N", min=1, help="The last N records, then stop.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="With --last: go on with what comes.")] = False,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="Stop at records of this time and later.")
    ] = None,
    until_offset: Annotated[
        int | None, typer.Option("--until-offset", metavar="N", min=0, help="Stop before this offset.")
    ] = None,
    max_records: Annotated[
        int | None, typer.Option("--max", "-n", min=0, metavar="N", help="Stop after so many records.")
    ] = None,
    exit_at_end: Annotated[bool, typer.Option("--exit-at-end", "-e", help="Stop at the end of the topic.")] = False,
    timeout: Annotated[
        float | None, typer.Option("--timeout", metavar="SECONDS", min=0, help="Stop if nothing comes for so long.")
    ] = None,
    partitions: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this partition; may be repeated.")
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", "-g", metavar="GROUP", help="Read as a member of this group, and commit.")
    ] = None,
    no_commit: Annotated[bool, typer.Option("--no-commit", help="With --group: leave its offsets alone.")] = False,
    isolation: Annotated[
        str, typer.Option("--isolation", metavar="LEVEL", help="read_committed or read_uncommitted.")
    ] = "read_committed",
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            metavar="TEST",
            help="Only records like key=a, value~text, value.price>10, headers.type=x, offset>=5; may be repeated.",
        ),
    ] = None,
    rate: Annotated[float | None, typer.Option("--rate", min=0.001, help="At most so many records a second.")] = None,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-k", metavar="TEXT", help="Show keys too, with this in between.")
    ] = None,
    headers: Annotated[bool, typer.Option("--headers", help="Show headers in front.")] = False,
    timestamps: Annotated[bool, typer.Option("--timestamps", help="Show the time in front.")] = False,
    positions: Annotated[bool, typer.Option("--positions", help="Show partition and offset in front.")] = False,
    separator: Annotated[
        str, typer.Option("--separator", "-s", metavar="TEXT", help="What stands after each record.")
    ] = "\\n",
    null: Annotated[str, typer.Option("--null", "-Z", metavar="TEXT", help="What stands for a value of null.")] = "",
    key_as: Annotated[str, typer.Option("--key-as", metavar="FORM", help="How keys are shown.")] = "text",
    value_as: Annotated[
        str, typer.Option("--value-as", metavar="FORM", help=f"How values are shown: {', '.join(SHORT_NAMES)}.")
    ] = "text",
    key_schema: Annotated[str | None, typer.Option("--key-schema", metavar="FILE", help="Of Avro, Protobuf.")] = None,
    value_schema: Annotated[
        str | None,
        typer.Option("--value-schema", metavar="FILE", help="Avro's .avsc; Protobuf's FILE#package.Message."),
    ] = None,
    registry: Annotated[
        str | None,
        typer.Option("--registry", envvar="MOLDAU_REGISTRY", metavar="URL", help="Confluent's schema registry."),
    ] = None,
) -> None:
    """Show records, one a line, until stopped. Joins no group and commits nothing, unless --group says so.

    --format knows {topic} {partition} {offset} {timestamp} {timestamp_ms} {key}
    {value} {headers} {key_size} {value_size}.
    """
    starts = [
        name
        for name, given in (
            ("--from-beginning", from_beginning), ("--offset", offset is not None), ("--since", since is not None),
            ("--last", last is not None),
        )
        if given
    ]  # fmt: skip
    if len(starts) > 1:
        misused(f"{' and '.join(starts)}: where to begin can be said once")
    if isolation not in ("read_committed", "read_uncommitted"):
        misused(f"--isolation {isolation}: read_committed or read_uncommitted")
    if group is not None and (partitions or last is not None or offset is not None or since is not None):
        misused("a group decides itself where it reads: --partition, --offset, --since and --last are for without one")
    if follow and last is None:
        misused("--follow goes with --last; without it, consume follows anyway")
    start = Start(from_beginning, offset, None if since is None else parse_time(since), last)
    start.check()
    end = End(
        None if until is None else parse_time(until), until_offset, max_records,
        exit_at_end or (last is not None and not follow), timeout,
    )  # fmt: skip
    known_registry = registry_address(registry, target.settings)
    rendering = Rendering(
        output=output,
        key_form=make_form(key_as, "key", topics[0], key_schema, known_registry),
        value_form=make_form(value_as, "value", topics[0], value_schema, known_registry),
        key_separator=key_separator,
        separator=separator,
        null=null,
        fronts=(timestamps, positions, headers),
    )
    wanted = parse_filters(where or ())
    outage = Outage(target.bootstrap_servers)
    settings: dict[str, Any] = {"enable.partition.eof": True, **outage.settings(target.settings)}
    settings |= {"isolation.level": isolation, "auto.offset.reset": "earliest" if from_beginning else "latest"}
    if end.at_end or last is not None or until is not None:
        settings["fetch.wait.max.ms"] = 10  # that there is no more is told when a fetch comes back empty
    if group is not None:
        settings |= {"group.id": group, "enable.auto.commit": not no_commit, "enable.auto.offset.store": False}
    consumer = target.consumer(**settings)
    commits = group is not None and not no_commit
    reader = Reader(consumer, rendering, wanted, end, outage, rate, commits=commits, is_alone=group is None)
    try:
        if group is not None:
            consumer.subscribe(topics)
            reader.read(None)
        else:
            places = _places(consumer, topics, partitions)
            reader.read(start.assign(consumer, places), keep_last=last)
    except KeyboardInterrupt:
        pass
    finally:
        reader.finish()
    if rendering.unfit:
        fail(f"{counted(rendering.unfit, 'record')} could not be shown as wanted; what is wrong with each is above")


def _places(consumer: Consumer, topics: list[str], partitions: list[int] | None) -> list[Place]:
    places: list[Place] = []
    for topic in topics:
        found = consumer.list_topics(topic, timeout=TIMEOUT_SECONDS).topics[topic]
        if found.error is not None and found.error.code() == found.error.TOPIC_AUTHORIZATION_FAILED:
            fail(f"{topic}: this user may not read it", ExitCode.DENIED)
        if found.error is not None:
            fail(f"no such topic: {topic} (`moldau topic list` shows what there is)", ExitCode.NOT_FOUND)
        missing = sorted(set(partitions or ()) - set(found.partitions))
        if missing:
            there = counted(len(found.partitions), "partition")
            fail(f"{topic} has {there}, and no {missing[0]}", ExitCode.NOT_FOUND)
        places += [(topic, index) for index in partitions or sorted(found.partitions)]
    return places


@dataclass(slots=True, frozen=True)
class Start:
    """Where to begin; at the end if nothing is said."""

    at_beginning: bool
    offset: str | None
    since_ms: int | None
    last: int | None

    def check(self) -> None:
        if self.offset is not None and not self.offset.lstrip("+-").isdecimal():
            misused(f"--offset {self.offset}: write 42, +10 (after the first) or -10 (before the end)")

    def assign(self, consumer: Consumer, places: list[Place]) -> dict[Place, int]:
        """Begin there; where each partition ends now, for who stops there."""
        from confluent_kafka import TopicPartition

        watermarks = {
            place: consumer.get_watermark_offsets(TopicPartition(*place), TIMEOUT_SECONDS) for place in places
        }
        by_time = self._by_time(consumer, places) if self.since_ms is not None else {}
        starts = []
        for place, (low, high) in watermarks.items():
            starts.append(TopicPartition(*place, self._offset(low, high, by_time.get(place, -1))))
        consumer.assign(starts)
        return {place: high for place, (_, high) in watermarks.items()}

    def _by_time(self, consumer: Consumer, places: list[Place]) -> dict[Place, int]:
        from confluent_kafka import TopicPartition

        assert self.since_ms is not None
        asked = [TopicPartition(*place, self.since_ms) for place in places]
        found = consumer.offsets_for_times(asked, TIMEOUT_SECONDS)
        return {(each.topic, each.partition): each.offset for each in found}

    def _offset(self, low: int, high: int, by_time: int) -> int:
        if self.at_beginning:
            return low
        if self.last is not None:
            return max(low, high - self.last)
        if self.since_ms is not None:
            return by_time if by_time >= 0 else high
        if self.offset is None:
            return high
        number = int(self.offset)
        if self.offset.startswith("+"):
            return min(high, low + number)
        return max(low, high + number) if number < 0 or self.offset == "-0" else max(low, number)


@dataclass(slots=True, frozen=True)
class End:
    """When to stop."""

    until_ms: int | None
    until_offset: int | None
    max_records: int | None
    at_end: bool
    timeout_s: float | None

    def is_beyond(self, message: Message) -> bool:
        if self.until_offset is not None and (message.offset() or 0) >= self.until_offset:
            return True
        return self.until_ms is not None and message.timestamp()[1] >= self.until_ms

    @property
    def is_per_partition(self) -> bool:
        return self.until_ms is not None or self.until_offset is not None


@dataclass(slots=True)
class Reader:
    """Takes records until the end that was wanted, and shows those that pass."""

    consumer: Consumer
    rendering: Rendering
    filters: list[Filter]
    end: End
    outage: Outage
    rate: float | None
    commits: bool
    is_alone: bool
    shown: int = 0
    _unfinished: set[Place] | None = field(init=False, default=None)
    _began: float = field(init=False, default=0.0)

    def read(self, ends: dict[Place, int] | None, keep_last: int | None = None) -> None:
        if ends is not None and keep_last is not None:
            self._show_last(ends, keep_last)
            if self.end.at_end:
                return
        self._unfinished = None if ends is None else set(ends)
        self._began = time.monotonic()
        for message in self._messages():
            if self._is_full():
                return
            self._show(message)
        self.rendering.flush()

    def _is_full(self) -> bool:
        return self.end.max_records is not None and self.shown >= self.end.max_records

    def _messages(self) -> Iterator[Message]:
        quiet_since = time.monotonic()
        while not self._is_full():
            batch = _next_messages(self.consumer, self._batch_size())
            if batch:
                quiet_since = time.monotonic()
            for message in batch:
                if self.is_alone and is_about_its_group(message):
                    continue
                if self._is_over(message):
                    return
                if message.error() is None and not self.end.is_beyond(message):
                    yield message
            self.rendering.flush()
            if self.end.timeout_s is not None and time.monotonic() - quiet_since > self.end.timeout_s:
                return

    def _batch_size(self) -> int:
        """No more than are wanted."""
        if self.end.max_records is None or self.filters:
            return 1 if self.rate else _BATCH
        return max(1, min(_BATCH, self.end.max_records - self.shown))

    def _is_over(self, message: Message) -> bool:
        """Whether that was the last of what is wanted; errors end it with a word."""
        from confluent_kafka import KafkaError, KafkaException

        error = message.error()
        place = (str(message.topic()), int(message.partition() or 0))
        if error is None:
            self.outage.is_over()
            if not (self.end.is_per_partition and self.end.is_beyond(message)):
                return False
        elif error.code() == KafkaError._PARTITION_EOF:
            self.outage.is_over()
            if not (self.end.at_end or self._is_past_until()):
                return False
        else:
            raise KafkaException(error)
        if self._unfinished is None:
            assigned = {(each.topic, each.partition) for each in self.consumer.assignment()}
            self._unfinished = assigned
        self._unfinished.discard(place)
        return not self._unfinished

    def _is_past_until(self) -> bool:
        """At the end of a partition, nothing older can come once the time has passed."""
        return self.end.until_ms is not None and time.time() * 1000 > self.end.until_ms

    def _show(self, message: Message) -> None:
        record = self._decoded(message)
        if record is not None and all(each(record) for each in self.filters):
            if self.rate is not None:
                wait = self._began + self.shown / self.rate - time.monotonic()
                if wait > 0:
                    self.rendering.flush()
                    time.sleep(wait)  # what --rate says
            self.rendering.write(record)
            self.shown += 1
        if self.commits:
            self._store(message)

    def _store(self, message: Message) -> None:
        """What was shown is committed in the background, and at the end."""
        from confluent_kafka import KafkaException

        with contextlib.suppress(KafkaException):  # the partition was given to another member meanwhile
            self.consumer.store_offsets(message=message)

    def _decoded(self, message: Message) -> Shown | None:
        try:
            return self.rendering.decode(message)
        except Unfit as error:
            self.rendering.unfit += 1
            tell(f"{message.topic()}-{message.partition()}@{message.offset()}: {error}")
            return None

    def _show_last(self, ends: dict[Place, int], count: int) -> None:
        """The newest of all partitions together, in order of time; of one partition, as they stand there, whatever time
        they say. Where the log has gaps, it looks further back."""
        found: list[tuple[int, Message]] = []
        for place, high in ends.items():
            newest = _newest(self.consumer, place, high, count, self._passes)
            found += zip(accumulate((each.timestamp()[1] for each in newest), max), newest, strict=True)
        found.sort(key=lambda each: each[0])  # stable
        from confluent_kafka import TopicPartition

        for _, message in found[-count:]:
            self._show(message)
        self.rendering.flush()
        self.consumer.assign([TopicPartition(*place, high) for place, high in ends.items()])

    def _passes(self, message: Message) -> bool:
        if not self.filters:
            return True
        record = self._decoded(message)
        return record is not None and all(each(record) for each in self.filters)

    def finish(self) -> None:
        self.rendering.flush()
        self.consumer.close()  # commits what was stored


def _next_messages(consumer: Consumer, count: int) -> list[Message]:
    """Wait for one, and take what else is there: a batch alone would wait until it is full."""
    first = consumer.poll(_POLL_SECONDS)
    if first is None:
        return []
    return [first, *(consumer.consume(count - 1, 0) if count > 1 else ())]


def _newest(
    consumer: Consumer, place: Place, high: int, count: int, passes: Callable[[Message], bool]
) -> list[Message]:
    from confluent_kafka import KafkaError, TopicPartition

    low, _ = consumer.get_watermark_offsets(TopicPartition(*place), TIMEOUT_SECONDS)
    back = count
    while True:
        start = max(low, high - back)
        found: list[Message] = []
        if start < high:
            consumer.assign([TopicPartition(*place, start)])
            deadline = time.monotonic() + TIMEOUT_SECONDS
            reached = start
            while reached < high and time.monotonic() < deadline:
                for message in _next_messages(consumer, _BATCH):
                    if is_about_its_group(message):
                        continue
                    error = message.error()
                    if error is not None and error.code() != KafkaError._PARTITION_EOF:
                        fail(error.str())
                    reached = high if error is not None else int(message.offset() or 0) + 1
                    if error is None and int(message.offset() or 0) < high and passes(message):
                        found.append(message)
        if len(found) >= count or start == low:
            return found[-count:]
        back *= 4
