"""TLS and SASL of source and sink, against Apache Kafka: what may pass passes, and a refusal says why, and soon."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from pyspark.sql.types import StringType, StructField, StructType

from moldau.client.connection import ClientError, Disconnected
from moldau.client.sasl import AuthenticationFailed
from moldau.spark.sink import make_stream_writer, write_at_least_once, write_exactly_once
from moldau.spark.sink_options import sink_options
from moldau.testing.ports import free_ports
from tests.interop.apache_kafka import HOST, ApacheKafka
from tests.net.certificates import Identity, as_pkcs8, make_identity
from tests.spark.reading import batch_reader, options_of, rows, send
from tests.support.clients import fresh, quiet, read_all

SCRAM_LOGIN = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="ann" password="ann-secret";'
DELIVERIES = ("at-least-once", "exactly-once")
NOT_TRUSTED = r"certificate of 127.* is not trusted: .* ssl\.truststore\.location"
PLAIN_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


@dataclass(frozen=True)
class Secured:
    """A node with one listener of each kind, by name, and what a client needs to trust it."""

    bootstrap: dict[str, str]
    folder: Path
    client: Identity

    def read(self, listener: str, **options: str) -> int:
        """How many records the source reads there."""
        given = {"kafka_security_protocol": listener, "kafka_default_api_timeout_ms": "1000"} | options
        reader = batch_reader(self.bootstrap[listener], subscribe="secured", **given)
        return len(rows(reader, reader.partitions()))

    def write(self, listener: str, delivery: str, **options: str) -> int:
        """What a query does: checks in the driver, then a task. Returns how many rows were written."""
        more = {"topic": "written", "delivery": delivery, "kafka_security_protocol": listener} | options
        given = options_of(self.bootstrap[listener], more)
        make_stream_writer(given, StructType([StructField("value", StringType())]), overwrite=False)
        rows = iter([pa.record_batch({"value": pa.array(["a", "b", "c"])})])
        if delivery == "at-least-once":
            return write_at_least_once(sink_options(given), rows).rows
        return write_exactly_once(sink_options(given), fresh("query"), 0, 0, rows).rows


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """PLAINTEXT to set it up; SSL wants client certificates, SASL_* logins."""
    folder = tmp_path_factory.mktemp("secured")
    authority = make_identity([("CN", "authority")])
    server = make_identity([("CN", HOST)], authority)
    client = make_identity([("CN", "client")], authority)
    (folder / "ca.pem").write_text(authority.certificate)
    (folder / "server.pem").write_text(as_pkcs8(server) + server.certificate)
    (folder / "client.pem").write_text(client.key + client.certificate)
    names = ("PLAINTEXT", "CONTROLLER", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    listeners = ",".join(f"{name}://{HOST}:{port}" for name, port in ports.items())
    properties = {
        "listeners": listeners,
        "advertised.listeners": listeners,
        "listener.security.protocol.map": ",".join(
            f"{name}:{'PLAINTEXT' if name == 'CONTROLLER' else name}" for name in names
        ),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "server.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "ca.pem"),
        "listener.name.ssl.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    }
    for name in ("sasl_plaintext", "sasl_ssl"):
        prefix = f"listener.name.{name}"
        properties |= {
            f"{prefix}.plain.sasl.jaas.config": f'{PLAIN_LOGIN} user_bob="bob-secret";',
            f"{prefix}.scram-sha-256.sasl.jaas.config": SCRAM_LOGIN,
            f"{prefix}.scram-sha-512.sasl.jaas.config": SCRAM_LOGIN,
        }
    with ApacheKafka(properties, ports=(ports["PLAINTEXT"], ports["CONTROLLER"])) as kafka:
        admin = AdminClient(quiet(kafka.bootstrap_servers))
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            upsertion = UserScramCredentialUpsertion("ann", ScramCredentialInfo(mechanism, 4096), b"ann-secret")
            for future in admin.alter_user_scram_credentials([upsertion]).values():
                future.result(30)
        for future in admin.create_topics([NewTopic(name, 1, 1) for name in ("secured", "written")]).values():
            future.result(30)
        send(kafka.bootstrap_servers, "secured", 10)
        yield Secured({name: f"{HOST}:{port}" for name, port in ports.items()}, folder, client)


def test_tls_with_a_client_certificate(secured: Secured) -> None:
    trust = {"kafka_ssl_truststore_location": str(secured.folder / "ca.pem"), "kafka_ssl_truststore_type": "PEM"}
    store = {"kafka_ssl_keystore_location": str(secured.folder / "client.pem"), "kafka_ssl_keystore_type": "PEM"}
    assert secured.read("SSL", **trust, **store) == 10
    inline = {
        "kafka_ssl_truststore_certificates": (secured.folder / "ca.pem").read_text(),
        "kafka_ssl_keystore_certificate_chain": secured.client.certificate,
        "kafka_ssl_keystore_key": secured.client.key,
    }
    assert secured.read("SSL", **inline) == 10
    with pytest.raises(ClientError, match=r"refused the TLS connection: .* ssl\.keystore\.location"):
        secured.read("SSL", **trust)
    with pytest.raises(ClientError, match=NOT_TRUSTED):
        secured.read("SSL", **store)
    for delivery in DELIVERIES:
        assert secured.write("SSL", delivery, **trust, **store) == 3
        assert secured.write("SSL", delivery, **inline) == 3
        with pytest.raises(ClientError, match=NOT_TRUSTED):
            secured.write("SSL", delivery, **store)
        with pytest.raises(ClientError, match="refused the TLS connection"):
            secured.write("SSL", delivery, **trust)


@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_logins(secured: Secured, listener: str, mechanism: str) -> None:
    options = {"kafka_sasl_mechanism": mechanism}
    if listener == "SASL_SSL":
        options |= {"kafka_ssl_truststore_location": str(secured.folder / "ca.pem")}
    user = "bob" if mechanism == "PLAIN" else "ann"
    login = f'x required username="{user}" password="{user}-secret";'
    assert secured.read(listener, **options, kafka_sasl_jaas_config=login) == 10
    assert secured.read(listener, **options, kafka_sasl_username=user, kafka_sasl_password=f"{user}-secret") == 10
    for name, password in ((user, "wrong"), ("nobody", f"{user}-secret")):
        with pytest.raises(AuthenticationFailed, match=f"refused user '{name}'"):
            secured.read(listener, **options, kafka_sasl_username=name, kafka_sasl_password=password)
    before = read_all(secured.bootstrap["PLAINTEXT"], "written")
    for delivery in DELIVERIES:
        assert secured.write(listener, delivery, **options, kafka_sasl_jaas_config=login) == 3
        with pytest.raises(AuthenticationFailed, match=f"refused user '{user}'"):
            secured.write(listener, delivery, **options, kafka_sasl_username=user, kafka_sasl_password="wrong")
    found = read_all(secured.bootstrap["PLAINTEXT"], "written")
    assert [message.value() for message in found[len(before) :]] == [b"a", b"b", b"c"] * 2


def test_the_wrong_kind_of_listener(secured: Secured) -> None:
    here = secured.bootstrap["SSL"]
    reader = batch_reader(here, subscribe="secured", kafka_default_api_timeout_ms=500)
    with pytest.raises(Disconnected):
        reader.partitions()
