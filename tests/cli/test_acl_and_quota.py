"""`moldau acl` and `moldau quota`: what they set is there, and what they say when something is wrong."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from moldau.testing import Broker
from tests.cli.running import Command
from tests.support.authorization_cases import SETTINGS


@pytest.fixture(scope="module")
def moldau(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    with Broker(SETTINGS | {"super.users": "User:ANONYMOUS"}) as running:
        yield Command(running.bootstrap_servers, str(tmp_path_factory.mktemp("home")))


WORDS = "{principal} {permission} {operation} {resource} {name} {pattern} {host}"


def test_rules_are_added_listed_and_removed(moldau: Command) -> None:
    team = ("--topic", "team-", "--prefixed")
    assert moldau.ok("acl", "add", "-p", "User:ann", "-o", "read", "-o", "Describe-Configs", *team).lines == [
        "User:ann may Read Topic team-*",
        "User:ann may DescribeConfigs Topic team-*",
    ]
    moldau.ok("acl", "add", "-p", "User:*", "--group", "g", "--host", "10.0.0.1", "--deny")
    assert moldau.ok("acl", "list", "--topic", "team-a", "--format", WORDS).lines == [
        "User:ann allow DescribeConfigs Topic team- prefixed *",
        "User:ann allow Read Topic team- prefixed *",
    ]
    assert moldau.ok("acl", "list", "-p", "User:*", "--format", WORDS).lines == [
        "User:* deny All Group g literal 10.0.0.1"
    ]
    assert moldau.ok("acl", "list", "--topic", "other", "--json").json == []
    assert moldau.ok("acl", "remove", "-o", "Read", *team).lines == ["removed User:ann may Read Topic team-*"]
    assert moldau.ok("acl", "remove", "--topic", "team-").out == ""
    assert len(moldau.ok("acl", "remove", "--all").lines) == 2


@pytest.mark.parametrize(
    ("code", "arguments", "complaint"),
    [
        (2, ["add", "--topic", "a"], "--principal is missing"),
        (2, ["add", "-p", "User:ann"], "what is the rule about?"),
        (2, ["add", "-p", "User:ann", "--topic", "a", "-o", "fly"], "--operation fly: there are All, Alter"),
        (1, ["add", "-p", "ann", "--topic", "a"], "Could not parse principal"),
        (2, ["remove"], "say which rules"),
    ],
)
def test_rules_that_make_no_sense(moldau: Command, code: int, arguments: list[str], complaint: str) -> None:
    assert complaint in moldau.refused(code, "acl", *arguments)


def test_limits_are_set_listed_and_removed(moldau: Command) -> None:
    ann = ("-u", "ann", "--client-id", "")
    assert moldau.ok("quota", "set", *ann, "--produce", "1M", "--mutations", "2.5").lines == [
        "user=ann client-id=<default>: changed"
    ]
    moldau.ok("quota", "set", "--ip", "10.0.0.1", "--connections", "5")
    listed = moldau.ok("quota", "list", "--format", "{user} {client_id} {ip} {limit} {per_second}").lines
    assert sorted(listed) == [
        "- - 10.0.0.1 connections 5",
        "ann <default> - mutations 2.5",
        "ann <default> - produce 1000000",
    ]
    moldau.ok("quota", "remove", *ann, "--limit", "mutations")
    assert "mutations" not in moldau.ok("quota", "list").out
    moldau.ok("quota", "remove", *ann)
    moldau.ok("quota", "remove", "--ip", "10.0.0.1")
    assert moldau.ok("quota", "list", "--json").json == []


@pytest.mark.parametrize(
    ("code", "arguments", "complaint"),
    [
        (2, ["set", "--produce", "1M"], "say whose"),
        (2, ["set", "-u", "ann"], "say what is limited"),
        (2, ["set", "-u", "ann", "--produce", "fast"], "--produce fast: give bytes per second"),
        (1, ["set", "-u", "ann", "--produce", "0"], "Quota producer_byte_rate must be greater than 0"),
        (2, ["remove", "-u", "ann", "--limit", "speed"], "--limit speed: there are produce, fetch"),
    ],
)
def test_limits_that_make_no_sense(moldau: Command, code: int, arguments: list[str], complaint: str) -> None:
    assert complaint in moldau.refused(code, "quota", *arguments)


def test_who_may_not_is_told_so_with_its_own_exit_code(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Also where the broker explains itself: the reason is printed, and the code still says that it is about rights."""
    with Broker(SETTINGS | {"super.users": "User:nobody", "allow.everyone.if.no.acl.found": "false"}) as running:
        moldau = Command(running.bootstrap_servers, str(tmp_path_factory.mktemp("home")))
        for arguments in (
            ["acl", "list"],
            ["acl", "add", "-p", "User:a", "--topic", "t"],
            ["quota", "list"],
            ["quota", "set", "--user", "a", "--produce", "1"],
            ["broker", "unregister", "1"],
            ["broker", "set-feature", "metadata.version", "30"],
            ["config", "set", "broker", "1", "log.retention.ms=1"],
            ["topic", "create", "t"],
            ["quorum", "status"],
        ):
            assert moldau.refused(5, *arguments).startswith("moldau: "), arguments
