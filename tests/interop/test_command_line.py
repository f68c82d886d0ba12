"""Every command that talks to a cluster, on Apache Kafka: the words and exit codes it has on Moldau, from the same
transcripts (`tests/support/command_tour.py`). And its files, and what the docs say beside its scripts.
"""

import json
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.running import Command
from tests.interop.apache_kafka import KAFKA_VERSION, TOOLS, ApacheKafka, kafka_libs
from tests.support.command_tour import PARTS, SETTINGS, Tour, golden


@pytest.fixture(scope="module")
def kafka() -> Iterator[ApacheKafka]:
    with ApacheKafka(SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def transcripts(kafka: ApacheKafka, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    tour = Tour(kafka.bootstrap_servers, "cli-k-tour", tmp_path_factory.mktemp("tour"))
    return {part.__name__: tour.walk(part) for part in PARTS}


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_every_command_says_the_same_as_on_moldau(part: Callable[[Tour], None], transcripts: dict[str, str]) -> None:
    assert transcripts[part.__name__] == golden(part)


@pytest.mark.usefixtures("transcripts")
def test_files_of_apache_kafka_are_verified_dumped_and_recovered(kafka: ApacheKafka, tmp_path: Path) -> None:
    moldau = Command("127.0.0.1:1", str(tmp_path))
    assert " 0 problems" in moldau.ok("log", "verify", str(kafka.log_dir)).err
    metadata = moldau.ok("log", "dump", str(kafka.log_dir / "__cluster_metadata-0"), "--decode", "--json").lines
    assert any(json.loads(line)["key"] == "TopicRecord" for line in metadata)
    damaged, partition = tmp_path / "damaged", "cli-k-tour-l-0"
    shutil.copytree(kafka.log_dir / partition, damaged / partition)
    shutil.copy(kafka.log_dir / "meta.properties", damaged)
    (segment,) = (damaged / partition).glob("*.log")
    with segment.open("ab") as file:
        file.write(b"half a batch")
    assert moldau("log", "verify", str(damaged)).code == 6
    moldau.ok("log", "recover", str(damaged), "--execute")
    assert " 0 problems" in moldau.ok("log", "verify", str(damaged)).err


WITHOUT_A_SCRIPT = {
    "ClientCompatibilityTest",
    "LogCompactionTester",
    "OAuthCompatibilityTool",
    "TransactionalMessageCopier",
}
WITH_A_SCRIPT_NO_TEST_RUNS = {
    "ConnectPluginPath": "connect-plugin-path",
    "JmxTool": "kafka-jmx",
    "ShareConsumerPerformance": "kafka-share-consumer-perf-test",
    "VerifiableShareConsumer": "kafka-verifiable-share-consumer",
}


def test_the_tables_of_the_docs_know_every_tool_in_kafka_s_jar() -> None:
    """Not a list from memory: classes with a `main` are what scripts start."""
    with zipfile.ZipFile(kafka_libs() / f"kafka-tools-{KAFKA_VERSION}.jar") as jar:
        found = {
            name.removesuffix(".class").replace("/", ".")
            for name in jar.namelist()
            if name.endswith(".class")
            and b"\x00\x04main" in (code := jar.read(name))
            and b"([Ljava/lang/String;)V" in code
        }
    scripts = {name: script for script, name in TOOLS.items()}
    text = (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    for name in sorted(found):
        short = name.rpartition(".")[2]
        if short not in WITHOUT_A_SCRIPT:
            script = scripts.get(name) or WITH_A_SCRIPT_NO_TEST_RUNS[short]
            assert re.search(rf"`{script}[` ]", text), script
    assert len(found) > 30
