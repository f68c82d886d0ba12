"""Java's client, franz-go and kafkajs over every mechanism; the others are in `tests/security`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop.peers.clients import Client, Record, go_client, java_client, node_client
from tests.security.secured import MECHANISMS, PROTOCOLS, Secured

ALL = (*MECHANISMS, "OAUTHBEARER")
JAVA = "org.apache.kafka.common.security"
MODULES = {
    "PLAIN": f"{JAVA}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{JAVA}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{JAVA}.scram.ScramLoginModule",
    "OAUTHBEARER": f"{JAVA}.oauthbearer.OAuthBearerLoginModule",
}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with Secured(tmp_path_factory.mktemp("secured")) as broker:
        yield broker


def credentials(secured: Secured, mechanism: str) -> tuple[str, str]:
    return ("", secured.issuer.token()) if mechanism == "OAUTHBEARER" else secured.credentials(mechanism)


@pytest.mark.parametrize("make", [go_client, node_client])
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("mechanism", ALL)
def test_a_round_trip(secured: Secured, make: Callable[[], Client], protocol: str, mechanism: str) -> None:
    client = make()
    topic = secured.new_topic()
    user, password = credentials(secured, mechanism)
    options = {"sasl": mechanism, "user": user, "password": password}
    if protocol == "SASL_SSL":
        options["ca"] = secured.ca_file
    client.produce(secured.address(protocol), topic, [Record("k", "v")], **options)
    (found,) = client.consume(secured.address(protocol), topic, 1, group=topic, **options)
    assert (found.key, found.value) == ("k", "v")


@pytest.mark.parametrize("mechanism", [*ALL, None])
def test_javas_client(secured: Secured, mechanism: str | None, tmp_path: Path) -> None:
    """Over TLS: logged in, or (None) with a certificate."""
    topic = secured.new_topic()
    lines = ["ssl.truststore.type=PEM", f"ssl.truststore.location={secured.ca_file}"]
    if mechanism is None:
        lines += ["security.protocol=SSL", "ssl.keystore.type=PEM", f"ssl.keystore.location={secured.client_file}"]
    else:
        lines += ["security.protocol=SASL_SSL", f"sasl.mechanism={mechanism}"]
        user, password = credentials(secured, mechanism)
        login = f"{MODULES[mechanism]} required"
        if mechanism == "OAUTHBEARER":
            token = tmp_path / "token"
            token.write_text(password)
            lines.append(f"sasl.oauthbearer.token.endpoint.url={token.as_uri()}")
            handler = f"{JAVA}.oauthbearer.OAuthBearerLoginCallbackHandler"
            lines.append(f"sasl.login.callback.handler.class={handler}")
        else:
            quoted = password.replace('"', '\\\\"')  # once for properties, once for JAAS
            login += f' username="{user}" password="{quoted}"'
        lines.append(f"sasl.jaas.config={login};")
    config = tmp_path / "client.properties"
    config.write_text("\n".join(lines))
    address = secured.address("SSL" if mechanism is None else "SASL_SSL")
    (sent,) = java_client().produce(address, topic, [Record("k", "v")], config=str(config))
    assert sent["offset"] == 0
