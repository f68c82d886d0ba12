"""A full disk, and one that goes away, under `moldau serve`: said aloud, and an end with a status that is not 0."""

import contextlib
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer

from tests.support.broker_process import read_ready
from tests.support.clients import create_topic, quiet

SECONDS = 40
_LARGEST_FILE_BYTES = 256 * 1024


@contextlib.contextmanager
def serving(data: Path, *settings: str, largest_file_bytes: int | None = None) -> Iterator[subprocess.Popen[str]]:
    """The process; `largest_file_bytes` makes its disk fill up."""

    def limit() -> None:
        if largest_file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file_bytes, largest_file_bytes))

    command = [sys.executable, "-m", "moldau", "serve", "--listen", "127.0.0.1:0", "--data-dir", str(data)]
    process = subprocess.Popen(
        [*command, *(f"--set={each}" for each in settings)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=limit,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=SECONDS)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, said = process.communicate(timeout=SECONDS)
    assert "Traceback" not in said, said
    return process.returncode, said


def test_a_full_disk_ends_the_node_and_it_says_why(tmp_path: Path) -> None:
    data = tmp_path / "data"
    small = ("log.index.size.max.bytes=4096", "metadata.log.segment.bytes=8388608")
    with serving(data, *small, largest_file_bytes=_LARGEST_FILE_BYTES) as process:
        address = read_ready(process)
        topic = create_topic(address)
        producer = Producer(quiet(address) | {"message.timeout.ms": 3_000})
        failed = []
        for _ in range(40):
            producer.produce(topic, bytes(16_000), on_delivery=lambda error, _: failed.append(error))
            producer.poll(0)
        producer.flush(SECONDS)
        assert any(failed)
        status, said = ended(process)
        assert status == 1
        assert f"ERROR moldau.broker.node.node: log dir {data} is offline" in said
        assert "holds the metadata, failed" in said


def test_a_data_folder_that_vanishes_ends_the_node_and_is_not_made_again(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(data) as process:
        address = read_ready(process)
        create_topic(address)
        data.rename(tmp_path / "away")
        with pytest.raises(KafkaException):
            create_topic(address)
        status, said = ended(process)
        assert status == 1
        assert "Mount its disk again" in said
        assert not data.exists()


def test_a_data_folder_that_vanishes_is_noticed_also_when_nothing_is_asked(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(data) as process:
        read_ready(process)
        data.rename(tmp_path / "away")
        assert ended(process)[0] == 1
        assert not data.exists()


def test_one_dir_of_two_vanishes_and_the_node_goes_on(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    with serving(tmp_path / "unused", f"log.dirs={one},{two}") as process:
        address = read_ready(process)
        create_topic(address, partitions=4)
        two.rename(tmp_path / "away")
        topic = create_topic(address, partitions=4)
        assert sorted(each.name for each in one.glob(f"{topic}-*")) == [f"{topic}-{number}" for number in range(4)]
        process.terminate()
        status, said = ended(process)
        assert status == 0
        assert f"log dir {two} is offline" in said
        assert not two.exists()


def test_a_node_without_the_dir_of_its_metadata_does_not_start(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    with serving(tmp_path / "unused", f"log.dirs={one},{two}") as process:
        read_ready(process)
        process.terminate()
        assert ended(process)[0] == 0
    two.rename(tmp_path / "unmounted")
    two.mkdir()  # as where a disk is mounted
    with serving(tmp_path / "unused", f"log.dirs={one},{two}") as process:
        read_ready(process)
        process.terminate()
        assert f"log dir {two} is empty and taken for a new disk" in ended(process)[1]
    one.rename(tmp_path / "away")
    with serving(tmp_path / "unused", f"log.dirs={one},{two}") as process:
        status, said = ended(process)
        assert status == 1
        assert f"{one}, which holds the metadata" in said
        assert not one.exists()


def refused(*arguments: str) -> str:
    """What is said by a command that must end at once; root is not allowed to ignore the modes of files."""
    bound = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.geteuid() == 0 else ()
    command = [*bound, sys.executable, "-m", "moldau", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize("command", ["serve", "cluster"])
def test_a_folder_that_may_not_be_written_is_called_so(tmp_path: Path, command: str) -> None:
    (tmp_path / "theirs").mkdir(mode=0o555)
    said = refused(command, "--data-dir", str(tmp_path / "theirs" / "data"))
    assert "may not write to the data folder" in said
    assert f"({tmp_path / 'theirs'})" in said
    assert "chown" in said


def test_data_of_another_user_is_called_so(tmp_path: Path) -> None:
    """As after one start as root."""
    (tmp_path / "meta.properties").write_text("version=1\n")
    (tmp_path / "meta.properties").chmod(0o400)
    assert f"({tmp_path / 'meta.properties'})" in refused("serve", "--data-dir", str(tmp_path))


def test_a_file_is_no_data_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert f"{tmp_path / 'file'} is a file" in refused("serve", "--data-dir", str(tmp_path / "file" / "data"))
