"""Messages: pages that fit together, filters that only compare, masks nobody gets around, hostile bytes as text."""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st

from moldau.console.messages import reading
from moldau.console.messages.decoding import Decoded, coloured, decode
from moldau.console.messages.filters import FilterError, parse
from moldau.console.messages.masking import Masks, parse_masks
from moldau.console.messages.text import visible
from tests.console.support import HTMX, Client, console, eventually, fragment, post


@dataclass
class Sample:
    key: Decoded
    value: Decoded
    partition: int = 2
    offset: int = 17
    timestamp_ms: int = 5_000
    size: int = 99
    headers: Sequence[tuple[str, str]] = field(default_factory=lambda: [("trace-id", "7f3"), ("Odd Name", "x")])


ORDER = Sample(
    decode(b"alice"),
    decode(b'{"total": 120.5, "paid": true, "note": null, "a b": 3, "items": [{"sku": "rope"}, {"sku": "soap"}]}'),
)


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("alice", True),
        ("ALICE", True),
        ('"rope"', True),
        ("7f3", True),
        ("bob", False),
        ("value.total > 100", True),
        ("value.total <= 100", False),
        ("value.total = 120.5 and value.paid = true", True),
        ("not value.paid = true", False),
        ("value.note = null", True),
        ("exists value.note", False),
        ("exists value.items", True),
        ("value.items[1].sku = soap", True),
        ("value.items[0].sku = soap", False),
        ("value.items[*].sku = soap", True),
        ('value["a b"] = 3', True),
        ("value.missing.deeper = 1", False),
        ("value.missing != 1", True),
        ('key startswith "al" and key endswith ice', True),
        ("header.trace-id contains f3", True),
        ('header["Odd Name"] = x', True),
        ("partition = 2 offset >= 17 size < 100 timestamp = 5000", True),
        ("(partition = 1 or offset = 17) and not (key = bob)", True),
        ("value.paid > 1", False),
        ("key > 5", False),
    ],
)
def test_filters(text: str, fits: bool) -> None:
    found = parse(text)
    assert found is not None
    assert found(ORDER) is fits


@pytest.mark.parametrize(
    "text",
    ["value.total >", "= 3", "(key = 1", "and", "key = 1 )", "nonsense = 1", "value[x] = 1", "exists", "a" * 1_001,
     "not " * 60 + "x", "(" * 60 + "x" + ")" * 60, " or ".join(["x"] * 60), '"open'],
)  # fmt: skip
def test_what_is_no_filter_says_so(text: str) -> None:
    with pytest.raises(FilterError):
        parse(text)


@given(st.text(max_size=200))
def test_any_text_is_a_filter_or_an_error(text: str) -> None:
    try:
        found = parse(text)
    except FilterError:
        return
    if found is not None:
        assert found(ORDER) in (True, False)


@given(st.binary(max_size=300), st.sampled_from(["auto", "json", "text", "hex", "protobuf", "avro"]))
def test_any_bytes_can_be_shown(data: bytes, wanted: str) -> None:
    found = decode(data, wanted)
    pieces = coloured(found, 1_000)
    assert "".join(text for _, text in pieces) == visible(found.text[:1_000])


def test_protobuf_without_a_schema_shows_fields_by_number() -> None:
    data = b"\x08\x96\x01\x12\x07testing\x1a\x02\x08\x05"
    assert decode(data, "protobuf").tree == {"1": 150, "2": "testing", "3": {"1": 5}}


def test_what_cannot_be_seen_is_spelled_out() -> None:
    assert visible("a\u202eb\u0000c\u200b") == "a⟨U+202E⟩b⟨U+0000⟩c⟨U+200B⟩"
    assert visible("tab\tline\n") == "tab\tline\n"


# ---- masks


def test_masks_hide_fields_lists_headers_and_what_they_cannot_see_into() -> None:
    masks = Masks(parse_masks("pay* value.card last4\npay* value.items.price hide\n* header.auth* hide\nkeys key hide"))
    value = decode(b'{"card": "4111111111111111", "items": [{"price": 7}, {"price": 8, "n": 1}], "x": 1}')
    shown = masks.apply("payments", "value", value)
    assert shown.tree == {"card": "•••1111", "items": [{"price": "•••"}, {"price": "•••", "n": 1}], "x": 1}
    assert "4111" not in shown.text
    assert masks.apply("orders", "value", value) is value
    for topic in ("payments-dlt", "payments-retry-2"):
        assert masks.apply(topic, "value", value).tree == shown.tree
    assert masks.apply("payments", "value", decode(b"4111111111111111 in plain text")).kind == "masked"
    assert masks.apply("payments", "value", decode(b'{"card": "4111"}', "hex")).kind == "masked"
    assert masks.apply("keys", "key", decode(b"secret")).kind == "masked"
    assert masks.header("any", "Authorization", "Bearer x") == "•••"


def test_rules_hold_wherever_a_record_was_set_aside() -> None:
    masks = Masks(parse_masks("pay* value.card hide\npay* header.auth hide\nkeys key hide"))
    value = decode(b'{"card": "4111"}')
    for header in ("kafka_dlt-original-topic", "kafka_original-topic", "__connect.errors.topic"):
        origins = masks.origins([("x", b"y"), (header, b"payments")])
        assert masks.apply("graveyard", "value", value, origins).tree == {"card": "•••"}
        assert masks.header("graveyard", "auth", "Bearer x", origins) == "•••"
        assert masks.concern("graveyard", origins)
        assert not masks.cover("graveyard", "open", origins)
        assert masks.cover("graveyard", "payments-retry-1", origins)
    assert masks.apply("graveyard", "value", value, masks.origins([("kafka_dlt-original-topic", b"open")])) is value
    # What a record says of itself can only hide more.
    assert masks.apply("payments-dlt", "value", value, ("open",)).tree == {"card": "•••"}


def test_errors_quote_what_is_hidden() -> None:
    masks = Masks(parse_masks("pay* value.card hide\nkeys key hide\nheads header.auth hide"))
    said = "no such card: 4111"
    for topic in ("payments-dlt", "keys-dlt"):
        for name in ("kafka_dlt-exception-message", "kafka_exception-stacktrace", "__connect.errors.exception.message",
                     "__connect.errors.exception.stacktrace", "Error", "x-failure-reason"):  # fmt: skip
            assert masks.header(topic, name, said) == "•••", name
        for name in (
            "kafka_dlt-exception-fqcn",
            "__connect.errors.exception.class.name",
            "__connect.errors.topic",
            "x",
        ):
            assert masks.header(topic, name, "ValueError") == "ValueError", name
    assert masks.header("heads-dlt", "kafka_dlt-exception-message", said) == said
    assert masks.header("graveyard", "error", said, ("payments",)) == "•••"


@pytest.mark.parametrize("line", ["orders value.x", "orders body.x hide", "orders value.x burn", "orders header hide"])
def test_mask_rules_that_are_wrong_say_which_line(line: str) -> None:
    with pytest.raises(ValueError, match="line 2"):
        parse_masks(f"# rules\n{line}")


@pytest.fixture(scope="module")
def masked(broker: str) -> Iterator[Client]:
    with console(broker, masks=parse_masks("orders value.customer.iban last4\norders header.trace hide")) as client:
        eventually(lambda: "orders" in client.house.snapshot.topics, "the console sees the topic")
        yield client


def test_no_way_leads_to_what_is_masked(masked: Client) -> None:
    secret = "DE00000000000000000001"
    for path in (
        "/topics/orders/messages/1/0",
        "/topics/orders/messages/1/0?as=text",
        "/topics/orders/messages/1/0?as=hex",
        "/api/topics/orders/messages?start=oldest&limit=5",
        "/topics/orders/download?start=oldest",
        "/topics/orders/download?start=oldest&format=csv&as=text",
    ):
        answer = masked.get(path)
        assert answer.status_code == 200, path
        assert secret not in answer.text, path
        assert "444530303030" not in answer.text.replace(" ", ""), path
    assert secret not in fragment(masked, "/topics/orders/messages?start=oldest")
    assert masked.get("/topics/orders/messages/1/0/raw").status_code == 403
    # Nor does a filter tell whether a guess is right.
    guess = fragment(masked, f'/topics/orders/messages?filter=value.customer.iban="{secret}"')
    assert "No record matches" in guess
    assert "No record matches" in fragment(masked, f"/topics/orders/messages?filter={secret}")
    assert "No record matches" in fragment(masked, "/topics/orders/messages?filter=header.trace=t1")


def test_letters_of_any_name_show_nothing_that_is_masked(broker: str) -> None:
    secret = "DE5500001111"
    producer = Producer({"bootstrap.servers": broker, "log_level": 0})
    headers: list[tuple[str, str | bytes | None]] = [
        ("kafka_dlt-original-topic", b"orders"), ("kafka_dlt-original-partition", bytes(4)),
        ("kafka_dlt-original-offset", bytes(8)), ("kafka_dlt-exception-fqcn", b"ValueError"),
        ("kafka_dlt-exception-message", f"{secret} is no account".encode()),
    ]  # fmt: skip
    producer.produce("graveyard", json.dumps({"customer": {"iban": secret}}), headers=headers)
    assert producer.flush(30) == 0
    rules = parse_masks("orders value.customer.iban hide")
    with console(broker, masks=rules, dead_letters=("*-dlt", "grave*")) as client:
        eventually(lambda: "graveyard" in client.house.snapshot.topics, "the console sees the topic")
        for path in ("/topics/graveyard/messages/0/0", "/api/topics/graveyard/messages", "/topics/graveyard/download"):
            answer = client.get(path)
            assert answer.status_code == 200
            assert secret not in answer.text, path
        assert "No record matches" in fragment(client, f"/topics/graveyard/messages?filter={secret}")
        assert client.get("/topics/graveyard/messages/0/0/raw").status_code == 403
        letters = fragment(client, "/dead-letters/graveyard", "letters")
        assert "ValueError" in letters
        assert secret not in letters
        # Nor can the letter be sent to where it would be seen.
        assert post(client, "/dead-letters/graveyard/redrive", what="ids", ids="0:0", to="payments").status_code == 303
        job = eventually(
            lambda: (found := client.get("/dead-letters/graveyard/job").json()["job"])["state"] != "running" and found,
            "the redrive ends",
        )
        assert job["result"] == "0 sent back, 0 were before, 1 left."


# ---- pages


def _all_pages(client: Client, path: str, way: str) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    link: str | None = path
    while link:
        page = client.get("/api/topics/orders/messages" + link).json()
        found += [(record["partition"], record["offset"]) for record in page["records"]]
        link = page[way]
        assert len(found) <= 400
    return found


@pytest.mark.parametrize(("query", "way"), [("?start=newest&limit=37", "older"), ("?start=oldest&limit=37", "newer")])
def test_pages_show_every_record_once(client: Client, query: str, way: str) -> None:
    found = _all_pages(client, query, way)
    assert sorted(found) == [(partition, offset) for partition in range(3) for offset in range(100)]


@pytest.mark.parametrize(("query", "way"), [("?start=newest&limit=5", "older"), ("?start=oldest&limit=5", "newer")])
def test_pages_of_a_filter_show_every_match_once(client: Client, query: str, way: str) -> None:
    found = _all_pages(client, query + "&filter=value.total>420", way)
    assert len(found) == len(set(found)) == 19  # 281 to 299


@pytest.mark.parametrize("is_newest", [True, False], ids=["back", "on"])
@pytest.mark.parametrize("rows", [7, 40])
def test_a_search_that_was_cut_goes_on_where_it_ended(broker: str, is_newest: bool, rows: int) -> None:
    """Whether it found something or not: the only match is the last thing each way comes to."""
    wanted = (0, 0) if is_newest else (2, 99)
    reader = reading.consumer({"bootstrap.servers": broker})
    bounds = reading.bounds(reader, "orders", None)

    def accept(message: Any) -> _Place | None:
        return _Place(message) if (message.partition(), message.offset()) == wanted else None

    read = reading.read_newest if is_newest else reading.read_forward
    seen, found, ranges, turns = 0, [], bounds, 0
    while True:
        page = read(reader, "orders", ranges, 5, accept, reading.Budget(rows=rows))
        assert 0 < page.spent.rows <= rows
        seen, turns = seen + page.spent.rows, turns + 1
        found += page.records
        rest = page.older if is_newest else page.newer
        if rest is None:
            break
        ranges = {i: (low, rest[i]) if is_newest else (rest[i], high) for i, (low, high) in bounds.items()}
        assert turns <= 2 * 300 / rows, "it reads the same again"
    reader.close()
    assert [(each.partition, each.offset) for each in found] == [wanted]
    assert seen <= 300 * 1.2


class _Place(reading.Placed):
    def __init__(self, message: Any) -> None:
        self.partition, self.offset = message.partition(), message.offset()
        self.timestamp_ms = message.timestamp()[1]


def test_a_slow_filter_over_large_records_keeps_to_its_time(broker: str) -> None:
    """The clock is looked at before each record, not before each batch."""
    reader = reading.consumer({"bootstrap.servers": broker})
    spent = []

    def accept(message: Any) -> None:
        spent.append(message.offset())
        time.sleep(0.1)

    page: reading.Page[_Place] = reading.read_forward(
        reader, "orders", {0: (0, 100)}, 5, accept, reading.Budget(seconds=0.3)
    )
    reader.close()
    assert page.is_cut
    assert len(spent) < 10
    assert page.newer == {0: len(spent)}


def test_reading_by_offset_time_and_partition(client: Client) -> None:
    at = client.get("/api/topics/orders/messages?start=offset&at=95&partition=2").json()
    assert [record["offset"] for record in at["records"]] == [95, 96, 97, 98, 99]
    since = client.get("/api/topics/orders/messages?start=time&at=1000297").json()
    assert sorted(record["value"]["id"] for record in since["records"]) == [297, 298, 299]
    newest = client.get("/api/topics/orders/messages?limit=3").json()
    assert [record["value"]["id"] for record in newest["records"]] == [299, 298, 297]


_NONSENSE = ("start=soon", "start=offset&at=x", "start=time&at=x", "partition=9", "as=exe", "limit=x", "filter=(")


@pytest.mark.parametrize("query", [*_NONSENSE, "start=after&at=0", "start=before&at=a:b"])
def test_questions_that_make_no_sense_are_refused(client: Client, query: str) -> None:
    answer = client.get(f"/api/topics/orders/messages?{query}")
    assert answer.status_code == 400
    assert answer.json()["error"]


def test_hostile_records_are_text(client: Client) -> None:
    rows = fragment(client, "/topics/hostile/messages")
    assert "<script>" not in rows
    assert "&lt;script&gt;alert(1)" in rows
    assert "\u202e" not in rows
    assert len(rows) < 20_000  # ten megabytes are not
    for offset in range(6):
        page = client.get(f"/topics/hostile/messages/0/{offset}", headers=HTMX)
        assert page.status_code == 200
        assert "<script>" not in page.text
        assert "<svg onload" not in page.text
        assert "\u202e" not in page.text
        assert len(page.text) < 1_000_000
    raw = client.get("/topics/hostile/messages/0/0/raw")
    assert raw.content == b"<script>alert(1)</script>"
    assert raw.headers["content-type"] == "application/octet-stream"
    assert raw.headers["content-disposition"].startswith("attachment")
    assert len(client.get("/topics/hostile/messages/0/4/raw").content) == 10_000_000


def test_downloads(client: Client) -> None:
    lines = client.get("/topics/orders/download?start=oldest&filter=partition=0").text.splitlines()
    assert len(lines) == 100
    assert json.loads(lines[0])["value"]["id"] == 0
    table = client.get("/topics/orders/download?start=oldest&format=csv").text.splitlines()
    assert len(table) == 301
    assert table[0] == "partition,offset,timestamp,key,value,headers"


def test_sending_and_seeing_it(client: Client) -> None:
    answer = post(
        client, "/topics/payments/produce", key="k", value='{"a": 1}', value_as="json", headers="source: console"
    )
    place = answer.headers["location"]
    page = client.get(place).text
    assert "Stored in partition 0" in page
    assert "source" in page
    gone = post(client, "/topics/payments/produce", key="00ff", key_as="hex", value_as="null")
    assert gone.status_code == 303
    found = client.get("/api/topics/payments/messages?limit=2").json()["records"]
    assert [record["value"] for record in found] == [None, {"a": 1}]
    for wrong in ({"value": "{", "value_as": "json"}, {"value": "xyz", "value_as": "hex"}, {"partition": "7"}):
        assert post(client, "/topics/payments/produce", **wrong).status_code == 400
