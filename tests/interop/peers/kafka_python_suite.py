"""kafka-python's own integration tests, from its source distribution and unmodified, against any bootstrap.

They run in a process and virtual environment of their own, with the compression libraries they would skip without. The
distribution lacks `test/service.py`; `kafka_python/service.py` stands in for it. `NOT_APPLICABLE` names the tests that
say nothing about a broker that is already running; Apache Kafka with `BROKER_PROPERTIES` passes everything else.
"""

import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

from tests.interop.peers.workshop import PEERS, PeerError, build_once, run, run_unchecked, tail

KAFKA_PYTHON_VERSION = "3.0.12"

BROKER_PROPERTIES = {
    "node.id": "0",  # test_create_partitions places replicas on broker 0
    "num.partitions": "4",  # the transactional tests count on auto-created partitions 0 and 1
    "group.min.session.timeout.ms": "1000",  # test_group asks for 3 s, below Kafka's default minimum of 6 s
    "group.initial.rebalance.delay.ms": "0",  # test_group wants a stable group within 15 s
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",  # the ACL test
    "allow.everyone.if.no.acl.found": "true",
    "super.users": "User:ANONYMOUS",
}
"""What the suite takes for granted of the broker it is pointed at, beyond Kafka's defaults."""

NOT_APPLICABLE = {
    "test_consumer_integration.py::test_kafka_consumer_offsets_for_time_old": "for brokers older than 0.10.1",
    "test_sasl_integration.py": "starts brokers of its own from a Kafka release on disk; skips itself under KAFKA_URI",
    "test_ssl_integration.py": "starts a broker of its own from a Kafka release on disk, even under KAFKA_URI",
}
"""Tests, or whole files, that say nothing about a broker that is already running, and why."""


@dataclass(slots=True, frozen=True)
class SuiteResult:
    """Test ids such as `test_admin_integration.py::test_create_delete_topics`, by outcome."""

    passed: frozenset[str]
    skipped: dict[str, str]
    failed: dict[str, str]
    seconds: float

    def report(self) -> str:
        failures = "\n\n".join(f"{name}\n{tail(text, 25)}" for name, text in sorted(self.failed.items()))
        counts = f"{len(self.passed)} passed, {len(self.failed)} failed, {len(self.skipped)} skipped"
        return f"{counts} in {self.seconds:.0f} s\n{failures}"


def suite_folder() -> Path:
    """The unpacked source beside its virtual environment, fetched at the first call."""
    recipe = PEERS / "kafka_python"

    def fetch(folder: Path) -> None:
        python = folder / "venv" / "bin" / "python"
        run([sys.executable, "-m", "venv", folder / "venv"])
        pip: list[str | Path] = [python, "-m", "pip", "--disable-pip-version-check", "--quiet"]
        run([*pip, "install", "--require-hashes", "--no-deps", "-r", recipe / "requirements.txt"], timeout_s=600)
        source: list[str | Path] = [
            "--no-deps",
            "--no-binary",
            "kafka-python",
            "--require-hashes",
            "-r",
            recipe / "source.txt",
        ]
        run([*pip, "download", *source, "--dest", folder], timeout_s=600)
        with tarfile.open(next(folder.glob("kafka_python-*.tar.gz"))) as archive:
            archive.extractall(folder, filter="data")
        (folder / f"kafka_python-{KAFKA_PYTHON_VERSION}").rename(folder / "source")
        # The distribution leaves this out too; without it Python's own `test` package is found instead.
        (folder / "source" / "test" / "__init__.py").touch()
        (folder / "source" / "test" / "service.py").write_bytes((recipe / "service.py").read_bytes())

    inputs = [recipe / name for name in ("requirements.txt", "source.txt", "service.py")]
    return build_once("kafka-python", [sys.version, *inputs], fetch)


def run_suite(bootstrap: str, *selection: str, kafka_version: str = "4.3", timeout_s: float = 500) -> SuiteResult:
    """Run test/integration, or the given files and `file::test` ids in it, against one broker `host:port`.

    What is in NOT_APPLICABLE is left out. `kafka_version` must be what the broker's ApiVersions look like.
    """
    folder = suite_folder()
    source = folder / "source"
    tests = [f"test/integration/{item}" for item in selection] or ["test/integration"]
    left_out = [f"--deselect=test/integration/{name}" for name in NOT_APPLICABLE]
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        command: list[str | Path] = [folder / "venv" / "bin" / "python", "-m", "pytest", "-p", "no:cacheprovider"]
        # Its own settings end the whole run at the first test that takes too long; a signal ends only that test.
        options = [
            "--timeout=120",
            "--timeout-method=signal",
            "--tb=short",
            "--show-capture=no",
            f"--junitxml={report}",
            *left_out,
            *tests,
        ]
        environment = {
            "KAFKA_URI": f"kafka://{bootstrap}",
            "KAFKA_VERSION": kafka_version,
            "KAFKA_ROOT": str(source),  # must exist; nothing is started from it
            "PYTHONPATH": str(source),
            "PYTEST_ADDOPTS": "",
        }
        finished = run_unchecked([*command, *options], cwd=source, env=environment, timeout_s=timeout_s)
        if finished.returncode not in (0, 1):
            raise PeerError(f"kafka-python's suite did not run:\n{tail(finished.stdout)}\n{tail(finished.stderr)}")
        return _result_of(report)


def _result_of(report: Path) -> SuiteResult:
    passed: set[str] = set()
    skipped: dict[str, str] = {}
    failed: dict[str, str] = {}
    suite = ET.parse(report).getroot()[0]
    for case in suite.iter("testcase"):
        module = case.get("classname", "").split(".")
        name = "::".join([module[2] + ".py", *module[3:], case.get("name", "")])
        problem = next((part for part in case if part.tag in ("failure", "error")), None)
        skip = case.find("skipped")
        if problem is not None:
            failed[name] = f"{problem.get('message', '')}\n{problem.text or ''}"
        elif skip is not None:
            skipped[name] = skip.get("message", "")
        else:
            passed.add(name)
    passed -= failed.keys()  # a test that passed and whose teardown failed is reported twice
    return SuiteResult(frozenset(passed), skipped, failed, float(suite.get("time", "0")))
