"""Foreign clients behind one small command line: Apache Kafka's Java clients, franz-go, kafkajs; and kcat beside them.

Every program takes `produce|consume|admin BOOTSTRAP TOPIC --option value ...`; records cross as JSON lines with the
fields of `Record`. So one test runs against one broker with every client, or with one client against two brokers.

    client = java_client()
    client.produce(bootstrap, "orders", [Record("k", "v")], codec="zstd", transactional_id="tx")
    client.consume(bootstrap, "orders", max_records=1, group="g", isolation="read_committed")

`admin` walks through the client's admin API on a fresh topic and returns a line per step that does not differ between
two healthy single-node clusters, and holds `error` where a step failed.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.interop.apache_kafka import compile_java, java_command
from tests.interop.peers.workshop import BUILD, PEERS, PeerError, build_once, file_lock, require, run

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(slots=True, frozen=True)
class Record:
    """What goes in. Texts travel as UTF-8; None is null."""

    key: str | None
    value: str | None
    headers: tuple[tuple[str, str | None], ...] = ()
    timestamp: int | None = None
    partition: int | None = None

    def to_json(self) -> str:
        fields = asdict(self)
        optional = ("timestamp", "partition")
        return json.dumps({name: value for name, value in fields.items() if name not in optional or value is not None})


@dataclass(slots=True, frozen=True)
class Consumed:
    """What comes out."""

    partition: int
    offset: int
    timestamp: int
    key: str | None
    value: str | None
    headers: tuple[tuple[str, str | None], ...]

    @classmethod
    def from_json(cls, line: str) -> "Consumed":
        fields = json.loads(line)
        headers = tuple((name, value) for name, value in fields["headers"])
        return cls(fields["partition"], fields["offset"], fields["timestamp"], fields["key"], fields["value"], headers)


@dataclass(slots=True, frozen=True)
class Client:
    """One foreign client program. Options are passed on as `--name value`; underscores become dashes."""

    name: str
    command: tuple[str, ...]
    codecs: tuple[str, ...]

    def produce(self, bootstrap: str, topic: str, records: Iterable[Record], **options: str) -> list[dict[str, Any]]:
        """Options: codec, acks, idempotent, transactional_id, end (commit, abort; Java also `none`, left open)."""
        lines = "".join(record.to_json() + "\n" for record in records)
        return [json.loads(line) for line in self.run("produce", bootstrap, topic, options, stdin=lines)]

    def consume(self, bootstrap: str, topic: str, max_records: int | None = None, **options: str) -> list[Consumed]:
        """From the beginning. Options: group, isolation, timeout_ms; Java also protocol, partitions, offset, from.

        Without `max_records` the Java client reads to the current end (for read_committed: the last stable offset).
        """
        if max_records is not None:
            options["max"] = str(max_records)
        return [Consumed.from_json(line) for line in self.run("consume", bootstrap, topic, options)]

    def admin(self, bootstrap: str, topic: str) -> dict[str, dict[str, Any]]:
        """The admin tour: {step: what it found}, in order."""
        lines = [json.loads(line) for line in self.run("admin", bootstrap, topic, {})]
        return {line.pop("step"): line for line in lines}

    def run(
        self, verb: str, bootstrap: str, topic: str, options: dict[str, str], stdin: str | None = None
    ) -> list[str]:
        named = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", value)]
        finished = run([*self.command, verb, bootstrap, topic, *named], stdin=stdin, timeout_s=90)
        return finished.stdout.splitlines()


@cache
def java_client() -> Client:
    """Apache Kafka's own clients, of the same release as the broker."""
    classes = compile_java(PEERS / "java" / "MoldauPeer.java", PEERS / "java" / "AdminTour.java")
    return Client("java", tuple(java_command("MoldauPeer", classes=classes)), CODECS)


@cache
def go_client() -> Client:
    """franz-go."""
    sources = [PEERS / "go" / name for name in ("main.go", "go.mod", "go.sum")]

    def build(folder: Path) -> None:
        go = require("go", "franz-go needs it, at least the version in tests/interop/peers/go/go.mod.")
        run([go, "build", "-mod=readonly", "-o", folder / "peer", "."], cwd=PEERS / "go", timeout_s=600)

    return Client("go", (str(build_once("go", sources, build) / "peer"),), CODECS)


@cache
def node_client() -> Client:
    """kafkajs. It brings gzip only; the other codecs are plug-ins of third parties."""
    sources = [PEERS / "node" / name for name in ("peer.js", "package.json", "package-lock.json")]
    node = require("node", "kafkajs needs it: on Debian `apt-get install nodejs npm`.")

    def install(folder: Path) -> None:
        npm = require("npm", "It fetches kafkajs: on Debian `apt-get install npm`.")
        for source in sources:
            shutil.copy(source, folder)
        run([npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts"], cwd=folder, timeout_s=600)

    folder = build_once("node", sources, install)
    # kafkajs 2 changed its default partitioner, and warns about that at every start unless told not to.
    return Client("node", ("env", "KAFKAJS_NO_PARTITIONER_WARNING=1", node, str(folder / "peer.js")), ("none", "gzip"))


@cache
def kcat_path() -> str:
    """kcat, from the PATH or installed from Debian if this is root."""
    with file_lock(BUILD / ".kcat.lock"):
        if shutil.which("kcat") is None and os.geteuid() == 0 and shutil.which("apt-get"):
            command = ["apt-get", "install", "-y", "--no-install-recommends", "kcat"]
            environment = {"DEBIAN_FRONTEND": "noninteractive"}
            try:
                run(command, env=environment, timeout_s=300)
            except PeerError:  # the package lists may be missing or old
                run(["apt-get", "update"], env=environment, timeout_s=300)
                run(command, env=environment, timeout_s=300)
        return require("kcat", "On Debian: `apt-get install kcat` as root.")


def run_kcat(*arguments: str, stdin: str | None = None, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    """kcat with its own arguments: `run_kcat("-b", bootstrap, "-P", "-t", "orders", stdin="a\\nb\\n")`."""
    return run([kcat_path(), *arguments], stdin=stdin, timeout_s=timeout_s)


def kcat_consume(bootstrap: str, topic: str, *arguments: str) -> list[dict[str, Any]]:
    """All records to the current end, as kcat's JSON envelopes."""
    finished = run_kcat("-b", bootstrap, "-C", "-t", topic, "-o", "beginning", "-e", "-q", "-J", *arguments)
    return [json.loads(line) for line in finished.stdout.splitlines()]


def all_clients() -> Sequence[Client]:
    return java_client(), go_client(), node_client()
