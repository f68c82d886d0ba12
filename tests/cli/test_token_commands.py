"""`moldau token`: made, listed, used to log in, renewed, ended; no secret is printed that nobody asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.testing import Broker
from tests.cli.running import Command, Ended

_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
_NAMES = ("ann", "bob", "eve")
_USERS = " ".join(f'user_{name}="{name}-secret"' for name in _NAMES)
_TIME = r"\d{4}-\d\d-\d\dT[\d:.]+Z"


class People:
    """A broker where ann, bob and eve have passwords, and commands as any of them."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        host, port = broker.node.addresses["SASL_PLAINTEXT"]
        self.command = Command(f"{host}:{port}", str(folder))
        self.nobody = Command(broker.bootstrap_servers, str(folder))
        self.folder = folder
        for name in _NAMES:
            self.write(name, _login(name))

    def write(self, name: str, settings: str) -> None:
        (self.folder / name).write_text(settings)

    def ok(self, who: str, *arguments: str) -> Ended:
        return self.command.ok(*arguments, "--config", str(self.folder / who))

    def refused(self, code: int, who: str, *arguments: str) -> str:
        return self.command.refused(code, *arguments, "--config", str(self.folder / who))


def _login(name: str) -> str:
    login = f'{_PLAIN} username="{name}" password="{name}-secret";'
    return f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config={login}\n"


SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{_PLAIN} {_USERS};",
    "connection.failed.authentication.delay.ms": "20",
}


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Iterator[People]:
    with Broker(SETTINGS | {"delegation.token.secret.key": "the key of tokens"}) as broker:
        yield People(broker, tmp_path_factory.mktemp("people"))


def test_a_token_is_made_listed_used_renewed_and_ended(people: People) -> None:
    made = people.ok("ann", "token", "create", "-r", "User:bob", "--max-lifetime", "2h", "--json").json
    assert {name: made[name] for name in ("owner", "made_by", "renewers")} == {
        "owner": "User:ann",
        "made_by": "User:ann",
        "renewers": ["User:bob"],
    }
    assert made["expires"] == made["lives_until"]
    (listed,) = people.ok("bob", "token", "list", "--json").json
    assert listed == {name: value for name, value in made.items() if name != "hmac"}
    (listed,) = people.ok("ann", "token", "list", "--owner", "User:ann", "--secrets", "--json").json
    assert listed == made
    assert people.ok("ann", "token", "list", "-o", "User:eve").err == "no tokens\n"

    # Shorter than it has: renewed to that.
    renewed = people.ok("bob", "token", "renew", made["token"], "--for", "30m", "--json").json
    assert renewed["token"] == made["token"]
    assert renewed["expires"] < made["expires"]
    for name in ("hmac", "token"):  # without an authorizer everybody may see it, as with Kafka
        assert "owner or one of its renewers" in people.refused(5, "eve", "token", "expire", made[name])

    said = people.ok("ann", "token", "expire", made["hmac"], "--in", "10m").out
    assert re.fullmatch(rf"the token expires {_TIME}\n", said)  # not the password it was called by
    assert people.ok("ann", "token", "expire", made["token"]).lines == [f"{made['token']} is gone"]
    assert "there is no such token" in people.refused(4, "ann", "token", "expire", made["token"])
    assert "the token: there is no such token" in people.refused(4, "ann", "token", "renew", made["hmac"])


def test_the_client_properties_of_a_token_log_in_with_it(people: People) -> None:
    printed = people.ok("ann", "token", "create", "--properties").out
    assert "ann-secret" not in printed
    people.write("token", printed)
    assert people.ok("token", "config", "list", "broker", "--format", "{name}").lines == ["1"]
    assert "librdkafka cannot log in with one" in people.refused(2, "token", "topic", "list")
    assert "none by a token" in people.refused(5, "token", "token", "create")
    (token,) = [row["token"] for row in people.ok("ann", "token", "list", "--json").json]
    people.ok("ann", "token", "expire", token)
    people.refused(5, "token", "config", "list")


def test_what_people_see(people: People) -> None:
    shown = people.ok("ann", "token", "create", "--max-lifetime", "1d").out
    token = shown.split()[3]
    masked = re.sub(r"[\w+/]{86}==", "HMAC", re.sub(_TIME, "TIME", shown.replace(token, "ID")))
    assert masked.splitlines() == [
        "what         is",
        "token        ID",
        "owner        User:ann",
        "made by      User:ann",
        "expires      TIME",
        "lives until  TIME",
        "renewers     -",
        "hmac         HMAC",
    ]
    listed = re.sub(_TIME, "TIME", people.ok("ann", "token", "list").out.replace(token, "ID"))
    assert [line.split() for line in listed.splitlines()] == [
        ["token", "owner", "made-by", "expires", "lives-until", "renewers"],
        ["ID", "User:ann", "User:ann", "TIME", "TIME", "-"],
    ]
    assert people.ok("ann", "token", "expire", token, "--format", "{token}").lines == [token]


@pytest.mark.parametrize(
    ("code", "arguments", "complaint"),
    [
        (2, ["create", "--owner", "ann"], "'ann' is nobody: write User:NAME"),
        (2, ["create", "-r", "Group:x"], "'Group:x' is nobody"),
        (2, ["create", "--max-lifetime", "soon"], "--max-lifetime soon: write a period as 30m, 12h or 7d"),
        (2, ["create", "--max-lifetime", "0s"], "write a period"),
        (2, ["renew", "x", "--for", "-1h"], "--for -1h: write a period"),
        (2, ["expire", "x", "--in", "1"], "--in 1: write a period"),
        (2, ["expire"], "Missing argument"),
        (2, ["list", "--owner", "User:"], "is nobody"),
        (4, ["renew", "x"], "x: there is no such token (`moldau token list` shows yours)"),
    ],
)
def test_what_cannot_be(people: People, code: int, arguments: list[str], complaint: str) -> None:
    assert complaint in people.refused(code, "ann", "token", *arguments)


def test_who_has_not_logged_in_gets_none(people: People) -> None:
    assert "takes a login" in people.nobody.refused(5, "token", "create")


def test_a_cluster_that_makes_no_tokens_says_how_it_would(tmp_path: Path) -> None:
    with Broker(SETTINGS) as broker:
        people = People(broker, tmp_path)
        for arguments in (["list"], ["create"]):
            assert "delegation.token.secret.key" in people.refused(1, "ann", "token", *arguments)
