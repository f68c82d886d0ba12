"""The console as an ASGI application: `create_app(settings)`; `run` serves it until told to stop."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moldau.console.gate.refusal import Refusal
from moldau.console.gate.roles import Role
from moldau.console.guard import Guarded
from moldau.console.house import House
from moldau.console.routes import DOORS
from moldau.console.settings import ConsoleSettings
from moldau.console.views import Views
from moldau.console.visit import Door, Visit


def create_app(settings: ConsoleSettings) -> Starlette:
    """Raises UsersFileError, SettingError or ValueError for settings that cannot be used."""
    house = House(settings, Views())

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await house.start()
        try:
            yield
        finally:
            await house.stop()

    routes = [Route(door.path, Guarded(door, house), methods=[door.method]) for door in DOORS]
    # What has no route passes the same gate: it answers that there is nothing, to those who may know.
    nothing = Door("GET", "/{rest:path}", _nothing, Role.ANYBODY, "What is not there.")
    app = Starlette(routes=[*routes, Route("/{rest:path}", Guarded(nothing, house))], lifespan=lifespan)
    app.state.house = house
    app.state.doors = DOORS  # for those who tell of them: the API's page and its OpenAPI document
    app.add_exception_handler(405, _not_so)
    return app


async def _nothing(_: Visit) -> Response:
    raise Refusal(404, "There is nothing here. The menu, or Ctrl-K, leads to what there is.")


async def _not_so(_: Request, __: Exception) -> Response:
    return Response("not like that", 405, media_type="text/plain")
