"""The mechanisms as state machines: what is right gets in, whatever else is refused, and refused alike."""

from __future__ import annotations

import base64
import itertools
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.controller.fold import apply
from moldau.controller.image import EMPTY_IMAGE, ClusterImage
from moldau.controller.scram import alter_user_scram_credentials, describe_user_scram_credentials
from moldau.security.first_users import FirstUser, first_user, parse_first_user
from moldau.security.sasl.client import Credentials, LoginRefused, exchange
from moldau.security.sasl.mechanism import SCRAM, AuthenticationFailed, ServerMechanism, Step
from moldau.security.sasl.plain import PlainServer
from moldau.security.sasl.scram import ScramServer
from moldau.security.scram_users import ClusterUsers
from moldau.wire import messages as m
from tests.controller.world import World

USERS = {"alice": "alice-secret", "bob": "bob-secret", "a,b=c": "odd"}
NUMBERS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
nonces = itertools.count()


def image_of(users: list[FirstUser]) -> ClusterImage:
    records = [
        m.UserScramCredentialRecord(
            each.name,
            NUMBERS[each.mechanism],
            each.keys.salt,
            each.keys.stored_key,
            each.keys.server_key,
            each.keys.iterations,
        )
        for each in users
    ]
    return apply(EMPTY_IMAGE, list(records), offset=0, epoch=0)


IMAGE = image_of([first_user(mechanism, name, password) for mechanism in SCRAM for name, password in USERS.items()])


def server(mechanism: str = "SCRAM-SHA-256", image: ClusterImage = IMAGE) -> ScramServer:
    return ScramServer(mechanism, ClusterUsers(lambda: image), lambda: f"server{next(nonces)}")


def log_in(mechanism: ServerMechanism, credentials: Credentials) -> Step:
    steps = exchange(credentials)
    token = next(steps)
    while True:
        step = mechanism.step(token, 0)
        try:
            token = steps.send(step.answer)
        except StopIteration:
            return step


@pytest.mark.parametrize("mechanism", SCRAM)
@pytest.mark.parametrize("user", USERS)
def test_the_right_password_gets_in(mechanism: str, user: str) -> None:
    identity = log_in(server(mechanism), Credentials(mechanism, user, USERS[user])).identity
    assert identity is not None
    assert str(identity.principal) == f"User:{user}"


@pytest.mark.parametrize("mechanism", SCRAM)
@pytest.mark.parametrize("user", ["alice", "nobody"])
def test_a_wrong_password_and_an_unknown_user_fail_alike(mechanism: str, user: str) -> None:
    with pytest.raises(AuthenticationFailed) as failure:
        log_in(server(mechanism), Credentials(mechanism, user, "wrong"))
    assert (failure.value.message, str(failure.value)) == (None, "invalid credentials")


def first_answer(user: str, users: ClusterUsers) -> tuple[str, str]:
    answer = ScramServer("SCRAM-SHA-256", users, lambda: "s").step(f"n,,n={user},r=c".encode(), 0).answer.decode()
    found = re.fullmatch(r"r=cs,s=([A-Za-z0-9+/=]+),i=(\d+)", answer)
    assert found is not None
    return found[1], found[2]


def test_an_unknown_user_has_a_salt_of_its_own_like_everybody() -> None:
    one, other = ClusterUsers(lambda: IMAGE), ClusterUsers(lambda: IMAGE)
    assert first_answer("nobody", one) == first_answer("nobody", one) == first_answer("nobody", other)
    assert first_answer("nobody", one) != first_answer("somebody", one)
    assert len(first_answer("nobody", one)[0]) == len(first_answer("alice", one)[0])
    many = image_of([first_user("SCRAM-SHA-256", "x", "y")])
    strong = parse_first_user("SCRAM-SHA-256=[name=x,password=y,iterations=16384]")
    assert first_answer("nobody", ClusterUsers(lambda: image_of([strong])))[1] == "16384"
    assert first_answer("nobody", ClusterUsers(lambda: many))[1] == "4096"


def test_salts_of_unknown_users_stay_when_users_come_and_go() -> None:
    """Otherwise who asks for a name now and then sees which answers change, and knows who exists."""
    kind = m.AlterUserScramCredentialsRequest
    image = image_of([first_user("SCRAM-SHA-256", "middle", "x")])  # as given when the controllers were formatted
    before = [first_answer(name, ClusterUsers(lambda: image)) for name in ("nobody", "somebody")]

    def change(*requests: m.AlterUserScramCredentialsRequest) -> list[tuple[str, str]]:
        nonlocal image
        for offset, request in enumerate(requests, start=1):
            made = alter_user_scram_credentials(image, request, World().context).records
            image = apply(image, made, offset=offset, epoch=0)
        return [first_answer(name, ClusterUsers(lambda: image)) for name in ("nobody", "somebody")]

    def upsert(name: str) -> m.AlterUserScramCredentialsRequest:
        return kind(upsertions=[kind.ScramCredentialUpsertion(name, 1, 4096, b"s" * 26, name.encode() * 8)])

    def delete(name: str) -> m.AlterUserScramCredentialsRequest:
        return kind(deletions=[kind.ScramCredentialDeletion(name, 1)])

    assert change(upsert("first")) == before
    assert change(upsert("last")) == before
    assert change(upsert("middle")) == before  # another password
    assert change(delete("first")) == before
    assert change(delete("middle"), delete("last"), upsert("new")) == before
    assert "decoy" not in repr(describe_user_scram_credentials(image, m.DescribeUserScramCredentialsRequest(None)))


def test_an_unknown_user_costs_no_less_time() -> None:
    """The quickest of many runs: noise only ever adds."""
    users = ClusterUsers(lambda: IMAGE)

    def quickest(user: str) -> float:
        best = float("inf")
        for _ in range(2_000):
            attempt = ScramServer("SCRAM-SHA-256", users, lambda: "s")
            begin = time.perf_counter()
            attempt.step(f"n,,n={user},r=c".encode(), 0)
            with pytest.raises(AuthenticationFailed):
                attempt.step(b"c=biws,r=cs,p=" + base64.b64encode(bytes(32)), 0)
            best = min(best, time.perf_counter() - begin)
        return best

    known, unknown = quickest("alice"), quickest("nobody")
    assert 0.6 < known / unknown < 1.6


def test_too_few_iterations_are_as_good_as_no_password() -> None:
    weak = first_user("SCRAM-SHA-256", "alice", "alice-secret")
    image = image_of([weak])
    key = next(iter(image.scram.keys()))
    record = m.UserScramCredentialRecord("alice", 1, b"salt", image.scram[key].stored_key, b"x" * 32, 100)
    image = apply(EMPTY_IMAGE, [record], offset=0, epoch=0)
    with pytest.raises(AuthenticationFailed):
        log_in(server(image=image), Credentials("SCRAM-SHA-256", "alice", "alice-secret"))


@pytest.mark.parametrize(
    "final",
    [
        "c=biws,r=other,p=AAAA",
        "c=eSws,r={nonce},p=AAAA",  # as if it could bind the channel
        "c=biws,r={nonce}",
        "c=biws,r={nonce},p=",
        "c=biws,r={nonce},p=A",
        "",
    ],
)
def test_another_last_message_is_refused(final: str) -> None:
    attempt = server()
    nonce = attempt.step(b"n,,n=alice,r=c", 0).answer.decode().split(",")[0][2:]
    with pytest.raises(AuthenticationFailed):
        attempt.step(final.format(nonce=nonce).encode(), 0)


@pytest.mark.parametrize(
    "first",
    [
        *("", "n,,", "y,,n=alice,r=c", "p=tls-unique,,n=alice,r=c", "n,,n=alice", "n,,r=c,n=alice"),
        *(
            "n,,m=x,n=alice,r=c",
            "n,,n=,r=c",
            "n,,n=al=ice,r=c",
            "n,,n=al\0ice,r=c",
            "n,,n=alice,r=",
            "n,,n=alice,r=c,d",
        ),
    ],
)
def test_another_first_message_is_refused(first: str) -> None:
    with pytest.raises(AuthenticationFailed):
        server().step(first.encode(), 0)


def test_nobody_speaks_for_somebody_else() -> None:
    with pytest.raises(AuthenticationFailed, match="different from username"):
        server().step(b"n,a=bob,n=alice,r=c", 0)
    with pytest.raises(AuthenticationFailed, match="different from username"):
        PlainServer(USERS).step(b"bob\0alice\0alice-secret", 0)


@pytest.mark.parametrize(
    ("token", "told"),
    [
        (b"\0alice\0wrong", "Invalid username or password"),
        (b"\0nobody\0alice-secret", "Invalid username or password"),
        (b"\0nobody\0\xff", "Invalid username or password"),
        (b"\0\0secret", "username not specified"),
        (b"\0alice\0", "password not specified"),
        (b"alice", "expected 3 tokens, got 1"),
        (b"\0alice\0alice-secret\0", "expected 3 tokens, got 4"),
        (b"", "expected 3 tokens, got 1"),
    ],
)
def test_plain_says_what_kafka_says(token: bytes, told: str) -> None:
    with pytest.raises(AuthenticationFailed, match=told):
        PlainServer(USERS).step(token, 0)


def test_plain_gets_in() -> None:
    identity = log_in(PlainServer(USERS), Credentials("PLAIN", "alice", "alice-secret")).identity
    assert identity is not None
    assert identity.principal.name == "alice"


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=200) | st.text(alphabet="n,=acrpmt0\x01\0biws+/", max_size=60), max_size=3))
def test_whatever_comes_is_an_answer_or_a_refusal(tokens: list[bytes | str]) -> None:
    for mechanism in (server(), server("SCRAM-SHA-512"), PlainServer(USERS)):
        try:
            for token in tokens:
                assert mechanism.step(token if isinstance(token, bytes) else token.encode(), 0).identity is None
        except AuthenticationFailed:
            pass


def test_a_broker_that_does_not_know_the_password_is_found_out() -> None:
    steps = exchange(Credentials("SCRAM-SHA-256", "alice", "alice-secret"))
    answer = server().step(next(steps), 0).answer
    steps.send(answer)
    with pytest.raises(LoginRefused, match="could not prove"):
        steps.send(b"v=" + base64.b64encode(bytes(32)))
    for bad in (b"r=x,s=AAAA,i=4096", b"e=no", b"\xff\xff", b"r=,s=,i=99999999999"):
        steps = exchange(Credentials("SCRAM-SHA-256", "alice", "x"))
        next(steps)
        with pytest.raises(LoginRefused):
            steps.send(bad)


@pytest.mark.parametrize(
    "text",
    [
        "SCRAM-SHA-1=[name=a,password=b]",
        "SCRAM-SHA-256=name=a",
        "SCRAM-SHA-256=[password=secret-word]",
        "SCRAM-SHA-256=[name=a]",
        "SCRAM-SHA-256=[name=a,password=secret-word,saltedpassword=AAAA]",
        "SCRAM-SHA-256=[name=a,password=secret-word,iterations=1]",
        "SCRAM-SHA-256=[name=a,saltedpassword=AAAA]",
        "SCRAM-SHA-256=[name=a,password=secret-word,colour=blue]",
    ],
)
def test_a_first_user_that_is_none_is_refused_without_telling_its_password(text: str) -> None:
    with pytest.raises(ValueError) as failure:
        parse_first_user(text)
    assert "secret-word" not in str(failure.value)


def test_messages_do_not_show_secrets() -> None:
    messages = [
        m.SaslAuthenticateRequest(b"sesame"),
        m.CreateDelegationTokenResponse(hmac=b"sesame"),
        m.UserScramCredentialRecord("a", 1, b"sesame", b"sesame", b"sesame", 4096),
        m.AlterUserScramCredentialsRequest.ScramCredentialUpsertion("a", 1, 4096, b"sesame", b"sesame"),
    ]
    assert "sesame" not in repr(messages)
    assert "name='a'" in repr(messages)


def test_secrets_are_not_shown() -> None:
    user = first_user("SCRAM-SHA-256", "alice", "alice-secret")
    shown = repr([user, user.keys, Credentials("PLAIN", "alice", "alice-secret"), PlainServer(USERS)])
    assert "alice-secret" not in shown
    assert repr(user.keys.salt) not in shown


def test_a_scram_message_of_any_length_is_neither_read_nor_kept() -> None:
    """Before the second message nobody has proved anything, and the first one is kept until then."""
    assert server().step(b"n,,n=alice,r=" + b"x" * 10_000, 0).identity is None
    with pytest.raises(AuthenticationFailed) as refused:
        server().step(b"n,,n=alice,r=" + b"x" * 100_000, 0)
    assert "too long" in refused.value.detail
