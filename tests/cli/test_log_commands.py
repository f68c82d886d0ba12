"""`moldau log dump|verify|recover` on the folder of a node that was stopped, whole and damaged."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from moldau.testing import Broker
from tests.cli.running import Command
from tests.support.clients import CONFLUENT, Sent, create_topic

BATCHES = 5


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A node's folder: topic `t` with five batches of ten records, a group, a transaction."""
    folder = tmp_path_factory.mktemp("node") / "data"
    with Broker(data_dir=str(folder)) as broker:
        moldau = Command(broker.bootstrap_servers, str(folder.parent))
        moldau.ok("topic", "create", "t")
        for number in range(BATCHES):
            records = [Sent(b"%d" % each, b"k", (("h", b"1"),)) for each in range(number * 10, number * 10 + 10)]
            CONFLUENT.send(broker.bootstrap_servers, "t", records, "none")
        moldau.ok("group", "reset", "readers", "-t", "t", "--to", "3", "--execute")
        moldau.ok("produce", create_topic(broker.bootstrap_servers, "other"), "--transactional-id", "x", stdin="1\n")
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "data"))


@pytest.fixture(scope="module")
def moldau(tmp_path_factory: pytest.TempPathFactory) -> Command:
    return Command("127.0.0.1:1", str(tmp_path_factory.mktemp("home")))


def segment(folder: Path) -> Path:
    (found,) = (folder / "t-0").glob("*.log")
    return found


def rows(moldau: Command, *arguments: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in moldau.ok("log", "dump", *arguments, "--json").lines]


def test_batches_and_records(moldau: Command, folder: Path) -> None:
    batches = rows(moldau, str(folder / "t-0"))
    assert sum(int(str(each["records"])) for each in batches) == 50
    assert {each["crc"] for each in batches} == {"ok"}
    assert batches[0]["offset"] == batches[0]["position"] == 0
    records = rows(moldau, str(segment(folder)), "--records", "--from", "48")
    assert [(each["offset"], each["key"], each["value"], each["headers"]) for each in records] == [
        (48, "k", "48", ["h=1"]), (49, "k", "49", ["h=1"]),
    ]  # fmt: skip
    assert len(rows(moldau, str(segment(folder)), "-r", "-n", "3")) == 3
    lines = moldau.ok("log", "dump", str(segment(folder))).lines
    assert lines[0] == str(segment(folder))
    assert lines[1].split()[:5] == ["offset", "last", "records", "position", "bytes"]


def test_the_cluster_s_own_records_in_words(moldau: Command, folder: Path) -> None:
    metadata = rows(moldau, str(folder / "__cluster_metadata-0"), "--decode")
    assert "TopicRecord" in {each["key"] for each in metadata}
    offsets = [each for place in folder.glob("__consumer_offsets-*") for each in rows(moldau, str(place), "-d")]
    commits = [each for each in offsets if isinstance(each["key"], dict) and each["key"]["type"] == "OffsetCommit"]
    assert [each["value"]["offset"] for each in commits] == [3]  # type: ignore[index]
    transactions = [each for place in folder.glob("__transaction_state-*") for each in rows(moldau, str(place), "-d")]
    assert {each["key"]["transactional_id"] for each in transactions} == {"x"}  # type: ignore[index]


def test_other_files(moldau: Command, folder: Path) -> None:
    for place in (*(folder / "t-0").glob("*.*index"), *(folder / "t-0").glob("*.snapshot"), folder / "meta.properties"):
        moldau.ok("log", "dump", str(place))
    times = rows(moldau, *map(str, (folder / "t-0").glob("*.timeindex")))
    assert times[-1]["offset"] == 49
    (folder / "t-0" / "odd.bin").write_bytes(b"")
    assert "is no file that is known here" in moldau.refused(2, "log", "dump", str(folder / "t-0" / "odd.bin"))
    assert "does not exist" in moldau.refused(2, "log", "dump", str(folder / "none"))
    (folder / "empty").mkdir()
    moldau.refused(4, "log", "dump", str(folder / "empty"))
    moldau.refused(4, "log", "verify", str(folder / "empty"))


def flip(folder: Path) -> None:
    with segment(folder).open("r+b") as file:
        file.seek(-3, 2)
        file.write(b"\xff")


def tear(folder: Path) -> None:
    with segment(folder).open("r+b") as file:
        file.truncate(segment(folder).stat().st_size - 5)


def scribble(folder: Path) -> None:
    with segment(folder).open("ab") as file:
        file.write(b"\0" * 100)


def mislead(folder: Path) -> None:
    segment(folder).with_suffix(".index").write_bytes(b"\0\0\0\x09\0\0\0\x07")


@pytest.mark.parametrize(
    ("damage", "word"),
    [(flip, "CRC"), (tear, "is cut off"), (scribble, "no batch begins here"), (mislead, "leads to a place")],
)
def test_damage_is_found_and_cut_away(moldau: Command, folder: Path, damage: Callable[[Path], None], word: str) -> None:
    clean = moldau.ok("log", "verify", str(folder))
    assert " 0 problems" in clean.err
    before = sum(int(str(each["records"])) for each in rows(moldau, str(folder / "t-0")))
    damage(folder)
    found = moldau("log", "verify", str(folder), "--json")
    assert found.code == 6
    assert word in found.json["problems"][0]["what"]
    assert moldau("log", "verify", str(folder / "t-0"), "--quick").code == 6
    planned = moldau("log", "recover", str(folder))
    assert planned.code == 6
    assert "nothing was changed" in planned.err
    assert ("all from offset 40 on would be removed" in planned.out) == (damage in (flip, tear))
    assert ("all from offset 50 on would be removed, 100 bytes" in planned.out) == (damage is scribble)
    assert moldau("log", "verify", str(folder)).code == 6
    moldau.ok("log", "recover", str(folder), "--execute")
    assert moldau.ok("log", "verify", str(folder)).code == 0
    after = sum(int(str(each["records"])) for each in rows(moldau, str(folder / "t-0")))
    assert after == (before if damage in (scribble, mislead) else before - 10)
    with Broker(data_dir=str(folder)) as broker:
        assert len(CONFLUENT.read(broker.bootstrap_servers, "t", after, 0)) == after


def test_recover_refuses_what_it_must_not_touch(moldau: Command, folder: Path, tmp_path: Path) -> None:
    with Broker(data_dir=str(folder)):
        assert "is running: stop it first" in moldau.refused(1, "log", "recover", str(folder))
    assert "no meta.properties" in moldau.refused(2, "log", "recover", str(tmp_path))
    assert "there is no x-9" in moldau.refused(4, "log", "recover", str(folder), "-p", "x-9")
    moldau.ok("log", "recover", str(folder), "-p", "t-0")
