"""Make the data folders of `tests/upgrade`: each written by an earlier version of this repository.

    python -m scripts.make_upgrade_folders 2fdfdd2:clean 58d8388:killed

For each commit its sources are unpacked into a temporary folder, a single node of that version runs on them and is
filled (`tests/upgrade/contents.py`); then it is stopped cleanly or killed, and its data folder packed beside a JSON
file of what it must hold. The name has the commit, which must be in the history of the repository.
"""

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.support.broker_process import BrokerProcess
from tests.support.clients import wait_for
from tests.upgrade import contents

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ROOT / "tests" / "upgrade" / "folders"


def unpack_sources(commit: str, target: Path) -> None:
    archive = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(target, filter="data")


def make_folder(commit: str, *, killed: bool) -> Path:
    with tempfile.TemporaryDirectory(prefix="moldau-upgrade-") as folder:
        sources, data = Path(folder, "sources"), Path(folder, "data")
        unpack_sources(commit, sources)
        os.environ["PYTHONPATH"] = str(sources / "src")  # the node's: this process has imported its own
        with BrokerProcess(data, 0, **contents.SETTINGS) as broker:
            expected, producers = contents.write(broker.bootstrap_servers)
            found = contents.read(broker.bootstrap_servers)
            if found != expected:
                raise SystemExit(f"{commit} does not give back what was written:\n{found}\n{expected}")
            start_offsets = data / "log-start-offset-checkpoint"
            wait_for(lambda: start_offsets.exists() and "plain 0 " in start_offsets.read_text(), "a checkpoint")
            if killed:
                broker.kill()
            else:
                broker.stop()
            del producers
        name = f"{commit}-{'killed' if killed else 'clean'}"
        (FOLDERS / f"{name}.json").write_text(json.dumps(expected, indent=1) + "\n")
        return pack(data, FOLDERS / f"{name}.tar.xz")


def pack(data: Path, target: Path) -> Path:
    """Indexes have room reserved ahead, in zeros, which xz makes nothing of."""
    with tarfile.open(target, "w:xz", preset=9) as tar:
        tar.add(data, "data")
    return target


def main(arguments: list[str]) -> None:
    FOLDERS.mkdir(exist_ok=True)
    for argument in arguments:
        commit, _, how = argument.partition(":")
        packed = make_folder(commit, killed=how == "killed")
        print(packed.relative_to(ROOT), packed.stat().st_size, "bytes")  # for whoever runs it


if __name__ == "__main__":
    main(sys.argv[1:])
