"""The HTTP API: what the screens show, as JSON, through the same gate; and the document that describes it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from starlette.responses import JSONResponse, Response

from moldau import __version__
from moldau.console.cluster import admin
from moldau.console.cluster.health import alerts
from moldau.console.cluster.model import Broker, Group, Topic
from moldau.console.gate.roles import Role
from moldau.console.listing import Listed
from moldau.console.pipelines import find_pipelines
from moldau.console.screens import common
from moldau.console.screens.groups import group_list
from moldau.console.screens.topics import topic_list
from moldau.console.visit import Door, Visit


def _topic(topic: Topic) -> dict[str, Any]:
    return {
        "name": topic.name,
        "is_internal": topic.is_internal,
        "partitions": len(topic.partitions),
        "replication": topic.replication,
        "records": topic.records,
        "size_bytes": topic.size_bytes,
        "records_per_second": round(topic.rate, 3),
        "lag": topic.lag,
        "groups": list(topic.groups),
        "out_of_sync": topic.short,
        "leaderless": topic.leaderless,
    }


def _group(group: Group) -> dict[str, Any]:
    return {
        "name": group.name,
        "kind": group.kind,
        "state": group.state,
        "coordinator": group.coordinator,
        "members": len(group.members),
        "topics": list(group.topics),
        "lag": group.lag,
        "trend": round(group.trend, 3),
        "judgement": group.judgement,
    }


def _broker(broker: Broker) -> dict[str, Any]:
    return {**asdict(broker), "log_dirs": [each._asdict() for each in broker.log_dirs], "size_bytes": broker.size_bytes}


def _listed(found: Listed[Any], name: str, rows: list[dict[str, Any]]) -> Response:
    return JSONResponse({name: rows, "total": found.total, "page": found.page, "pages": found.pages})


async def api_overview(visit: Visit) -> Response:
    snapshot = visit.house.snapshot
    return JSONResponse(
        {
            "cluster_id": snapshot.cluster_id,
            "controller": snapshot.controller,
            "snapshot": snapshot.number,
            "at_ms": snapshot.at_ms,
            "took_s": round(snapshot.took_s, 3),
            "brokers": len(snapshot.brokers),
            "topics": len(snapshot.topics),
            "partitions": snapshot.partitions,
            "groups": len(snapshot.groups),
            "records_per_second": round(snapshot.rate, 3),
            "lag": snapshot.lag,
            "alerts": [asdict(alert) for alert in alerts(snapshot)],
        }
    )


async def api_changes(visit: Visit) -> Response:
    return JSONResponse({"changes": [asdict(change) for change in visit.house.watcher.changes.everything()]})


async def api_topics(visit: Visit) -> Response:
    found = topic_list(visit)
    return _listed(found, "topics", [_topic(topic) for topic in found.rows])


async def api_topic(visit: Visit) -> Response:
    topic = common.topic_of(visit)
    return JSONResponse(_topic(topic) | {"partitions": [asdict(each) for each in topic.partitions]})


async def api_topic_settings(visit: Visit) -> Response:
    topic = common.topic_of(visit)
    rows = await visit.house.ask(admin.settings_of, visit.house.asker, admin.TOPIC, topic.name)
    return JSONResponse({"settings": [each._asdict() | {"set_by": each.set_by} for each in rows]})


async def api_groups(visit: Visit) -> Response:
    found = group_list(visit)
    return _listed(found, "groups", [_group(group) for group in found.rows])


async def api_group(visit: Visit) -> Response:
    group = common.group_of(visit, visit.query("name"))
    positions = [
        {"topic": topic, "partition": index, "committed": each.committed, "end": each.end, "lag": each.lag}
        for (topic, index), each in group.positions.items()
    ]
    members = [each._asdict() | {"assigned": [list(pair) for pair in each.assigned]} for each in group.members]
    return JSONResponse(_group(group) | {"positions": positions, "members": members})


async def api_brokers(visit: Visit) -> Response:
    snapshot = visit.house.snapshot
    quorum = snapshot.quorum
    voters = [each._asdict() for each in quorum.replicas] if quorum else []
    return JSONResponse(
        {
            "brokers": [_broker(each) for each in snapshot.brokers.values()],
            "quorum": {"leader": quorum.leader, "epoch": quorum.epoch, "replicas": voters} if quorum else None,
        }
    )


async def api_transactions(visit: Visit) -> Response:
    found, total = await visit.house.ask(admin.transactions, visit.house.asker, visit.query("q"))
    return JSONResponse({"transactions": [each._asdict() for each in found], "total": total})


async def api_pipelines(visit: Visit) -> Response:
    found = await visit.house.ask(find_pipelines, visit.house.settings.pipeline_folders)
    return JSONResponse({"pipelines": [asdict(each) | {"state": each.state} for each in found]})


async def api_audit(visit: Visit) -> Response:
    return JSONResponse({"entries": [asdict(each) for each in visit.house.audit.entries]})


async def api_session(visit: Visit) -> Response:
    """Who one is, and the token that changes need in the header x-csrf-token."""
    return JSONResponse(
        {
            "name": visit.person.name,
            "role": visit.person.role.word,
            "csrf": visit.session.csrf,
            "is_read_only": visit.house.settings.is_read_only,
        }
    )


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
    return door.is_api or door.changes


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
                "200": {"description": "Done.", "content": {"application/json": {"schema": {"type": "object"}}}},
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


_ERROR = {"type": "object", "properties": {"error": {"type": "string"}}}
