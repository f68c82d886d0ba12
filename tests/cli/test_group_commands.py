"""`moldau group …` and `moldau lag`, word for word."""

from pathlib import Path

import pytest

from moldau.cli.streams_reset import internal_topics, of_others
from tests.cli.running import Command
from tests.support.clients import CONFLUENT, Sent, create_topic, fresh, quiet, wait_for


@pytest.fixture(scope="module")
def topic(moldau: Command) -> str:
    name = create_topic(moldau.bootstrap_servers, "read", 2)
    CONFLUENT.send(moldau.bootstrap_servers, name, [Sent(b"%d" % n) for n in range(10)], "none")
    return name


@pytest.fixture
def group(moldau: Command, topic: str) -> str:
    """One that has committed 4 of partition 0, and 0 of partition 1."""
    name = fresh("readers")
    moldau.ok("group", "reset", name, "-t", topic, "--to", "4", "--execute")
    return name


def test_list_and_describe(moldau: Command, group: str, topic: str) -> None:
    (row,) = [row for row in moldau.ok("group", "list", "--json").json if row["group"] == group]
    assert row["state"] == "empty"
    assert group in moldau.ok("group", "list", "--state", "empty").out
    assert group not in moldau.ok("group", "list", "--state", "stable").out
    (found,) = moldau.ok("group", "describe", group, "--json").json
    assert (found["lag"], found["members"], found["state"]) == (6, 0, "empty")
    lines = moldau.ok("group", "describe", group).lines
    assert lines[0].startswith(f"{group}: empty, classic, 0 members, lag 6, assignor -, coordinator 1 (")
    assert lines[1].split() == ["topic", "partition", "committed", "end", "lag", "client", "host"]
    assert lines[2].split() == [topic, "0", "4", "10", "6", "-", "-"]
    assert moldau.ok("group", "describe", group, "--format", "{group} {partition} {lag}").out == (
        f"{group} 0 6\n{group} 1 0\n"
    )
    assert "there is no group nobody" in moldau.refused(4, "group", "describe", "nobody")
    assert moldau.ok("group", "members", group).err == "nobody\n"


def test_members_while_somebody_reads(moldau: Command, topic: str) -> None:
    from confluent_kafka import Consumer

    name = fresh("live")
    consumer = Consumer(quiet(moldau.bootstrap_servers, group_id=name, client_id="me", auto_offset_reset="earliest"))
    try:
        consumer.subscribe([topic])
        wait_for(lambda: consumer.poll(0.05), "a record")
        (row,) = moldau.ok("group", "members", name, "--json").json
        assert (row["client"], sorted(row["partitions"])) == ("me", [f"{topic}-0", f"{topic}-1"])
        assert moldau.ok("group", "list", "--state", "stable", "--format", "{group}").out == f"{name}\n"
        said = moldau.refused(1, "group", "reset", name, "-t", topic, "--to", "earliest", "--execute")
        assert "members" in said
        moldau.refused(1, "group", "delete", name)
    finally:
        consumer.close()


def test_lag(moldau: Command, group: str, topic: str) -> None:
    row = {"group": group, "topic": topic, "partitions": 2, "members": 0, "lag": 6}
    assert moldau.ok("group", "lag", group, "--json").json == [row]
    assert moldau.ok("group", "lag", group, "--max", "6").code == 0
    assert f"behind by more than 5: {group} 6" in moldau.refused(6, "group", "lag", group, "--max", "5")
    judged = moldau.ok("lag", group, "--json").json
    assert [(row["partition"], row["lag"]) for row in judged] == [(0, 6), (1, 0)]
    assert "above zero" in moldau.refused(2, "lag", "--every", "0")


@pytest.mark.parametrize(
    ("to", "offset"),
    [("earliest", 0), ("latest", 10), ("7", 7), ("99", 10), ("+2", 6), ("-3", 1), ("-30", 0), ("current", 4),
     ("2001-01-01", 0), ("now", 10), ("-2d", 0)],
)  # fmt: skip
def test_reset_shows_the_plan_and_does_it_only_if_told(
    moldau: Command, group: str, topic: str, to: str, offset: int
) -> None:
    planned = moldau("group", "reset", group, "-t", f"{topic}:0", "--to", to, "--json")
    assert planned.json == [{"topic": topic, "partition": 0, "from": 4, "to": offset}]
    assert "nothing was changed" in planned.err
    assert moldau.ok("group", "describe", group, "--json").json[0]["partitions"][0]["committed"] == 4
    moldau.ok("group", "reset", group, "-t", f"{topic}:0", "--to", to, "--execute")
    assert moldau.ok("group", "describe", group, "--json").json[0]["partitions"][0]["committed"] == offset


def test_a_plan_can_wait_in_a_file(moldau: Command, group: str, topic: str, tmp_path: Path) -> None:
    plan = tmp_path / "plan.csv"
    moldau.ok("group", "reset", group, "--all-topics", "--to", "latest", "--plan", str(plan))
    assert plan.read_text().splitlines() == [f"{topic},0,10", f"{topic},1,0"]
    moldau.ok("group", "reset", group, "--from-file", str(plan), "--execute")
    assert moldau.ok("group", "lag", group, "--json").json[0]["lag"] == 0
    plan.write_text("nonsense\n")
    assert "line 1: write topic,partition,offset" in moldau.refused(
        2, "group", "reset", group, "--from-file", str(plan)
    )
    moldau.refused(2, "group", "reset", group, "--from-file", str(tmp_path / "none"))


def test_a_plan_that_waited_too_long_is_held_to_what_the_log_has(
    moldau: Command, group: str, topic: str, tmp_path: Path
) -> None:
    """Outside of it a consumer would go where auto.offset.reset sends it: over everything, or back to the start."""
    plan = tmp_path / "plan.csv"
    plan.write_text(f"{topic},0,11\n{topic},1,0\n")
    planned = moldau("group", "reset", group, "--from-file", str(plan), "--json")
    assert [row["to"] for row in planned.json] == [10, 0]
    assert f"{topic}-0 has no offset 11: 10 instead" in planned.err
    plan.write_text(f"{topic},0,4\n{topic},7,4\n")
    assert f"{topic} has 2 partitions, and no 7" in moldau.refused(
        4, "group", "reset", group, "--from-file", str(plan), "--execute"
    )
    plan.write_text("nowhere,0,4\n")
    assert "no such topic: nowhere" in moldau.refused(4, "group", "reset", group, "--from-file", str(plan))


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        ([], 2, "--to PLACE"),
        (["--to", "earliest"], 2, "say which"),
        (["--to", "soon", "-t", "TOPIC"], 2, "is no time"),
        (["--to", "1", "-t", "nowhere"], 4, "no such topic"),
        (["--to", "1", "-t", "TOPIC:9"], 4, "and no 9"),
        (["--to", "1", "-t", "TOPIC:x"], 2, "TOPIC:0,1"),
    ],
)
def test_resets_that_cannot_be(
    moldau: Command, group: str, topic: str, arguments: list[str], code: int, word: str
) -> None:
    given = [each.replace("TOPIC", topic) for each in arguments]
    assert word in moldau.refused(code, "group", "reset", group, *given)


def test_delete(moldau: Command, group: str, topic: str) -> None:
    rows = moldau.ok("group", "delete-offsets", group, "-t", topic, "--json").json
    assert [(row["partition"], row["result"]) for row in rows] == [(0, "deleted"), (1, "deleted")]
    assert "has no offsets" in moldau.refused(4, "group", "delete-offsets", group, "-t", topic)
    other = fresh("others")
    moldau.ok("group", "reset", other, "-t", topic, "--to", "latest", "--execute")
    assert moldau.ok("group", "delete", other).out == f"deleted {other}\n"
    assert "nobody: " in moldau.refused(4, "group", "delete", "nobody")


def test_topics_of_a_streams_application_are_told_by_their_names() -> None:
    own = ["a-x-changelog", "a-x-repartition", "a-f-KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION-0000000004-topic"]
    others = ["a-x", "ab-x-changelog", "x-a-x-changelog", "a-x-changelog2", "a-in-changelog", "a"]
    assert internal_topics("a", [*own, *others], {"a-in-changelog"}) == sorted(own)
    assert of_others("a", ["a-x-changelog", "a-b-x-changelog"], ["a", "a-b", "ab", "x"]) == {"a-b-x-changelog": "a-b"}


def test_a_streams_application_is_set_back(moldau: Command, topic: str) -> None:
    name = fresh("streams")
    own = [f"{name}-s-changelog", f"{name}-s-repartition"]
    kept = [f"{name}-out", f"{name}-eu-s-changelog"]
    moldau.ok("topic", "create", *own, *kept)
    moldau.ok("group", "reset", name, "-t", topic, "--to", "latest", "--execute")
    moldau.ok("group", "reset", f"{name}-eu", "-t", topic, "--to", "latest", "--execute")
    planned = moldau.ok("group", "reset-streams", name, "-t", topic, "--json")
    assert [(row["what"], row["name"], row["from"], row["to"]) for row in planned.json] == [
        ("offset", f"{topic}-0", 10, 0),
        ("offset", f"{topic}-1", 0, 0),
        *(("topic", each, None, "deleted") for each in own),
    ]
    assert f"{name}-eu-s-changelog stays: it may be {name}-eu's" in planned.err
    assert "nothing was changed" in planned.err
    listed = moldau.ok("topic", "list", "--format", "{name}").lines
    assert set(own + kept) <= set(listed)
    assert "is no internal topic" in moldau.refused(4, "group", "reset-streams", name, "--internal-topic", kept[0])
    one = moldau.ok("group", "reset-streams", name, "--internal-topic", own[0], "--execute", "--format", "{name}")
    assert one.lines == own[:1]
    done = moldau.ok("group", "reset-streams", name, "-t", f"{topic}:0", "--to", "3", "--execute")
    assert "set 1 offset of" in done.err
    assert "deleted 1 topic" in done.err
    assert set(moldau.ok("topic", "list", f"{name}*", "--format", "{name}").lines) == set(kept)
    (found,) = moldau.ok("group", "describe", name, "--json").json
    assert [row["committed"] for row in found["partitions"]] == [3, 0]
    nothing = moldau.ok("group", "reset-streams", name)
    assert "nothing to reset" in nothing.err


def test_a_member_that_died_is_removed_only_by_force(moldau: Command, topic: str) -> None:
    """A static member does not leave when it ends, and its session lasts."""
    from confluent_kafka import Consumer

    name = fresh("static")
    settings = quiet(moldau.bootstrap_servers, group_id=name, client_id="gone", auto_offset_reset="earliest")
    consumer = Consumer(settings | {"group.instance.id": "one", "session.timeout.ms": 45_000})
    consumer.subscribe([topic])
    wait_for(lambda: consumer.poll(0.05), "a record")
    consumer.close()
    assert "no reset is possible now: 1 member (gone at" in moldau.ok("group", "reset-streams", name, "-t", topic).err
    said = moldau.refused(1, "group", "reset-streams", name, "-t", topic, "--execute")
    assert "--force" in said
    forced = moldau.ok("group", "reset-streams", name, "-t", topic, "--force", "--execute", "--json")
    assert [row["name"] for row in forced.json if row["what"] == "member"] == ["one"]
    (found,) = moldau.ok("group", "describe", name, "--json").json
    assert (found["members"], [row["committed"] for row in found["partitions"]]) == (0, [0, 0])


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        ([], 4, "there is no group nobody, and no internal topic of it"),
        (["-t", "nowhere"], 4, "no such topic"),
        (["-t", "TOPIC", "--to", "soon"], 2, "is no time"),
        (["-t", "TOPIC", "--from-file", "x"], 2, "choose one"),
        (["--from-file", "nowhere"], 2, "cannot read"),
        (["--internal-topic", "TOPIC"], 4, "it has none"),
    ],
)
def test_applications_that_cannot_be_reset(
    moldau: Command, topic: str, arguments: list[str], code: int, word: str
) -> None:
    given = [each.replace("TOPIC", topic) for each in arguments]
    assert word in moldau.refused(code, "group", "reset-streams", "nobody", *given)


def test_all_groups_means_those_that_read(moldau: Command, group: str) -> None:
    assert group in moldau.ok("group", "lag", "--format", "{group}").lines
