"""Spark's own Kafka connector as a peer: its jars, fetched by Maven once."""

from functools import cache
from pathlib import Path

from tests.interop.peers.workshop import PEERS, build_once, require, run

_MAVEN_ADVICE = "It fetches Spark's connector: on Debian `apt-get install maven`."


@cache
def connector_jars() -> list[Path]:
    """For `spark.jars`; fetched at the first call."""
    pom = PEERS / "spark" / "pom.xml"

    def fetch(folder: Path) -> None:
        maven = require("mvn", _MAVEN_ADVICE)
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
        run([maven, "-q", "-B", "-f", pom, *goal], timeout_s=600)

    return sorted(build_once("spark-connector", [pom], fetch).glob("*.jar"))
