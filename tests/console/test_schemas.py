"""Schemas, and values decoded by them, with a small registry that speaks Confluent's API."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator

import fastavro
import pytest
from confluent_kafka import Producer

from tests.console.registry import HOSTILE, NEW, OLD, Registry, serving
from tests.console.support import Client, console, eventually, fragment


@pytest.fixture(scope="module")
def registry() -> Iterator[tuple[str, Registry]]:
    with serving() as served:
        yield served


@pytest.fixture(scope="module")
def client(broker: str, registry: tuple[str, Registry]) -> Iterator[Client]:
    producer = Producer({"bootstrap.servers": broker, "log_level": 0})
    for id_, schema, value in ((1, OLD, {"id": 41}), (2, NEW, {"id": 42, "note": "<script>"}), (9, OLD, {"id": 43})):
        body = io.BytesIO()
        fastavro.schemaless_writer(body, schema, value)
        producer.produce("with-schemas", struct.pack(">bI", 0, id_) + body.getvalue(), str(value["id"]))
    assert producer.flush(30) == 0
    with console(broker, registry_url=registry[0]) as opened:
        eventually(lambda: "with-schemas" in opened.house.snapshot.topics, "the console sees the topic")
        yield opened


def test_subjects_are_listed_and_searched(client: Client) -> None:
    text = fragment(client, "/schemas")
    assert "2 subjects" in text
    assert "orders/&lt;i&gt;value&lt;/i&gt;" in text
    assert "No subject" in fragment(client, "/schemas?q=nothing")


def test_the_registry_is_there_for_programs_too(client: Client) -> None:
    assert client.get("/api/schemas?q=orders-value").json()["subjects"] == ["orders-value"]
    told = client.get("/api/schema?subject=orders-value&version=1").json()
    assert (told["version"], told["versions"], told["compatibility"]) == (1, [1, 2], "FULL")


def test_a_subject_shows_its_versions(client: Client) -> None:
    newest = client.get("/schema", params={"subject": "orders-value"}).text
    assert "version 2, compatibility FULL" in newest
    assert "&lt;b&gt;" in newest
    older = client.get("/schema", params={"subject": "orders-value", "version": "1"}).text
    assert "id 1, version 1" in older
    assert "note" not in older.partition('<pre class="content"')[2]
    hostile = client.get("/schema", params={"subject": HOSTILE}).text
    assert "compatibility BACKWARD" in hostile
    assert "<i>value" not in hostile
    assert client.get("/schema", params={"subject": "nobody"}).status_code == 404
    assert client.get("/schema", params={"subject": "orders-value", "version": "3"}).status_code == 404


def test_values_are_decoded_by_the_schema_they_name(client: Client, registry: tuple[str, Registry]) -> None:
    page = client.get("/api/topics/with-schemas/messages", params={"start": "oldest"}).json()["records"]
    shown = [(record["value_format"], record["value"]) for record in page]
    assert shown[:2] == [("avro", {"id": 41}), ("avro", {"id": 42, "note": "<script>"})]
    assert shown[2][0] != "avro"  # the registry does not know its schema, so the bytes are shown
    asked = registry[1].asked.count("/schemas/ids/1")
    client.get("/api/topics/with-schemas/messages", params={"start": "oldest"})
    assert registry[1].asked.count("/schemas/ids/1") == asked == 1  # a schema never changes


def test_a_registry_that_is_none_is_said(client: Client, registry: tuple[str, Registry]) -> None:
    path, oldest = "/api/topics/with-schemas/messages", {"start": "oldest"}
    assert client.get(path, params=oldest).json()["records"][0]["value"] == {"id": 41}
    registry[1].is_away = True
    try:
        answer = client.get("/schemas", headers={"hx-request": "true", "hx-target": "rows"})
        assert answer.status_code == 502
        assert "cannot be asked" in answer.text
        assert client.get(path, params=oldest).json()["records"][0]["value"] == {"id": 41}  # known before
    finally:
        registry[1].is_away = False


def test_without_a_registry_the_screen_says_how_to_give_one(broker: str) -> None:
    with console(broker) as plain:
        assert "--schema-registry" in plain.get("/schemas").text
        assert plain.get("/schema", params={"subject": "x"}).status_code == 404
