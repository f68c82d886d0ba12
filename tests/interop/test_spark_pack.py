"""Executors whose Python has no Moldau read and write with what `moldau spark pack` wrote.

In a process of its own, because its driver plans with a Python that has Moldau on its PYTHONPATH only.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from moldau.spark.packing import pack, settings_for
from moldau.testing import Broker
from tests.interop.peers.workshop import REPOSITORY
from tests.support.clients import create_topic, read_all

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
BARE = "/usr/bin/python3"
PROGRAM = """
import json, sys
from moldau.spark import session

bootstrap, source, target, config = sys.argv[1:]
spark = session(master="local-cluster[1,1,900]", config=json.loads(config))
rows = spark.read.format("moldau").option("kafka.bootstrap.servers", bootstrap).option("subscribe", source).load()

def where(batches):
    import moldau, pyarrow as pa
    for batch in batches:
        if batch.num_rows:
            yield pa.RecordBatch.from_pydict({"value": [moldau.__file__] * batch.num_rows})

places = rows.select("value").mapInArrow(where, "value string")
places.write.format("moldau").option("kafka.bootstrap.servers", bootstrap).option("topic", target).option(
    "delivery", "exactly-once").mode("append").save()
spark.stop()
"""


def _bare_python() -> str:
    """A Python of our version that does not know Moldau."""
    for name in (f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}", BARE):
        if os.path.exists(name):
            code = "import sys; print(sys.version_info[:2]); import moldau"
            told = subprocess.run([name, "-c", code], capture_output=True, text=True, check=False)
            if told.stdout.strip() == str(tuple(sys.version_info[:2])) and "ModuleNotFoundError" in told.stderr:
                return name
    pytest.skip("there is no Python of this version without Moldau")


def test_executors_use_the_archive(tmp_path: Path) -> None:
    python = _bare_python()
    archive = pack(tmp_path / "moldau-env.tar.gz").path
    config = settings_for(archive) | {
        "spark.pyspark.python": python,
        "spark.executor.memory": "700m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    (tmp_path / "program.py").write_text(PROGRAM)
    site = next(each for each in sys.path if each.endswith("site-packages"))
    with Broker() as broker:
        from tests.spark.reading import send

        bootstrap = broker.bootstrap_servers
        source, target = create_topic(bootstrap), create_topic(bootstrap)
        send(bootstrap, source, 100)
        told = subprocess.run(
            [sys.executable, str(tmp_path / "program.py"), bootstrap, source, target, json.dumps(config)],
            env={**os.environ, "PYTHONPATH": f"{REPOSITORY / 'src'}:{site}"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert told.returncode == 0, told.stderr[-3000:]
        places = {(message.value() or b"").decode() for message in read_all(bootstrap, target)}
    shutil.rmtree(Path(pyspark.__file__).parent / "work", ignore_errors=True)  # local-cluster works nowhere else
    assert places
    assert all("moldau-env/moldau/__init__.py" in each for each in places), places
