"""What all commands have in common: options, contexts, errors, exit codes, output; nothing is loaded in vain."""

import io
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from moldau.cli import app as commands
from moldau.cli.frame import Commands
from moldau.cli.output import Output, plain_table, size, unescape
from moldau.cli.places import parse_time
from moldau.cli.target import librdkafka_settings
from tests.cli.running import Command
from tests.support.broker_process import free_port


@pytest.fixture(scope="module")
def nowhere(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """Commands where no broker is."""
    return Command(f"127.0.0.1:{free_port()}", str(tmp_path_factory.mktemp("home")))


def test_an_address_nobody_answers_at_is_told_at_once(nowhere: Command) -> None:
    for arguments in (["topic", "list"], ["consume", "t"], ["group", "list"], ["quorum", "status"], ["health"]):
        said = nowhere.refused(3, *arguments)
        assert said == (
            f"moldau: no broker answers at {nowhere.bootstrap_servers} (Connection refused): is it running? "
            "(`moldau serve` starts one)\n"
        )
    assert "no such host" in nowhere("doctor", "-b", "nowhere.invalid").out
    assert nowhere("doctor", "-b", "nowhere.invalid").code == 6


def test_doctor_notices_a_node_that_takes_connections_and_hangs(nowhere: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        ended = nowhere("doctor", "-b", f"127.0.0.1:{hanging.getsockname()[1]}", "--json")
    (found,) = [row for row in ended.json if row["check"] == "bootstrap"]
    assert (ended.code, found["result"]) == (6, "failed")
    assert "takes connections and says nothing" in found["found"]


@pytest.mark.parametrize("address", ["localhost:x", "", "h:99999999", ":9092", "h:0"])
def test_what_is_no_address(nowhere: Command, address: str) -> None:
    assert "HOST:PORT" in nowhere.refused(2, "topic", "list", "-b", address)


def test_examples_of_the_help_are_command_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("orders-0", "__cluster_metadata-0"):  # which must be there
        (tmp_path / "moldau-data" / folder).mkdir(parents=True)
    found = 0
    for entries in commands.COMMANDS.values():
        for name, entry in entries.items():
            loaded: Any = commands.load(name, entry)
            for each in (loaded, *getattr(loaded, "commands", {}).values()):
                for line in (each.epilog or "").split("\n\n")[1:]:
                    assert len(line) < 79
                    first = shlex.split(line.partition(" | ")[0].partition(" < ")[0])[1:]
                    entry_of = {key: one for group in commands.COMMANDS.values() for key, one in group.items()}
                    command: Any = commands.load(first[0], entry_of[first[0]])
                    rest = first[1:]
                    if hasattr(command, "commands"):
                        command, rest = command.commands[rest[0]], rest[1:]
                    command.make_context("example", rest)
                    found += 1
    assert found > 20


def test_an_output_that_cannot_show_all_letters_shows_what_it_can(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "moldau", "cluster", "--help"]
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "80"}
    done = subprocess.run(command, capture_output=True, text=True, env=ascii_only, cwd=tmp_path, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Prints `ready HOST:PORT,\\u2026`" in done.stdout


def test_wrong_command_lines_are_one_line(nowhere: Command) -> None:
    assert nowhere.refused(2, "tpoic") == (
        "moldau: No such command 'tpoic'. Did you mean 'topic'? (moldau --help shows more)\n"
    )
    assert "moldau topic list --help" in nowhere.refused(2, "topic", "list", "--nonsense")
    assert "Missing argument" in nowhere.refused(2, "topic", "create")
    assert "KEY=VALUE" in nowhere.refused(2, "topic", "list", "-X", "nonsense")
    assert "Cannot read" in nowhere.refused(2, "topic", "list", "--config", "/nowhere")
    assert "at least 0.1" in nowhere.refused(2, "topic", "list", "--watch", "0")


def test_every_command_is_there_and_explains_itself(nowhere: Command) -> None:
    helped = nowhere.ok("--help").out
    for entries in commands.COMMANDS.values():
        for name, entry in entries.items():
            assert name in helped
            loaded = commands.load(name, entry)
            assert loaded.help
            is_framed = isinstance(getattr(import_module(f"moldau.cli.{entry.module}"), "app", None), Commands)
            for sub in getattr(loaded, "commands", {}).values():
                assert sub.help, (name, sub.name)
                for each in sub.params if is_framed else ():
                    assert getattr(each, "help", None) or each.name == "help", (name, sub.name, each.name)


def test_help_names_no_types_of_python(nowhere: Command) -> None:
    places = (["log", "verify", "-h"], ["topic", "describe", "-h"], ["cluster", "restart", "-h"])
    for asked in (["--help"], ["cluster", "-h"], ["produce", "--help"], ["user", "add", "-h"], *places):
        helped = nowhere.ok(*asked).out
        assert "--help" in helped
        assert "-h" in helped
        assert not [
            word for word in ("<bool>", "<int", "<float", "<list", "<str", "<path", "...]...") if word in helped
        ]
    assert "moldau produce [OPTIONS] TOPIC [FILE...] " in nowhere.ok("produce", "-h").out


def test_help_and_completion_load_little() -> None:
    program = (
        "import sys\nfrom moldau import cli\ncli.run(['--help'])\n"
        "heavy = ('confluent_kafka', 'moldau.broker', 'moldau.wire', 'asyncio')\n"
        "print([each for each in heavy if each in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.splitlines()[-1] == "[]"


def test_contexts(nowhere: Command, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nkey.deserializer=org.example.Some\n"
        'sasl.jaas.config=org.apache.kafka...PlainLoginModule required username="ann" password="p=\\\\w \\u00e4";\n'
    )
    here = Command.__new__(Command)
    here._environment = {"MOLDAU_HOME": str(tmp_path / "home")}
    assert here.ok("context", "set", "prod", "-b", "kafka.example:9093", "--config", str(file)).out == (
        "saved prod\nusing prod\n"
    )
    here.ok("context", "set", "local", "-b", "127.0.0.1:1")
    assert here.ok("context", "list", "--json").json == [
        {"name": "local", "current": False, "bootstrap_servers": "127.0.0.1:1"},
        {"name": "prod", "current": True, "bootstrap_servers": "kafka.example:9093"},
    ]
    shown = here.ok("context", "show", "prod", "--json").json
    assert shown["sasl.jaas.config"] == "(hidden)"
    assert shown["security.protocol"] == "SASL_SSL"
    stored = tmp_path / "home" / "contexts" / "prod.properties"
    assert stored.stat().st_mode & 0o077 == 0, "passwords are nobody else's business"
    assert here.ok("context", "use", "local").out == "using local\n"
    assert "127.0.0.1:1 " in here.refused(3, "topic", "list")
    assert "127.0.0.1:2 " in here.refused(3, "topic", "list", "-b", "127.0.0.1:2")
    assert "127.0.0.1:3 " in here("topic", "list", MOLDAU_BOOTSTRAP_SERVER="127.0.0.1:3").err
    assert "there is no context 'none'" in here.refused(4, "topic", "list", "--context", "none")
    assert here.ok("context", "delete", "local").out == "deleted local\n"
    here.refused(4, "context", "use", "local")
    here.refused(2, "context", "set", "../evil", "-b", "x:1")


def test_java_s_settings_become_librdkafka_s(tmp_path: Path) -> None:
    java = {
        "bootstrap.servers": "a:1",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.jaas.config": 'x required username="ann" password="b\\"c";',
        "key.serializer": "org.example.S",
        "fetch.max.wait.ms": "7",
        "max.request.size": "8",
        "auto.offset.reset": "none",
        "max.poll.records": "5",
        "ssl.truststore.type": "PEM",
    }
    assert librdkafka_settings(java) == {
        "bootstrap.servers": "a:1",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": "SCRAM-SHA-256",
        "sasl.username": "ann",
        "sasl.password": 'b"c',
        "fetch.wait.max.ms": "7",
        "message.max.bytes": "8",
        "auto.offset.reset": "error",
    }
    passed = librdkafka_settings(
        {"bootstrap.servers": "a:1", "security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}
    )
    assert passed["sasl.mechanisms"] == "GSSAPI", "librdkafka knows more ways to log in than we do"


def test_settings_from_the_environment(nowhere: Command) -> None:
    said = nowhere("topic", "list", MOLDAU_X_SECURITY_PROTOCOL="NONSENSE")
    assert (said.code, "security.protocol" in said.err) == (2, True)
    said = nowhere("topic", "list", "-X", "security.protocol=PLAINTEXT", MOLDAU_X_SECURITY_PROTOCOL="NONSENSE")
    assert said.code == 3


def test_times() -> None:
    assert parse_time("2026-11-16T08:30Z") == 1_794_817_800_000
    assert parse_time("2026-11-16T09:30+01:00") == 1_794_817_800_000
    assert parse_time("1794817800000") == 1_794_817_800_000
    assert parse_time("now") - parse_time("-1.5h") == pytest.approx(5_400_000, abs=1000)


def test_plain_columns_are_aligned_and_whole() -> None:
    rows: list[dict[str, object]] = [
        {"name": "a" * 300, "count": 1, "brokers": [1, 2]},
        {"name": "b", "count": None, "brokers": []},
    ]
    first, second, third = plain_table(rows)
    assert first.split() == ["name", "count", "brokers"]
    assert second.split() == ["a" * 300, "1", "1", "2"]
    assert third.split() == ["b", "-", "-"]
    assert (size(None), size(10), size(2048), size(3 << 30)) == ("-", "10 B", "2.0 KiB", "3.0 GiB")
    assert unescape(r"a\tb\\n\x41\q") == "a\tb\\nA\\q"


def test_a_reader_that_leaves_is_no_trouble(moldau: Command) -> None:
    command = [sys.executable, "-m", "moldau", "broker", "api-versions", "-b", moldau.bootstrap_servers]
    program = (
        f"import subprocess, sys; p = subprocess.Popen({command!r}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)\n"
    )
    program += "p.stdout.close(); said = p.stderr.read(); print(p.wait(), said)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout == "141 b''\n"


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MOLDAU_BOOTSTRAP_SERVER", "MOLDAU_CONFIG", "MOLDAU_CONTEXT"):
        monkeypatch.delenv(name, raising=False)


def test_a_listener_that_is_silent_or_speaks_something_else_is_told(nowhere: Command, moldau: Command) -> None:
    import socket

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        said = nowhere.refused(3, "topic", "list", "-b", address, "-X", "request.timeout.ms=100")
        assert f"no broker answers at {address} (no answer in time)" in said
    said = moldau.refused(3, "topic", "list", "-X", "security.protocol=SSL")
    assert f"{moldau.bootstrap_servers} closes the connection: does it want TLS or a login, or none?" in said


def test_the_shell_completes_commands_options_and_topics(moldau: Command) -> None:
    topic = "completed-topic"
    moldau.ok("topic", "create", topic)

    def completed(line: str) -> set[str]:
        done = subprocess.run(
            [sys.executable, "-m", "moldau"],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
            env={
                **os.environ,
                "_MOLDAU_COMPLETE": "complete_bash",
                "COMP_WORDS": line,
                "COMP_CWORD": str(len(line.split(" ")) - 1),
                "MOLDAU_BOOTSTRAP_SERVER": moldau.bootstrap_servers,
            },
        )
        return set(done.stdout.split())

    assert {"topic", "top"} <= completed("moldau to")
    assert completed("moldau topic desc") == {"describe"}
    assert "--exit-at-end" in completed("moldau consume --ex")
    assert completed("moldau topic describe completed-") == {topic}
    moldau.ok("group", "reset", "completed-group", "-t", topic, "--to", "earliest", "--execute")
    assert completed("moldau group describe completed-") == {"completed-group"}
    assert completed("moldau group reset-streams completed-") == {"completed-group"}


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("{} topic list >&-", 0, ""),
        ("{} topic list <&- >/dev/null", 0, ""),
        ("{} topic list --internal >/dev/full", 1, "moldau: the output cannot be written: No space left on device\n"),
    ],
)
def test_output_that_goes_nowhere(moldau: Command, line: str, code: int, said: str) -> None:
    moldau.ok("topic", "create", "--if-not-exists", "somewhere")
    command = f"{sys.executable} -m moldau"
    environment = {**os.environ, "MOLDAU_BOOTSTRAP_SERVER": moldau.bootstrap_servers}
    done = subprocess.run(
        ["bash", "-c", line.format(command)], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (code, said)


def test_no_word_is_cut_in_a_table_that_fits_closely() -> None:
    row = dict.fromkeys(
        ("identity", "hostname", "port", "rack", "state", "controller", "leads", "replicas", "behind"), 1
    )
    page = io.StringIO()
    Output(console=Console(file=page, force_terminal=True, color_system=None, width=70)).show([row])
    assert "controller" in page.getvalue()
    assert "identity" in page.getvalue()


def test_help_that_nobody_reads_any_more() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "moldau", "--help"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_name_that_is_given_twice_is_meant_once(moldau: Command) -> None:
    """librdkafka crashes on some of these, and brokers refuse what nobody meant."""
    created = moldau.ok("topic", "create", "twice", "other", "twice", "third")
    assert created.lines == ["created twice", "created other", "created third"]
    assert moldau.ok("topic", "alter", "twice", "twice", "-c", "retention.ms=5").lines == ["changed topic twice"]
    assert len(moldau.ok("broker", "elect-leaders", "twice", "twice").lines) == 2
    moldau.ok("produce", "twice", stdin="a\n")
    assert moldau.ok("consume", "twice", "twice", "-g", "twins", "-a", "-n", "1").lines == ["a"]
    assert len(moldau.ok("group", "lag", "twins", "twins").lines) == 2
    assert moldau.ok("group", "describe", "twins", "twins", "--json").json
    assert "deleted twins" in moldau.ok("group", "delete", "twins", "twins").out
    assert moldau.ok("topic", "delete", "twice", "other", "twice", "third").lines == [
        "deleted twice", "deleted other", "deleted third",
    ]  # fmt: skip


def test_a_setting_that_is_given_twice_is_refused_before_anybody_is_asked(nowhere: Command) -> None:
    assert "retention.ms is given twice" in nowhere.refused(
        2, "config", "set", "topic", "t", "retention.ms=1", "retention.ms=2"
    )


# What has no result to show, or talks to people alone.
WITHOUT_JSON = (
    "serve",
    "cluster start",
    "format",
    "console",
    "console-user",
    "certs",
    "app",
    "pipeline",
    "spark",
    "relay",
)


def test_every_command_can_speak_to_scripts() -> None:
    silent = [
        path
        for path, command in every_command()
        if not {"--json", "--format"} <= {name for each in command.params for name in each.opts}
        and not path.startswith(WITHOUT_JSON)
    ]
    assert silent == []


def test_help_speaks_of_values_not_of_types() -> None:
    """What takes a value says TEXT, NUMBER, FILE or more; Typer would show `<list[str]>`."""
    assert [
        (path, each.opts) for path, command in every_command() for each in command.params if each.metavar is None
    ] == []


def every_command() -> Iterator[tuple[str, Any]]:
    def walk(command: Any, path: str) -> Iterator[tuple[str, Any]]:
        below = getattr(command, "commands", None)
        if not below:
            yield path, command
        for name, each in (below or {}).items():
            yield from walk(each, f"{path} {name}")

    for entries in commands.COMMANDS.values():
        for name, entry in entries.items():
            yield from walk(commands.load(name, entry), name)


@pytest.mark.parametrize(
    "arguments",
    [
        ("group", "describe", "\udcff"),
        ("group", "lag", "good", "\udcff"),
        ("topic", "create", "\udcff"),
        ("group", "reset", "g", "-t", "\udcff", "--to", "earliest"),
        ("produce", "\udcff"),
        ("registry", "show", "\udcff", "--registry", "http://127.0.0.1:1"),
    ],
)
def test_bytes_that_are_no_text_name_nothing(moldau: Command, arguments: tuple[str, ...]) -> None:
    """As a shell hands over $'\\xff'. librdkafka's client crashed the process on the name of a group."""
    assert "is no text" in moldau.refused(2, *arguments)


def test_who_watches_is_told_which_cluster_went_away(capsys: pytest.CaptureFixture[str]) -> None:
    from moldau.cli.frame import _once
    from moldau.cli.target import Target
    from moldau.client.connection import Disconnected

    def look(target: Target) -> None:
        raise Disconnected("refused")

    _once(look, {"target": Target({"bootstrap.servers": "127.0.0.1:1"})})
    assert "no broker answers at 127.0.0.1:1 (refused)" in capsys.readouterr().err
