"""Commands where logins and TLS are asked for: one client.properties is enough, and what is missing is told."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.testing import Broker, Security
from tests.cli.running import Command


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(security=Security()) as running:
        yield running


@pytest.fixture(scope="module")
def client(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As Java's clients would have it."""
    given = broker.client_settings()
    file = tmp_path_factory.mktemp("client") / "client.properties"
    file.write_text(
        f"security.protocol=SASL_SSL\nsasl.mechanism={given['sasl.mechanisms']}\n"
        f"sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\\n"
        f'  username="{given["sasl.username"]}" password="{given["sasl.password"]}";\n'
        f"ssl.truststore.type=PEM\nssl.truststore.location={given['ssl.ca.location']}\n"
        "key.serializer=org.apache.kafka.common.serialization.StringSerializer\n"
    )
    return file


def test_every_kind_of_command_logs_in(moldau: Command, client: Path, tmp_path: Path) -> None:
    at = ("--config", str(client))
    moldau.ok("topic", "create", "t", *at)
    moldau.ok("produce", "t", *at, stdin="x\n")
    assert moldau.ok("consume", "t", "-a", "-e", *at).out == "x\n"
    moldau.ok("group", "reset", "g", "-t", "t", "--to", "latest", "--execute", *at)
    assert moldau.ok("group", "list", *at, "--format", "{group}").out == "g\n"
    for arguments in (["quorum", "status"], ["broker", "disks"], ["txn", "list"], ["reassign", "status"], ["health"]):
        moldau.ok(*arguments, *at)
    assert "t" in moldau("topic", "list", MOLDAU_CONFIG=str(client)).lines
    own = {"MOLDAU_HOME": str(tmp_path)}
    assert moldau("context", "set", "safe", *at, **own).code == 0
    assert "t" in moldau("topic", "list", "--context", "safe", **own).lines


def test_who_may_read_a_topic_needs_no_group_for_it(tmp_path: Path) -> None:
    rules = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
    with Broker(rules | {"super.users": "User:alice;User:moldau"}, security=Security()) as guarded:
        given = guarded.client_settings()
        settings = {name: given[name] for name in given if name != "bootstrap.servers"}
        (tmp_path / "client").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        _reads_without_a_group(
            Command(guarded.bootstrap_servers, str(tmp_path)), ("--config", str(tmp_path / "client"))
        )


def _reads_without_a_group(moldau: Command, at: tuple[str, str]) -> None:
    moldau.ok("topic", "create", "readable", "hidden", *at)
    moldau.ok("produce", "readable", *at, stdin="x\n")
    moldau.ok("user", "add", "reader", "--password-stdin", *at, stdin="secret\n")
    moldau.ok("acl", "add", "--principal", "User:reader", "--operation", "Read", "--topic", "readable", *at)
    reader = (*at, "-X", "sasl.username=reader", "-X", "sasl.password=secret")
    assert moldau.ok("consume", "readable", "-a", "-n", "1", *reader).out == "x\n"
    assert moldau.ok("consume", "readable", "-l", "1", *reader).out == "x\n"
    assert moldau.ok("consume", "readable", "--timeout", "2", *reader).out == ""
    assert moldau.ok("bench", "consume", "readable", "-n", "1", "--json", *reader).json["records"] == 1
    assert "Not allowed on this group" in moldau.refused(5, "consume", "readable", "-g", "g", *reader)
    assert "hidden: " in moldau.refused(5, "consume", "hidden", "-a", "-n", "1", *reader)


@pytest.mark.parametrize("break_", [" \\n \\\n", "\\n\\\n    ", " "])
def test_certificates_may_stand_in_the_file_as_java_reads_them(
    moldau: Command, client: Path, tmp_path: Path, break_: str
) -> None:
    """Blanks before and after the lines, or instead of their ends: Java's decoder of base64 does not mind."""
    given, _, location = client.read_text().partition("ssl.truststore.location=")
    authority = Path(location.splitlines()[0]).read_text().strip().replace("\n", break_)
    (tmp_path / "inline.properties").write_text(f"{given}ssl.truststore.certificates={authority}\n")
    at = ("--config", str(tmp_path / "inline.properties"))
    moldau.ok("health", *at)  # our own client
    moldau.ok("topic", "list", *at)  # and librdkafka


def test_what_is_wrong_with_a_login_is_told(moldau: Command, client: Path) -> None:
    at = ("--config", str(client))
    assert "closes the connection: does it want TLS or a login" in moldau.refused(3, "topic", "list")
    said = moldau.refused(5, "topic", "list", *at, "-X", "sasl.username=alice", "-X", "sasl.password=wrong")
    assert "refused user 'alice'" in said
    assert "is not trusted" in moldau.refused(1, "topic", "list", *at, "-X", "ssl.truststore.location=")
    assert "nowhere.pem cannot be read: No such file" in moldau.refused(
        2, "topic", "list", *at, "-X", "ssl.truststore.location=/nowhere.pem"
    )
    assert "holds no certificate in PEM" in moldau.refused(
        2, "topic", "list", *at, "-X", "ssl.truststore.location=/dev/null"
    )
    nobody = ("-X", "ssl.truststore.location=", "-X", "ssl.truststore.certificates=nonsense")
    assert "holds no certificate in PEM" in moldau.refused(2, "topic", "list", *at, *nobody)
    assert "nowhere.pem cannot be read" in moldau.refused(
        2, "topic", "list", *at, "-X", "ssl.keystore.location=/nowhere.pem"
    )
    store = ("-X", "ssl.truststore.type=JKS")
    assert "is a Java key store: convert it" in moldau.refused(2, "topic", "list", *at, *store)
    assert "sasl.username" in moldau.refused(2, "topic", "list", *at, "-X", "sasl.jaas.config=")
    rows = {row["check"]: row["result"] for row in moldau("doctor", "--json").json}
    assert (rows["bootstrap"], rows["login"]) == ("ok", "failed")


def test_values_by_the_schemas_of_a_registry(moldau: Command, client: Path, tmp_path: Path) -> None:
    from tests.spark.fake_registry import running

    schema = tmp_path / "order.avsc"
    schema.write_text('{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}')
    at = ("--config", str(client))
    moldau.ok("topic", "create", "avro", *at)
    with running() as registry:
        written = ("--value-as", "avro", "--registry", registry.url)
        moldau.ok("produce", "avro", *at, *written, "--value-schema", str(schema), stdin='{"id": 7}\n')
        assert moldau.ok("consume", "avro", "-a", "-e", *at, *written).out == '{"id":7}\n', "by the writer's schema"
    assert moldau.ok("consume", "avro", "-a", "-e", *at, "--value-as", "hex").out.startswith("0000000001")


def test_a_pipeline_is_begun_from_a_topic_behind_a_login(
    moldau: Command, client: Path, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from moldau.spark.pipelines import load, validate
    from moldau.spark.pipelines.reach import require_cluster

    at, file = ("--config", str(client)), tmp_path / "orders.yaml"
    moldau.ok("topic", "create", "orders", *at)
    moldau.ok("produce", "orders", *at, stdin='{"id": 7, "what": "tea"}\n')
    said = moldau.ok("pipeline", "init", "--topic", "orders", "--name", "orders", "--file", str(file), *at)
    assert "written from 1 record." in said.out
    assert "set KAFKA_SASL_JAAS_CONFIG" in said.out
    password = str(broker.client_settings()["sasl.password"])
    text = file.read_text()
    assert password not in text
    assert "StringSerializer" not in text, "what is no pipeline's"
    login = next(line for line in client.read_text().replace("\\\n", "").splitlines() if "jaas" in line)
    monkeypatch.setenv("KAFKA_SASL_JAAS_CONFIG", login.partition("=")[2])
    pipeline = load(str(file))
    validate(pipeline)
    require_cluster(pipeline)
    wrong = ("-X", "sasl.username=alice", "-X", "sasl.password=wrong")
    arguments = ("--topic", "orders", "--name", "no", "--file", str(tmp_path / "no.yaml"), *at)
    assert "refused user 'alice'" in moldau.refused(5, "pipeline", "init", *arguments, *wrong)
