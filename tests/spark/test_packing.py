"""The archive for executors: a Python that knows nothing of Moldau imports it from there."""

import json
import subprocess
import sys
import tarfile
from pathlib import Path

from moldau.spark.packing import _applies, pack, settings_for


def test_an_interpreter_without_moldau_reads_with_what_was_packed(tmp_path: Path) -> None:
    packed = pack(tmp_path / "env.tar.gz", extras=())
    assert {"moldau", "cramjam", "crc32c", "confluent-kafka"} <= set(packed.packages)
    assert "pyspark" not in packed.packages
    with tarfile.open(packed.path) as archive:
        archive.extractall(tmp_path / "moldau-env", filter="data")
    about = json.loads((tmp_path / "moldau-env" / "moldau-env.json").read_text())
    assert about["packages"] == packed.packages
    code = (
        "import moldau, cramjam, crc32c, moldau.records.batch as b, moldau.spark.ranges as r, sys;"
        "print(moldau.__file__, b.__file__)"
    )
    # -S: without site-packages; -E is left out, because PYTHONPATH is how executors are told.
    told = subprocess.run(
        [sys.executable, "-S", "-c", code.replace("moldau.spark.ranges as r, ", "")],
        env={"PYTHONPATH": str(tmp_path / "moldau-env")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    assert all(str(tmp_path) in each for each in told.stdout.split())


def test_extras_decide_what_is_packed() -> None:
    assert _applies("", frozenset())
    assert _applies(' python_version < "3.13"', frozenset())
    assert not _applies(' extra == "spark"', frozenset())
    assert _applies(' extra == "spark"', frozenset({"spark"}))
    assert settings_for(Path("a.tar.gz"))["spark.archives"] == "a.tar.gz#moldau-env"
