"""Apache Kafka's MirrorMaker 2 as a peer: two clusters copied into each other by one process, exactly once."""

import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tests.interop.apache_kafka import QUICK_JVM
from tests.interop.peers.workshop import PEERS, build_once, require, run, tail

_ADVICE = "It fetches and runs MirrorMaker: on Debian `apt-get install maven openjdk-17-jdk-headless`."
_EVERY_SECOND = (
    "refresh.topics.interval.seconds",
    "refresh.groups.interval.seconds",
    "emit.checkpoints.interval.seconds",
    "sync.group.offsets.interval.seconds",
    "sync.topic.configs.interval.seconds",
)
_ONE_COPY = (
    "replication.factor",
    "offset-syncs.topic.replication.factor",
    "checkpoints.topic.replication.factor",
    "heartbeats.topic.replication.factor",
    "config.storage.replication.factor",
    "offset.storage.replication.factor",
    "status.storage.replication.factor",
)


@cache
def _libs() -> Path:
    pom = PEERS / "mirror" / "pom.xml"

    def fetch(folder: Path) -> None:
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
        run([require("mvn", _ADVICE), "-q", "-B", "-f", pom, *goal], timeout_s=600)

    return build_once("mirror-maker", [pom], fetch)


@contextmanager
def mirrored(clusters: Mapping[str, str], topics: str, groups: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Copies topics and offsets of groups between all of the clusters (name to bootstrap) as long as it is open."""
    settings = {
        "clusters": ", ".join(clusters),
        "dedicated.mode.enable.internal.rest": "true",
        "listeners": "http://127.0.0.1:0",
        "topics": topics,
        "groups": groups,
        "sync.group.offsets.enabled": "true",
        "exactly.once.source.support": "enabled",
        **dict.fromkeys(_EVERY_SECOND, "1"),
        **dict.fromkeys(_ONE_COPY, "1"),
    }
    for name, bootstrap in clusters.items():
        settings[f"{name}.bootstrap.servers"] = bootstrap
        settings |= {f"{name}->{other}.enabled": "true" for other in clusters if other != name}
    with tempfile.TemporaryDirectory(prefix="mirror-maker-") as home:
        file, output = Path(home) / "mirror.properties", Path(home) / "output.txt"
        file.write_text("".join(f"{key} = {value}\n" for key, value in settings.items()))
        logging = f"-Dlog4j2.configurationFile={PEERS / 'log4j2.properties'}"
        classes = ["-cp", f"{_libs()}/*", "org.apache.kafka.connect.mirror.MirrorMaker", str(file)]
        with output.open("wb") as written:
            process = subprocess.Popen(
                [require("java", _ADVICE), *QUICK_JVM, "-Xmx512m", logging, *classes],
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=written,
            )
        try:
            yield process
        except BaseException as error:
            error.add_note(f"MirrorMaker printed last:\n{tail(output.read_bytes(), 40)}")
            raise
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
