"""Logging in and out, the audit trail, and the static files."""

from __future__ import annotations

import mimetypes
from pathlib import Path
from urllib.parse import urlsplit

from starlette.responses import RedirectResponse, Response

from moldau.console.gate.audit import Entry
from moldau.console.gate.oidc import LoginFailed
from moldau.console.gate.refusal import Refusal
from moldau.console.gate.sessions import Person
from moldau.console.guard import set_cookie
from moldau.console.listing import Listed, listed, searched
from moldau.console.visit import Visit

_STATIC = Path(__file__).parent.parent / "static"
_FILES = {str(file.relative_to(_STATIC)): file for file in _STATIC.rglob("*") if file.is_file()}
_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".txt": "text/plain"}


def _next(text: str) -> str:
    """Only a path of ours: a login must not send people elsewhere."""
    parts = urlsplit(text)
    is_ours = text.startswith("/") and not text.startswith(("//", "/\\")) and not parts.netloc and "\\" not in text
    return text if is_ours and text.isprintable() else "/"


async def login(visit: Visit) -> Response:
    return _login_page(visit, "", 200)


def _login_page(visit: Visit, problem: str, status: int) -> Response:
    house = visit.house
    return house.views.page(
        visit,
        "login.html",
        status_code=status,
        title="Log in",
        problem=problem,
        next=_next(visit.form.get("next", "") or visit.query("next", "/")),
        has_users=house.users is not None,
        has_oidc=house.oidc is not None,
    )


async def log_in(visit: Visit) -> Response:
    house, form = visit.house, visit.form
    if house.users is None:
        raise Refusal(404, "This console has no users file.")
    name = form.get("name", "").strip()[:200]
    address = visit.request.client.host if visit.request.client else "?"
    user = await house.ask_for_login(house.users.log_in, name, form.get("password", ""), address)
    if user is None:
        waits = house.users.must_wait(name, address)
        house.audit.note(name, "anybody", address, "log_in", {}, "refused: waiting" if waits else "refused")
        problem = "Too many attempts: wait half a minute." if waits else "Name or password is wrong."
        return _login_page(visit, problem, 401)
    house.audit.note(user.name, user.role.word, address, "log_in", {}, "done")
    return _logged_in(visit, Person(user.name, user.role), _next(form.get("next", "/")))


def _logged_in(visit: Visit, person: Person, where: str, **notes: str) -> Response:
    visit.house.sessions.end(visit.session)
    visit.session = visit.house.sessions.begin(person)
    visit.session.notes.update(notes)
    response = RedirectResponse(where, 303)
    set_cookie(response, visit.session, is_secure=visit.house.settings.is_secure)
    return response


async def log_out(visit: Visit) -> Response:
    visit.house.sessions.end(visit.session)
    response = RedirectResponse("/login", 303)
    set_cookie(response, visit.house.sessions.begin(visit.house.stranger()), is_secure=visit.house.settings.is_secure)
    return response


async def oidc_start(visit: Visit) -> Response:
    if visit.house.oidc is None:
        raise Refusal(404, "This console has no provider to log in with.")
    try:
        address, notes = await visit.house.ask_for_login(visit.house.oidc.begin)
    except LoginFailed as error:
        raise Refusal(502, f"Logging in failed: {error}") from error
    visit.session.notes.update(notes, next=_next(visit.query("next", "/")))
    return RedirectResponse(address, 303)


async def oidc_callback(visit: Visit) -> Response:
    house = visit.house
    if house.oidc is None:
        raise Refusal(404, "This console has no provider to log in with.")
    notes = dict(visit.session.notes)
    for name in ("oidc_state", "oidc_nonce", "oidc_verifier"):
        visit.session.notes.pop(name, None)  # an answer counts once
    address = visit.request.client.host if visit.request.client else "?"
    said = f"{visit.query('error')[:100]} {visit.query('error_description')[:200]}".strip()
    try:
        person = await house.ask_for_login(house.oidc.finish, notes, visit.query("state"), visit.query("code"), said)
    except LoginFailed as error:
        house.audit.note("?", "anybody", address, "oidc_callback", {}, f"refused: {error}")
        raise Refusal(403, f"Logging in failed: {error}") from error
    house.audit.note(person.name, person.role.word, address, "oidc_callback", {}, "done")
    return _logged_in(visit, person, _next(notes.get("next", "/")), **{"from": "oidc"})


async def audit(visit: Visit) -> Response:
    return visit.house.views.page(visit, "audit.html", title="Audit trail", list=audit_list(visit), q=visit.query("q"))


def audit_list(visit: Visit) -> Listed[Entry]:
    def words(entry: Entry) -> str:
        return f"{entry.who} {entry.action} {entry.outcome} {entry.details}"

    return listed(visit, searched(visit.house.audit.entries, visit.query("q"), words))


async def static(visit: Visit) -> Response:
    file = _FILES.get(str(visit.request.path_params["path"]))
    if file is None:
        raise Refusal(404, "There is no such file.")
    kind = _TYPES.get(file.suffix) or mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    kept = "public, max-age=31536000, immutable" if visit.query("v") else "no-cache"
    return Response(file.read_bytes(), media_type=kind, headers={"cache-control": kept})
