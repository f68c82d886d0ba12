"""The document that describes the HTTP API (OpenAPI 3.1), made from the routes themselves; and a page of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from starlette.responses import JSONResponse, Response

from moldau import __version__
from moldau.console.gate.roles import Role
from moldau.console.visit import Door, Visit

_JSON = "application/json"


async def api_openapi(visit: Visit) -> Response:
    return JSONResponse(document(_doors(visit)))


async def api_page(visit: Visit) -> Response:
    doors = [door for door in _doors(visit) if is_documented(door)]
    return visit.house.views.page(visit, "api.html", title="HTTP API", doors=doors)


def _doors(visit: Visit) -> Sequence[Door]:
    """All there are, as `app.py` lists them: the list names this file's handlers, so this file cannot name the list."""
    doors: Sequence[Door] = visit.request.app.state.doors
    return doors


def is_documented(door: Door) -> bool:
    """All that programs can use: pages for people are left out."""
    return door.is_api or door.changes or bool(door.answers)


def document(doors: Sequence[Door]) -> dict[str, Any]:
    """OpenAPI 3.1, from the routes themselves."""
    paths: dict[str, dict[str, Any]] = {}
    for door in doors:
        if not is_documented(door):
            continue
        names = re.findall(r"{(\w+)(?::\w+)?}", door.path)
        path = re.sub(r"{(\w+):\w+}", r"{\1}", door.path)
        operation: dict[str, Any] = {
            "operationId": door.name,
            "summary": door.about,
            "description": f"Takes the role {door.role.word}." if door.role else "Open to everybody.",
            "parameters": [
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
            ],
            "responses": {
                "200": {"description": "Done.", "content": {door.answers or _JSON: {"schema": _shape(door)}}},
                "401": {"description": "Log in first.", "content": {"application/json": {"schema": _ERROR}}},
                "403": {"description": "The role does not suffice, or the console is read-only."},
            },
        }
        if door.method == "GET":
            operation["parameters"] += [
                {"name": name, "in": "query", "description": about, "schema": {"type": "string"}}
                for name, about in door.parameters.items()
            ]
        else:
            fields = {name: {"type": "string", "description": about} for name, about in door.parameters.items()}
            operation["requestBody"] = {
                "content": {
                    kind: {"schema": {"type": "object", "properties": fields}}
                    for kind in ("application/json", "application/x-www-form-urlencoded")
                }
            }
            operation["security"] = [{"session": [], "csrf": []}]
        if door.role is Role.ANYBODY:
            operation["security"] = []
        paths.setdefault(path, {})[door.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Moldau console",
            "version": __version__,
            "description": "What the console's screens show, as JSON, and what can be done there.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "session": {"type": "apiKey", "in": "cookie", "name": "moldau-console"},
                "csrf": {"type": "apiKey", "in": "header", "name": "x-csrf-token"},
            }
        },
        "security": [{"session": []}],
    }


def _shape(door: Door) -> dict[str, Any]:
    return {"type": "string"} if door.answers not in ("", _JSON) else {"type": "object"}


_ERROR = {"type": "object", "properties": {"error": {"type": "string"}}}
