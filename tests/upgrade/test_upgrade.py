"""T5: data folders written by earlier versions open in this one, and what they held is there. And once more after that:
what this version writes into them, it reads again.

The folders are made by `python -m scripts.make_upgrade_folders COMMIT:clean|killed`; a name tells the commit, and how
the node ended.
"""

import json
import tarfile
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.support.broker_process import BrokerProcess
from tests.support.clients import Sent, quiet, read_all, send_confluent, wait_for
from tests.upgrade import contents

FOLDERS = Path(__file__).parent / "folders"
PACKED = sorted(FOLDERS.glob("*.tar.xz"))


def unpack(packed: Path, target: Path) -> Path:
    with tarfile.open(packed) as tar:
        tar.extractall(target, filter="data")
    return target / "data"


def test_there_are_folders_of_several_versions_and_they_are_small() -> None:
    assert len({packed.name.partition("-")[0] for packed in PACKED}) >= 4
    assert {packed.name.partition("-")[2] for packed in PACKED} == {"clean.tar.xz", "killed.tar.xz"}
    assert sum(file.stat().st_size for file in FOLDERS.iterdir()) < 200_000
    assert sum(has_snapshot(packed) for packed in PACKED) >= 3  # the first version made none


def has_snapshot(packed: Path) -> bool:
    with tarfile.open(packed) as tar:
        return any(is_snapshot(name) for name in tar.getnames())


def is_snapshot(name: str) -> bool:
    """Of the metadata, and not the one a node begins with."""
    folder, _, file = name.rpartition("/")
    return folder.endswith("__cluster_metadata-0") and file.endswith(".checkpoint") and not file.startswith("0" * 20)


@pytest.mark.parametrize("packed", PACKED, ids=lambda packed: packed.name.partition(".")[0])
def test_a_folder_of_an_earlier_version_opens(packed: Path, tmp_path: Path) -> None:
    expected = json.loads(packed.with_name(packed.name.replace(".tar.xz", ".json")).read_text())
    data = unpack(packed, tmp_path)
    with BrokerProcess(data, 0, **contents.SETTINGS) as broker:
        servers = broker.bootstrap_servers
        assert contents.read(servers) == expected
        check_transactions_go_on(servers)
        send_confluent(servers, "plain", [Sent(b"after")])
        broker.kill()
        broker.start()
        transfers = [message.value() for message in read_all(servers, "transfers")]
        assert transfers == [value.encode() for value in (*expected["committed"], "after the upgrade")]
        former = [(index, row[0]) for index in range(2) for row in expected["records"][f"plain-{index}"]]
        found = {(message.partition(), message.offset()) for message in read_all(servers, "plain", 2)}
        assert found > set(former)
        assert len(found) == len(former) + 1


def check_transactions_go_on(servers: str) -> None:
    """The open one is known and ended, its records are not seen; the other id is taken over by a new producer."""
    assert read_all(servers, "open") == []
    assert [message.value() for message in read_all(servers, "open", isolation="read_uncommitted")] == [b"pending"]
    contents.transactional(servers, "leaves one open")
    wait_for(lambda: stable_offset(servers, "open") == 2, "the end of the open transaction")
    assert read_all(servers, "open") == []
    producer = contents.transactional(servers, "teller")
    producer.begin_transaction()
    producer.produce("transfers", b"after the upgrade")
    producer.commit_transaction(contents.PATIENCE_SECONDS)


def stable_offset(servers: str, topic: str) -> int:
    consumer = Consumer({**quiet(servers, group_id="looks"), "isolation.level": "read_committed"})
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), contents.PATIENCE_SECONDS, cached=False)
    consumer.close()
    return int(end)
