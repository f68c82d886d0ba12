"""The screens over a live broker: what they show is what is there, and what they do is done."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from moldau.console.messages.tail import TAILS_OF_ONE_MAX
from moldau.console.routes import DOORS
from moldau.console.screens.openapi import document, is_documented
from moldau.toolkit.dead_letters import redriven_ids
from moldau.toolkit.delays import entry
from tests.console.support import SCREENS, Client, console, eventually, fragment, post

_LOOKING = [
    *SCREENS,
    "/search?q=ord",
    "/topics?show=all",
    "/topics/orders/messages/0/5",
    "/group?name=readers",
    "/login",
    "/api/openapi.json",
    "/api/session",
    "/api/overview",
    "/api/changes",
    "/api/topics",
    "/api/topics/orders",
    "/api/topics/orders/settings",
    "/api/groups",
    "/api/group?name=readers",
    "/api/brokers",
    "/api/transactions",
    "/api/pipelines",
    "/api/audit",
    "/api/brokers/1/settings",
    "/api/reassignments",
    "/api/acls",
    "/api/users",
    "/api/quotas",
    "/api/dead-letters",
    "/api/dead-letters/orders-dlt",
    "/api/delays",
    "/api/traces",
    "/api/traces?id=nobody",
    "/brokers/1/settings",
    "/groups?topic=orders",
    "/api/history/cluster",
    "/api/history/cluster?show=isr",
    "/api/history/topics/orders",
    "/api/history/group?name=readers",
    "/api/history/brokers",
    "/api/history/pipeline?name=x",
]


@pytest.mark.parametrize("path", _LOOKING)
def test_every_screen_answers(client: Client, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    if path.startswith("/api/"):
        answer.json()


@pytest.mark.parametrize(
    ("path", "target", "has"),
    [
        ("/topics/orders/settings", "settings", "retention.ms"),
        ("/brokers/1/settings", "settings", "log.dirs"),
        ("/reassignments", "moving", "No replica is on its way"),
        ("/transactions?q=nobody", "rows", "No id has"),
        ("/acls", "rows", "SECURITY_DISABLED"),
        ("/dead-letters/orders-dlt", "letters", "LookupError"),
        ("/traces?id=nobody", "steps", "Nothing is noted about it"),
        ("/topics", "live", "orders"),
        ("/", "live", "broker up"),
    ],
)
def test_the_parts_that_are_asked_for(client: Client, path: str, target: str, has: str) -> None:
    text = fragment(client, path, target)
    assert has in text
    assert "<html" not in text


def test_the_openapi_document_is_valid_and_complete() -> None:
    told = document(DOORS)
    operations = [each for path in told["paths"].values() for each in path.values()]
    # Programs can do all that people can: what is left out are pages, each of which has its twin in the API.
    pages = {door.path for door in DOORS if not is_documented(door)}
    assert len(operations) == len(DOORS) - len([door for door in DOORS if not is_documented(door)])
    of_the_api = {door.path.removeprefix("/api") for door in DOORS if door.is_api}
    twins = {"/": "/overview", "/happened": "/changes", "/pipeline": "/pipelines", "/search": "/topics"}
    twins |= {"/topics/{topic}/messages/{partition}/{offset}": "/topics/{topic}/messages"}
    twins |= {"/brokers/{broker}": "/brokers"}
    left = {"/static/{path:path}", "/login", "/logout", "/oidc/start", "/oidc/callback", "/api"}
    assert {page for page in pages - left if twins.get(page, page) not in of_the_api} == set()
    assert len({each["operationId"] for each in operations}) == len(operations)
    for path, methods in told["paths"].items():
        named = {part[1:-1] for part in path.split("/") if part.startswith("{")}
        for each in methods.values():
            assert {one["name"] for one in each["parameters"] if one["in"] == "path"} == named
    json.dumps(told)


def test_a_topic_from_creation_to_deletion(client: Client, broker: str) -> None:
    made = post(
        client, "/topics", name="river", partitions="2", settings="retention.ms=1000000\ncleanup.policy=compact"
    )
    assert made.headers["location"] == "/topics/river"
    assert "Topic river was created" in client.get("/topics/river").text
    changed = post(client, "/topics/river/settings", setting="retention.ms", setting_value="2000000")
    assert changed.status_code == 303
    rows = {row["name"]: row for row in client.get("/api/topics/river/settings").json()["settings"]}
    assert (rows["retention.ms"]["value"], rows["retention.ms"]["set_by"]) == ("2000000", "set for this topic")
    post(client, "/topics/river/settings", setting="retention.ms", reset="on")
    rows = {row["name"]: row for row in client.get("/api/topics/river/settings").json()["settings"]}
    assert rows["retention.ms"]["set_by"] != "set for this topic"
    post(client, "/topics/river/settings", setting="retention.ms", setting_value="36h")
    assert "1.5 days" not in (words := fragment(client, "/topics/river/settings?q=retention.ms", "settings"))
    assert ("129600000" in words, "36 hours" in words, "cleanup.policy" in words) == (True, True, False)
    refused = post(client, "/topics/river/settings", setting="retention.ms", setting_value="soon")
    assert refused.status_code == 409
    post(client, "/topics/river/partitions", count="3")
    eventually(lambda: len(client.house.snapshot.topics["river"].partitions) == 3, "a partition more")
    post(client, "/topics/river/settings", setting="cleanup.policy", setting_value="delete")
    post(client, "/topics/river/produce", value="drop", key="k")
    eventually(lambda: client.house.snapshot.topics["river"].records == 1, "the record is seen")
    assert post(client, "/topics/river/empty", confirm="rivers").status_code == 400
    post(client, "/topics/river/empty", confirm="river")
    eventually(lambda: client.house.snapshot.topics["river"].records == 0, "it is gone")
    assert post(client, "/topics/river/delete").status_code == 400
    assert "river" in AdminClient({"bootstrap.servers": broker}).list_topics().topics
    post(client, "/topics/river/delete", confirm="river")
    eventually(lambda: "river" not in client.house.snapshot.topics, "the topic is gone")
    texts = [change["text"] for change in client.get("/api/changes").json()["changes"]]
    assert "topic river was created" in texts
    assert "topic river was deleted" in texts


def test_a_user_of_the_cluster_comes_and_goes(client: Client) -> None:
    assert post(client, "/users", name="ivan", password="long enough", mechanism="2").status_code == 303
    eventually(lambda: "ivan" in fragment(client, "/users"), "the user is there")
    assert post(client, "/users/delete", name="ivan", mechanism="2", confirm="no").status_code == 400
    assert post(client, "/users/delete", name="ivan", mechanism="2", confirm="ivan").status_code == 303
    eventually(lambda: "ivan" not in fragment(client, "/users"), "the user is gone")


def test_a_quota_is_set_and_removed(client: Client) -> None:
    quota = {"is_user": "on", "name_user": "greedy", "quota": "producer_byte_rate"}
    assert post(client, "/quotas", **quota, limit="1048576").status_code == 303
    eventually(lambda: "1.0 MiB/s" in fragment(client, "/quotas"), "the quota is there")
    assert post(client, "/quotas", **quota, limit="-1").status_code == 400
    assert post(client, "/quotas", **quota, remove="on").status_code == 303
    eventually(lambda: "greedy" not in fragment(client, "/quotas"), "the quota is gone")


def _seen(client: Client, expected: list[int]) -> bool:
    return [each.committed for each in client.house.snapshot.groups["movers"].positions.values()] == expected


def test_moving_a_group_shows_first_and_moves_then(client: Client, broker: str) -> None:
    reader = Consumer({"bootstrap.servers": broker, "group.id": "movers", "log_level": 0})
    wheres = [TopicPartition("orders", index, 50) for index in range(3)]
    reader.commit(offsets=wheres, asynchronous=False)
    eventually(lambda: "movers" in client.house.snapshot.groups, "the group is seen")
    assert client.get("/api/group?name=movers").json()["lag"] == 150

    def committed() -> list[int]:
        return [each.offset for each in reader.committed([TopicPartition("orders", index) for index in range(3)], 10)]

    shown = post(client, "/group/reset", name="movers", to="earliest")
    assert shown.text.count("-50") == 3
    token = client.get("/api/session").json()["csrf"]
    plain = client.post(
        "/group/reset", json={"name": "movers", "to": "earliest"}, headers={"x-csrf-token": token}
    ).json()
    assert plain["would"][0] == {"topic": "orders", "partition": 0, "before": 50, "after": 0}
    assert committed() == [50, 50, 50]
    assert "movers" not in [each.details.get("name") for each in client.house.audit.entries]
    assert post(client, "/group/reset", name="movers", to="earliest", step="apply", confirm="no").status_code == 400
    moves = {
        ("earliest", ""): [0, 0, 0],
        ("shift", "7"): [7, 7, 7],
        ("shift", "-99"): [0, 0, 0],
        ("offset", "500"): [100, 100, 100],
        ("time", "1000150"): [50, 50, 50],
        ("latest", ""): [100, 100, 100],
    }
    for (to, at), expected in moves.items():
        answer = post(client, "/group/reset", name="movers", to=to, at=at, step="apply", confirm="movers")
        assert (to, at, answer.status_code) == (to, at, 303), answer.text
        assert (to, at, committed()) == (to, at, expected)
        eventually(partial(_seen, client, expected), "the move is seen")
    reader.close()
    post(client, "/group/delete", name="movers", confirm="movers")
    eventually(lambda: "movers" not in client.house.snapshot.groups, "the group is gone")


def test_a_group_with_members_is_not_moved(client: Client, broker: str) -> None:
    reader = Consumer({"bootstrap.servers": broker, "group.id": "busy", "client.id": "worker-7", "log_level": 0})
    reader.subscribe(["orders"])
    try:

        def is_seen() -> bool:
            reader.poll(0.1)
            group = client.house.snapshot.groups.get("busy")
            return bool(group and group.members and group.members[0].assigned)

        eventually(is_seen, "the member and what it has are seen")
        member = client.house.snapshot.groups["busy"].members[0]
        assert (member.client, member.assigned) == ("worker-7", (("orders", (0, 1, 2)),))
        answer = post(client, "/group/reset", name="busy", to="earliest")
        assert (answer.status_code, "Stop its consumers" in answer.text) == (409, True)
    finally:
        reader.close()


def test_dead_letters_by_reason_and_back(broker: str, client: Client) -> None:
    text = fragment(client, "/dead-letters/orders-dlt", "letters")
    assert "&lt;i&gt;out of&lt;/i&gt; stock" in text
    before = client.house.snapshot.topics["orders"].records
    answer = post(client, "/dead-letters/orders-dlt/redrive", what="reason", reason="ValueError", to="payments")
    assert answer.status_code == 303, answer.text
    job = eventually(
        lambda: (found := client.get("/dead-letters/orders-dlt/job").json()["job"])["state"] != "running" and found,
        "the redrive ends",
    )
    assert (job["state"], job["result"]) == ("done", "4 sent back, 0 were before, 8 left.")
    assert len(redriven_ids({"bootstrap.servers": broker}, "orders-dlt")) == 4
    eventually(lambda: "orders-dlt-redriven" in client.house.snapshot.topics, "the notes are seen")
    text = fragment(client, "/dead-letters/orders-dlt", "letters")
    assert text.count("sent back") == 4
    assert client.house.snapshot.topics["orders"].records == before
    assert post(client, "/dead-letters/orders-dlt/redrive", what="all").status_code == 400
    assert post(client, "/dead-letters/orders-dlt/redrive").status_code == 400
    assert client.get("/dead-letters/orders").status_code == 404


def test_delayed_messages_are_listed_and_cancelled(broker: str, client: Client) -> None:
    from moldau.toolkit.delays.topics import DelayTopics, make_topics

    topics = DelayTopics()
    assert "Nothing was ever delayed" in client.get("/delays").text
    make_topics({"bootstrap.servers": broker}, topics)
    producer = Producer({"bootstrap.servers": broker, "log_level": 0})
    due = time.time_ns() // 1_000_000 + 3_600_000
    for id_ in ("remind-1", "remind-2"):
        delayed = entry.Delayed(due, "reminders", b"k", b'{"pay": true}', [])
        producer.produce(topics.pending, entry.encode(delayed), id_)
    producer.produce(topics.pending, None, "remind-2")
    producer.flush(10)
    eventually(lambda: topics.commands in client.house.snapshot.topics, "the topics are seen")
    text = fragment(client, "/delays", "pending")
    assert "remind-1" in text
    assert "remind-2" not in text
    assert "No relay is running" in text
    assert "remind-1" in json.dumps(client.get("/api/delays?q=remind-1").json()["pending"])
    assert client.get("/api/delays?q=nothing").json()["total"] == 0
    assert post(client, "/delays/cancel", id="remind-1", confirm="remind-2").status_code == 400
    assert post(client, "/delays/cancel", id="remind-1", confirm="remind-1").status_code == 303
    found = client.get(f"/api/topics/{topics.commands}/messages").json()["records"]
    assert [(record["key"], record["value"]) for record in found] == [("remind-1", None)]


def test_a_transaction_is_seen_and_ended(broker: str, client: Client) -> None:
    from confluent_kafka import KafkaException

    producer = Producer({"bootstrap.servers": broker, "transactional.id": "till-7", "log_level": 0})
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce("payments", b"undecided")
    producer.flush(10)
    text = fragment(client, "/transactions?q=till", "rows")
    assert "till-7" in text
    assert "Ongoing" in text
    assert "payments-0" in text
    assert post(client, "/transactions/end", transaction="till-7").status_code == 400
    assert post(client, "/transactions/end", transaction="till-7", confirm="till-7").status_code == 303
    with pytest.raises(KafkaException):
        producer.commit_transaction(10)


def test_traces_tell_a_messages_story(broker: str, client: Client) -> None:
    from moldau.toolkit.partitioners import by_key
    from moldau.toolkit.trace import TRACE_TOPIC

    producer = Producer({"bootstrap.servers": broker, "log_level": 0})
    partition = by_key(TRACE_TOPIC, b"msg-<1>", 2)
    assert partition is not None
    for at, event in enumerate(("produced", "stored", "handled")):
        note = {"at_ms": 1_000 + at, "event": event, "app": "shop", "topic": "orders", "partition": 0, "offset": 3}
        producer.produce(TRACE_TOPIC, json.dumps(note), b"msg-<1>", partition)
    producer.flush(10)
    text = fragment(client, "/traces?id=msg-%3C1%3E", "steps")
    assert [text.index(word) for word in ("produced", "stored", "handled")] == sorted(
        text.index(word) for word in ("produced", "stored", "handled")
    )
    assert 'href="/topics/orders/messages/0/3"' in text
    assert "msg-&lt;1&gt;" in fragment(client, "/traces", "steps")


def test_pipelines_are_read_from_their_status_files(broker: str, tmp_path: Path) -> None:
    query = {
        "name": "windows",
        "state": "failed",
        "batch_id": 4,
        "rows_total": 1000,
        "rows_per_second": 50.0,
        "error": "<b>",
    }
    calm = {"name": "calm", "state": "running", "error": None}
    told = {"pipeline": "metrics", "running": True, "pid": 2**22 + 1, "time": time.time(), "queries": [query, calm]}
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics" / "status.json").write_text(json.dumps(told))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "status.json").write_text("{")
    with console(broker, pipeline_folders=(tmp_path,)) as client:
        found = client.get("/api/pipelines").json()["pipelines"]
        assert [(each["name"], each["state"]) for each in found] == [("metrics", "failed")]
        page = client.get("/pipeline?name=metrics").text
        assert "&lt;b&gt;" in page
        assert "None" not in page
        assert client.get("/pipeline?name=../x").status_code == 404


def test_a_cluster_that_is_away_is_said_and_what_was_known_stays() -> None:
    from moldau.testing import Broker

    with Broker() as running:
        address = running.bootstrap_servers
        AdminClient({"bootstrap.servers": address, "log_level": 0})
        with console(address) as client:
            eventually(lambda: client.house.snapshot.number and client.house.snapshot.brokers, "a first look")
            assert post(client, "/topics", name="kept", partitions="1").status_code == 303
            eventually(lambda: "kept" in client.house.snapshot.topics, "the topic is seen")
            running.stop()
            eventually(lambda: client.house.snapshot.problems, "the console notices")
            assert "No broker answers" in client.get("/").text
            assert "kept" in client.get("/topics").text
            answer = client.get("/topics/kept/settings", headers={"hx-request": "true"})
            assert answer.status_code == 502
            assert "does not answer" in answer.text


def test_the_tail_shows_what_comes(broker: str, client: Client) -> None:
    producer = Producer({"bootstrap.servers": broker, "log_level": 0})
    with client.stream("GET", "/topics/payments/tail", params={"filter": "tailed"}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        producer.produce("payments", b"not this one")
        seen = threading.Event()

        def keep_producing() -> None:  # the tail may need a moment to find the end
            while not seen.wait(0.05):
                producer.produce("payments", b"<tailed>")
                producer.flush(5)

        with ThreadPoolExecutor(1) as beside:
            producing = beside.submit(keep_producing)
            try:
                told = json.loads(next(line for line in lines if line.startswith("data: "))[6:])
            finally:
                seen.set()
            producing.result()
        assert "&lt;tailed" in told["html"]
        assert "not this one" not in told["html"]
    eventually(lambda: len(client.house.tails) == 0, "the tail ends with its reader")


def test_nobody_has_all_tails(client: Client) -> None:
    with ExitStack() as stack:
        path = "/topics/orders/tail"
        for _ in range(TAILS_OF_ONE_MAX):
            assert stack.enter_context(client.stream("GET", path)).status_code == 200
        refused = client.get(path)
        assert (refused.status_code, "You have" in refused.text) == (429, True)
        with Client(base_url=client.origin, timeout=30) as other:  # somebody else
            other.get("/")
            assert stack.enter_context(other.stream("GET", path)).status_code == 200
    eventually(lambda: len(client.house.tails) == 0, "the tails end")


def test_snapshots_are_announced(client: Client) -> None:
    with client.stream("GET", "/events") as answer:
        numbers = []
        for line in answer.iter_lines():
            if line.startswith("data: "):
                numbers.append(json.loads(line[6:])["number"])
            if len(numbers) == 3:
                break
    assert numbers == sorted(set(numbers))
