"""The gate: every route asks for its role, changes need a token of the own session, and what was tried is noted."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.routing import Route

from moldau.console.gate.headers import CONTENT_SECURITY_POLICY
from moldau.console.gate.roles import Role
from moldau.console.gate.users import Users, UsersFileError, hashed, matches, parse_users
from moldau.console.guard import Guarded
from moldau.console.routes import DOORS
from moldau.console.visit import Door
from tests.console.support import Client, console, post

PASSWORDS = {"vera": "viewer's word", "otto": "operator's word", "anna": "admin's word"}
ROLES = {"vera": Role.VIEWER, "otto": Role.OPERATOR, "anna": Role.ADMIN}


@pytest.fixture(scope="module")
def users_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("users") / "users"
    lines = [f"{name}:{ROLES[name].word}:{hashed(password)}" for name, password in PASSWORDS.items()]
    file.write_text("# people\n" + "\n".join(lines))
    return file


@pytest.fixture(scope="module")
def guarded(broker: str, users_file: Path) -> Iterator[Client]:
    with console(broker, users_file=users_file) as client:
        yield client


def log_in(client: Client, name: str) -> None:
    client.cookies.clear()
    page = client.get("/login")
    token = page.text.partition('name="csrf" value="')[2].partition('"')[0]
    answer = client.post("/login", data={"name": name, "password": PASSWORDS[name], "csrf": token, "next": "/topics"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/topics")


def _path(door: Door) -> str:
    values = {"{topic}": "orders", "{partition}": "0", "{offset}": "1", "{broker}": "1", "{path:path}": "console.css"}
    path = door.path
    for name, value in values.items():
        path = path.replace(name, value)
    return path


def test_every_route_of_the_app_is_a_door_in_the_table(guarded: Client) -> None:
    routes = guarded.routes
    assert all(isinstance(route, Route) and isinstance(route.endpoint, Guarded) for route in routes)
    assert [route.endpoint.door for route in routes[:-1]] == list(DOORS)
    assert routes[-1].endpoint.door.path == "/{rest:path}"
    assert {door.path for door in DOORS if door.role is Role.ANYBODY} == {
        "/static/{path:path}",
        "/login",
        "/logout",
        "/oidc/start",
        "/oidc/callback",
    }
    assert all(door.changes or door.role is Role.ANYBODY for door in DOORS if door.method == "POST")
    assert all(door.role >= Role.OPERATOR for door in DOORS if door.changes)
    assert len({(door.method, door.path) for door in DOORS}) == len({door.name for door in DOORS}) == len(DOORS)


@pytest.mark.parametrize("door", [door for door in DOORS if door.role > Role.ANYBODY], ids=lambda door: door.name)
def test_nobody_passes_below_the_role_of_a_route(guarded: Client, door: Door) -> None:
    guarded.cookies.clear()
    answer = guarded.request(door.method, _path(door))
    if door.method == "GET" and not door.is_api:
        assert answer.status_code == 303
        assert answer.headers["location"].startswith("/login?next=")
    else:
        assert answer.status_code == 401
    assert "orders" not in answer.text
    for name, role in ROLES.items():
        if role < door.role:
            guarded.cookies.clear()
            guarded.cookies.set("moldau-console", _session(guarded, name))
            answer = guarded.request(door.method, _path(door))
            assert (name, answer.status_code) == (name, 403)
            assert f"role {door.role.word}" in answer.text


def _session(client: Client, name: str) -> str:
    from moldau.console.gate.sessions import Person

    return client.house.sessions.begin(Person(name, ROLES[name])).id


@pytest.mark.parametrize("door", [door for door in DOORS if door.changes], ids=lambda door: door.name)
def test_a_change_needs_the_sessions_own_token_and_page(guarded: Client, door: Door) -> None:
    guarded.cookies.clear()
    guarded.cookies.set("moldau-console", _session(guarded, "anna"))
    assert guarded.post(_path(door), data={"csrf": "guessed"}).status_code == 403
    token = guarded.get("/api/session").json()["csrf"]
    for headers in ({"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}):
        answer = guarded.post(_path(door), data={"csrf": token}, headers=headers)
        assert (answer.status_code, "another site" in answer.text) == (403, True)
    assert guarded.house.audit.entries[0].action == door.name
    assert guarded.house.audit.entries[0].outcome == "refused: origin"


def test_logging_in_out_and_wrongly(guarded: Client) -> None:
    guarded.cookies.clear()
    before = guarded.get("/login").cookies["moldau-console"]
    log_in(guarded, "vera")
    after = guarded.cookies["moldau-console"]
    assert before != after  # a session somebody planted before the login is worth nothing after it
    told = guarded.get("/api/session").json()
    assert (told["name"], told["role"]) == ("vera", "viewer")
    post(guarded, "/logout")
    guarded.cookies.clear()
    guarded.cookies.set("moldau-console", after)
    assert guarded.get("/topics").status_code == 303


def test_wrong_passwords_wait_and_never_tell_who_exists(guarded: Client) -> None:
    for name in ("vera-not", "nobody"):
        guarded.cookies.clear()
        token = guarded.get("/login").text.partition('name="csrf" value="')[2].partition('"')[0]
        texts = []
        for _ in range(6):
            answer = guarded.post("/login", data={"name": name, "password": "wrong", "csrf": token})
            assert answer.status_code == 401
            texts.append("Too many attempts" in answer.text)
        assert texts == [False] * 4 + [True, True]


def test_nobody_locks_somebody_else_out(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text(f"boss:admin:{hashed('right')}\n")
    now = 100.0
    users = Users(file, lambda: now)
    for _ in range(5):
        assert users.log_in("boss", "wrong", "10.0.0.66") is None
    assert users.must_wait("boss", "10.0.0.66")
    assert users.log_in("boss", "right", "10.0.0.66") is None  # a guess that is right does not count while it waits
    assert users.log_in("boss", "right", "10.0.0.1") is not None
    # Many addresses make the name wait, but not where its owner has been before.
    for number in range(60):
        users.log_in("boss", "wrong", f"10.1.0.{number}")
    assert users.must_wait("boss", "10.9.9.9")
    assert users.log_in("boss", "right", "10.0.0.1") is not None
    # An address that tries many names waits, whichever it tries next.
    for number in range(20):
        users.log_in(f"name-{number}", "wrong", "10.0.0.77")
    assert users.must_wait("another", "10.0.0.77")
    assert not users.must_wait("another", "10.0.0.78")
    now += 31
    assert not users.must_wait("boss", "10.0.0.66")
    assert users.log_in("boss", "wrong", "10.0.0.66") is None
    assert not users.must_wait("boss", "10.0.0.66")  # counted anew


@pytest.mark.parametrize(
    "next_", ["//evil.example", "https://evil.example/x", "/\\evil.example", "javascript:alert(1)"]
)
def test_a_login_leads_nowhere_else(guarded: Client, next_: str) -> None:
    guarded.cookies.clear()
    page = guarded.get("/login", params={"next": next_})
    assert 'name="next" value="/"' in page.text


def test_roles_change_with_the_users_file(broker: str, tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text(f"vera:admin:{hashed(PASSWORDS['vera'])}\n")
    with console(broker, users_file=file) as client:
        log_in(client, "vera")
        assert client.get("/audit").status_code == 200
        file.write_text(f"vera:viewer:{hashed(PASSWORDS['vera'])}\n# less now")
        assert client.get("/audit").status_code == 403
        file.write_text("# nobody any more, and a longer file than before so that it is seen to be another one" * 4)
        assert client.get("/topics").status_code == 303


def test_read_only_changes_nothing_and_shows_no_buttons(broker: str) -> None:
    with console(broker, is_read_only=True) as client:
        for door in (door for door in DOORS if door.changes):
            answer = post(client, _path(door))
            assert (door.name, answer.status_code, "read-only" in answer.text) == (door.name, 403, True)
        assert "Send a message" not in client.get("/topics/orders").text


def test_the_headers_of_every_answer(guarded: Client) -> None:
    log_in(guarded, "vera")
    for path in ("/", "/api/overview", "/nothing", "/static/console.js", "/topics/nope"):
        answer = guarded.get(path)
        assert answer.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
    assert "unsafe" not in CONTENT_SECURITY_POLICY
    assert guarded.get("/").headers["cache-control"] == "no-store"
    cookie = guarded.get("/login", headers={"cookie": ""}).headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie


@pytest.mark.parametrize("path", ["/nothing", "/static/nothing", "/oidc/start", "/oidc/callback"])
def test_strangers_are_not_told_where_the_cluster_is(guarded: Client, broker: str, path: str) -> None:
    """What goes wrong before a login is said without the frame of those who are in."""
    guarded.cookies.clear()
    answer = guarded.get(path)
    assert answer.status_code == 404
    for word in (broker, guarded.house.snapshot.cluster_id or broker, "/topics", "pulse"):
        assert word not in answer.text
    assert 'href="/login"' in answer.text


def test_foreign_names_are_not_answered(guarded: Client) -> None:
    assert guarded.get("/login", headers={"host": "evil.example"}).status_code == 421
    assert guarded.get("/login", headers={"host": "localhost:1"}).status_code == 200


def test_pages_carry_no_inline_script_style_or_handler(client: Client) -> None:
    for path in ("/", "/topics", "/topics/orders", "/topics/orders/messages", "/groups", "/brokers", "/acls", "/api"):
        text = client.get(path).text.lower()
        assert "<style" not in text
        assert " style=" not in text
        assert "<script>" not in text
        assert " onclick=" not in text
        assert "hx-on" not in text


def test_what_is_done_is_noted_without_secrets(broker: str, tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    with console(broker, audit_file=file) as client:
        client.house.watcher.look_now()
        post(client, "/users", name="eve", password="hunter2hunter2", mechanism="2")
        entries = [json.loads(line) for line in file.read_text().splitlines()]
    assert [entry["action"] for entry in entries] == ["save_user"]
    assert entries[0]["details"] == {"name": "eve", "password": "(not written down)", "mechanism": "2"}
    assert "hunter2" not in file.read_text()


def test_users_files_that_are_wrong_say_where(tmp_path: Path) -> None:
    with pytest.raises(UsersFileError, match="line 2"):
        parse_users("# people\nvera:viewer\n")
    with pytest.raises(UsersFileError, match="viewer, operator or admin"):
        parse_users(f"vera:king:{hashed('a password')}")
    with pytest.raises(UsersFileError, match="cannot be read"):
        Users(tmp_path / "missing")


def test_passwords_are_kept_as_salted_hashes() -> None:
    kept = hashed("a password")
    assert kept != hashed("a password")
    assert matches("a password", kept)
    assert not matches("another", kept)
    assert not matches("a password", "scrypt$broken")
