"""The one gate before all routes: who asks, whether they may, whether the request is their own, and what is noted.

A route is a `Door`; it says the role it takes and whether it changes anything. `Guarded` is what the router calls, for
every route there is (a test walks them): it finds the session, checks host, role, read-only mode and the request's
origin, calls the handler, turns failures into pages people can act on, notes changes, and adds the headers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from hmac import compare_digest
from urllib.parse import quote, urlsplit

from confluent_kafka import KafkaException
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import Message, Receive, Scope, Send

from moldau.client.connection import BrokerError, ClientError, Disconnected
from moldau.console.gate.headers import NOT_KEPT, SECURITY
from moldau.console.gate.refusal import Refusal
from moldau.console.gate.roles import Role
from moldau.console.gate.sessions import COOKIE, Session
from moldau.console.house import House
from moldau.console.jobs import Busy
from moldau.console.messages.filters import FilterError
from moldau.console.messages.reading import NobodyLeads, NoSuchTopic
from moldau.console.messages.registry import RegistryTrouble
from moldau.console.messages.tail import TooManyTails
from moldau.console.visit import Door, Handler, Visit
from moldau.toolkit.errors import ToolkitError

log = logging.getLogger("moldau.console")

_BODY_BYTES_MAX = 16 << 20
_STRANGERS_BODY_BYTES_MAX = 64 << 10
_FIELDS_MAX = 200


class Guarded:
    """The ASGI application of one door."""

    def __init__(self, door: Door, house: House) -> None:
        self.door = door
        self._house = house

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        most = _BODY_BYTES_MAX if self.door.role > Role.ANYBODY else _STRANGERS_BODY_BYTES_MAX
        request = Request(scope, _limited(receive, most))
        response = await self._answer(request)
        for name, value in SECURITY.items():
            response.headers[name] = value
        if "cache-control" not in response.headers:
            response.headers.update(NOT_KEPT)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        house, door = self._house, self.door
        if not host_is_known(request, house.settings.hosts):
            return Response("this console does not answer to that name (--allow-host)", 421, media_type="text/plain")
        session = house.sessions.find(request.cookies.get(COOKIE))
        if session is not None:
            house.refresh_person(session)
        is_new = session is None
        if session is None:
            session = house.sessions.begin(house.stranger())
        visit = Visit(request, house, session)
        try:
            if session.person.role < door.role:
                response = self._turned_away(visit)
            else:
                response = await self._pass(visit)
        except Refusal as refusal:
            response = _failure(visit, refusal.status, refusal.text)
        except HTTPException as error:
            response = _failure(visit, error.status_code, str(error.detail))
        if is_new and COOKIE not in response.headers.get("set-cookie", ""):
            if door.path.startswith("/static"):
                house.sessions.end(session)
            else:
                set_cookie(response, session, is_secure=house.settings.is_secure)
        return response

    def _turned_away(self, visit: Visit) -> Response:
        if visit.person.role is Role.ANYBODY:
            if self.door.is_api or self.door.method != "GET":
                return _failure(visit, 401, "Log in first.")
            where = quote(visit.request.url.path + (f"?{visit.request.url.query}" if visit.request.url.query else ""))
            if visit.is_fragment:
                return Response(status_code=401, headers={"hx-redirect": f"/login?next={where}"})
            return RedirectResponse(f"/login?next={where}", 303)
        if self.door.changes:
            self._note(visit, {}, "refused: role")
        needed = self.door.role.word
        return _failure(
            visit, 403, f"This takes the role {needed}, and {visit.person.name or 'you'} has {visit.person.role.word}."
        )

    async def _pass(self, visit: Visit) -> Response:
        door = self.door
        if door.method == "GET":
            return await _supervised(door.handler, visit)
        if door.changes and visit.house.settings.is_read_only:
            self._note(visit, {}, "refused: read-only")
            raise Refusal(403, "This console is read-only: it was started with --read-only.")
        if not _is_own(visit.request):
            self._note(visit, {}, "refused: origin")
            raise Refusal(403, "The request came from another site.")
        visit.form = await _form(visit.request)
        token = visit.request.headers.get("x-csrf-token") or visit.form.get("csrf", "")
        if not compare_digest(token.encode(errors="replace"), visit.session.csrf.encode()):
            self._note(visit, {}, "refused: token")
            raise Refusal(403, "The page is older than your session: load it again, then repeat what you did.")
        try:
            response = await _supervised(door.handler, visit)
        except Refusal as refusal:
            if door.changes:
                self._note(visit, visit.form, f"refused: {refusal.text}")
            raise
        if door.changes and not response.headers.get("x-preview"):
            self._note(visit, visit.form, "done" if response.status_code < 400 else f"failed ({response.status_code})")
        return response

    def _note(self, visit: Visit, form: Mapping[str, str], outcome: str) -> None:
        request = visit.request
        address = request.client.host if request.client else "?"
        details = {**{name: str(value) for name, value in request.path_params.items()}, **form}
        person = visit.person
        visit.house.audit.note(person.name or "anonymous", person.role.word, address, self.door.name, details, outcome)


async def _supervised(handler: Handler, visit: Visit) -> Response:
    """A handler, with what may go wrong turned into sentences."""
    try:
        return await handler(visit)
    except FilterError as error:
        raise Refusal(400, str(error)) from error
    except NoSuchTopic as error:
        raise Refusal(404, str(error)) from error
    except NobodyLeads as error:
        raise Refusal(503, str(error)) from error
    except (Busy, TooManyTails) as error:
        raise Refusal(429, str(error)) from error
    except Disconnected as error:
        raise Refusal(502, f"The cluster does not answer: {error}") from error
    except BrokerError as error:
        raise Refusal(409, f"The cluster refuses: {error}") from error
    except ClientError as error:
        raise Refusal(502, str(error)) from error
    except KafkaException as error:
        cause = error.args[0]
        raise Refusal(502, f"The cluster says: {cause.str() if hasattr(cause, 'str') else error}") from error
    except (ToolkitError, RegistryTrouble) as error:
        raise Refusal(502, str(error)) from error
    except (Refusal, asyncio.CancelledError):
        raise
    except Exception as error:
        log.exception("%s %s failed", visit.request.method, visit.request.url.path)
        raise Refusal(500, f"The console failed: {type(error).__name__}. Its log says more.") from error


def _failure(visit: Visit, status: int, text: str) -> Response:
    request = visit.request
    if request.url.path.startswith("/api/") or "json" in request.headers.get("content-type", ""):
        return JSONResponse({"error": text}, status)
    if visit.is_fragment:
        return HTMLResponse(visit.house.views.fragment("failure_fragment.html", text=text, status=status), status)
    # Strangers are not shown the frame: it says where the cluster is.
    template = "failure_outside.html" if visit.person.role is Role.ANYBODY else "failure.html"
    return visit.house.views.page(visit, template, status_code=status, text=text, status=status)


def set_cookie(response: Response, session: Session, *, is_secure: bool) -> None:
    response.set_cookie(COOKIE, session.id, httponly=True, samesite="lax", secure=is_secure, path="/")


def host_is_known(request: Request, hosts: frozenset[str]) -> bool:
    """A foreign name that was made to point here (DNS rebinding) is not answered."""
    host = request.headers.get("host", "")
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    return "*" in hosts or name.lower() in hosts or host.lower() in hosts


def _is_own(request: Request) -> bool:
    """Whether a page of ours sent it. Programs that are no browser send neither header."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = request.headers.get("origin")
    return origin is None or urlsplit(origin).netloc.lower() == request.headers.get("host", "").lower()


def _limited(receive: Receive, most: int) -> Receive:
    """A body is counted as it comes: who sends it in chunks does not say how long it will be."""
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > most:
            raise Refusal(413, f"At most {most >> 10:,} KiB can be sent here.")
        return message

    return counted


async def _form(request: Request) -> Mapping[str, str]:
    """The fields of a form or of a JSON object, as texts."""
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > _BODY_BYTES_MAX:
        raise Refusal(413, f"At most {_BODY_BYTES_MAX >> 20} MiB can be sent through the console.")
    if request.headers.get("content-type", "").startswith("application/json"):
        try:
            found = await request.json()
        except (ValueError, RecursionError) as error:
            raise Refusal(400, f"The body is no JSON: {error}") from error
        if not isinstance(found, dict) or len(found) > _FIELDS_MAX:
            raise Refusal(400, "Send one JSON object with the fields.")
        return {_whole(str(name)): _whole(_word(value)) for name, value in found.items()}
    form: FormData = await request.form(max_files=0, max_fields=_FIELDS_MAX, max_part_size=_BODY_BYTES_MAX)
    fields: dict[str, str] = {}
    for name, value in form.multi_items():
        if isinstance(value, UploadFile):
            continue
        fields[name] = f"{fields[name]},{value}" if name in fields else value  # checkboxes of one name
    return fields


def _whole(text: str) -> str:
    """JSON can write halves of surrogate pairs, which nothing behind us can."""
    return text.encode(errors="replace").decode()


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else ""
    return "" if value is None else str(value)
