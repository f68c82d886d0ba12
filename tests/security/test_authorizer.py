"""Who may do what by the rules, as Kafka's StandardAuthorizer reads them."""

import pytest

from moldau.controller.acls import AclResource, Operation, Pattern, Permission
from moldau.controller.image import Acl
from moldau.controller.persistent import PersistentMap
from moldau.security.authorizer import ALL_OPERATIONS, Authorizer, Rules, authorizer, operation_bits
from moldau.security.principal import Principal

TOPIC, GROUP, CLUSTER = AclResource.TOPIC, AclResource.GROUP, AclResource.CLUSTER
LITERAL, PREFIXED = Pattern.LITERAL, Pattern.PREFIXED
ALLOW, DENY = Permission.ALLOW, Permission.DENY
ANN, BOB = Principal.user("ann"), Principal.user("bob")


def allow(name: str, operation: int = Operation.READ, pattern: int = LITERAL, who: str = "User:ann") -> Acl:
    return Acl(TOPIC, name, pattern, who, "*", operation, ALLOW)


def deny(name: str, operation: int = Operation.READ, pattern: int = LITERAL, who: str = "User:ann") -> Acl:
    return Acl(TOPIC, name, pattern, who, "*", operation, DENY)


def may(acls: list[Acl], operation: int, name: str, *, who: str = "User:ann", host: str = "10.0.0.1") -> bool:
    return Rules(acls).allows(who, host, operation, TOPIC, name)


def test_names_prefixes_and_the_wildcard() -> None:
    acls = [allow("orders"), allow("team-", pattern=PREFIXED), allow("*", Operation.WRITE)]
    assert may(acls, Operation.READ, "orders")
    assert not may(acls, Operation.READ, "orders2")
    assert may(acls, Operation.READ, "team-a")
    assert may(acls, Operation.READ, "team-")
    assert not may(acls, Operation.READ, "team")
    assert may(acls, Operation.WRITE, "anything")
    assert not may(acls, Operation.READ, "anything")


def test_a_denial_wins_wherever_it_comes_from() -> None:
    everything = allow("*", Operation.ALL)
    for denial in (deny("secret"), deny("sec", pattern=PREFIXED), deny("*"), deny("secret", Operation.ALL)):
        assert not may([everything, denial], Operation.READ, "secret")
        assert not may([denial, everything], Operation.READ, "secret")
    assert may([everything, deny("secret")], Operation.WRITE, "secret")
    assert may([everything, deny("secret", who="User:bob")], Operation.READ, "secret")


def test_doing_implies_seeing_and_denying_does_not() -> None:
    for operation in (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER):
        assert may([allow("a", operation)], Operation.DESCRIBE, "a")
    assert not may([allow("a", Operation.CREATE)], Operation.DESCRIBE, "a")
    assert may([allow("a", Operation.ALTER_CONFIGS)], Operation.DESCRIBE_CONFIGS, "a")
    assert not may([allow("a", Operation.ALTER)], Operation.DESCRIBE_CONFIGS, "a")
    assert may([allow("a", Operation.DESCRIBE), deny("a", Operation.READ)], Operation.DESCRIBE, "a")


@pytest.mark.parametrize("host", ["0:0:0:0:0:0:0:1", "::1", "0000:0000::0001"])
def test_an_address_may_be_written_as_java_does(host: str) -> None:
    denial = deny("a")._replace(host=host)
    rules = Rules([allow("a"), denial])
    assert not rules.allows("User:ann", "::1", Operation.READ, TOPIC, "a")
    assert rules.allows("User:ann", "::2", Operation.READ, TOPIC, "a")
    rules.remove(denial)
    assert rules.allows("User:ann", "::1", Operation.READ, TOPIC, "a")
    mapped = deny("a")._replace(host="::FFFF:10.0.0.1")
    assert not may([allow("a"), mapped], Operation.READ, "a", host="10.0.0.1")


def test_principals_and_hosts() -> None:
    assert may([allow("a", who="User:*")], Operation.READ, "a", who="User:bob")
    assert not may([allow("a")], Operation.READ, "a", who="User:bob")
    from_one_host = [allow("a")._replace(host="10.0.0.1")]
    assert may(from_one_host, Operation.READ, "a", host="10.0.0.1")
    assert not may(from_one_host, Operation.READ, "a", host="10.0.0.2")


def test_resources_without_rules() -> None:
    rules = Rules([deny("a", Operation.ALL)], allow_if_no_acl=True)
    assert rules.allows("User:bob", "h", Operation.READ, TOPIC, "free")
    assert rules.allows("User:bob", "h", Operation.READ, GROUP, "a")
    assert not rules.allows("User:bob", "h", Operation.READ, TOPIC, "a"), "there is a rule, for somebody else"
    assert not Rules().allows("User:bob", "h", Operation.READ, TOPIC, "free")


def test_being_allowed_somewhere() -> None:
    def any_topic(*acls: Acl) -> bool:
        return Rules(acls).allows_somewhere("User:ann", "h", Operation.WRITE, TOPIC)

    write = Operation.WRITE
    assert any_topic(allow("a", write))
    assert not any_topic(allow("a"))
    assert not any_topic()
    assert not any_topic(allow("a", write), deny("*", write))
    assert not any_topic(allow("a", write), deny("a", Operation.ALL))
    assert not any_topic(allow("team-a", write), deny("team", write, PREFIXED))
    assert any_topic(allow("team", write, PREFIXED), deny("team-a", write, PREFIXED))
    assert any_topic(allow("team", write, PREFIXED), deny("team", write))
    assert any_topic(allow("*", write), deny("team", write, PREFIXED))
    assert Rules(allow_if_no_acl=True).allows_somewhere("User:ann", "h", write, TOPIC)
    others = Rules([allow("*", write, who="User:bob")], allow_if_no_acl=True)
    assert not others.allows_somewhere("User:ann", "h", write, TOPIC), "every topic has a rule, for somebody else"


def acls(*rules: Acl) -> PersistentMap[bytes, Acl]:
    return PersistentMap({bytes([at]): rule for at, rule in enumerate(rules)})


def test_super_users_may_do_everything() -> None:
    rules = Authorizer(["User:ann"])
    rules.follow(acls(deny("a", Operation.ALL)))
    assert rules.allows(ANN, "h", Operation.READ, TOPIC, "a")
    assert rules.allows_somewhere(ANN, "h", Operation.WRITE, TOPIC)
    assert not rules.allows(BOB, "h", Operation.READ, TOPIC, "a")
    assert not rules.allows_somewhere(BOB, "h", Operation.WRITE, TOPIC)


def test_an_answer_lasts_until_the_rules_change() -> None:
    rules = Authorizer()

    def may_read() -> bool:
        return rules.allows(ANN, "h", Operation.READ, TOPIC, "team-a")

    assert not may_read()
    granted = PersistentMap[bytes, Acl]().with_entry(b"1", allow("team-", pattern=PREFIXED))
    rules.follow(granted)
    assert may_read()
    denied = granted.with_entry(b"2", deny("team-a"))
    rules.follow(denied)
    assert not may_read()
    builder = denied.builder()
    builder.remove(b"2")
    rules.follow(builder.publish())
    assert may_read()
    builder = builder.publish().builder()
    builder.remove(b"1")
    rules.follow(builder.publish())
    assert not may_read()


def test_the_same_rule_twice_is_there_until_both_are_gone() -> None:
    """A snapshot of another controller may hold a rule under two ids."""
    rules = Authorizer()
    twice = acls(allow("t", pattern=PREFIXED), allow("t", pattern=PREFIXED))
    rules.follow(twice)
    builder = twice.builder()
    builder.remove(b"\0")
    rules.follow(builder.publish())
    assert rules.allows(ANN, "h", Operation.READ, TOPIC, "topic")


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorizer, "REMEMBERED_MAX", 10)
    rules = Authorizer()
    rules.follow(acls(allow("t1")))
    for number in range(100):
        assert rules.allows(ANN, "h", Operation.READ, TOPIC, f"t{number}") is (number == 1)
    assert sum(len(names) for names in rules._remembered.values()) <= 10


def test_who_asks_nothing_is_not_remembered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session looks up its principal and address before it names a topic, and addresses are many."""
    monkeypatch.setattr(authorizer, "REMEMBERED_MAX", 10)
    rules = Authorizer()
    for number in range(100):
        rules.known(ANN, f"fe80::{number:x}", Operation.READ, TOPIC)
    assert len(rules._remembered) <= 10


def test_operations_as_bits() -> None:
    rules = Authorizer()
    rules.follow(acls(allow("a"), allow("a", Operation.ALTER_CONFIGS)))
    allowed = rules.allowed_operations(ANN, "h", TOPIC, "a")
    expected = {Operation.READ, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS}
    assert set(allowed) == expected
    assert operation_bits(allowed) == 0b1101_0000_1000
    assert ALL_OPERATIONS[TOPIC] == 0b1101_1111_1000
    assert ALL_OPERATIONS[CLUSTER] == 0b1_1111_1010_0000
    assert ALL_OPERATIONS[GROUP] == 0b1101_0100_1000
