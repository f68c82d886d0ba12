"""The HTTP API: what the screens show, as JSON, through the same gate, and as masked. `openapi.py` describes it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from starlette.responses import JSONResponse, Response

from moldau.console.cluster import admin
from moldau.console.cluster.access import MECHANISMS
from moldau.console.cluster.health import alerts
from moldau.console.cluster.model import Broker, Group, Topic
from moldau.console.listing import Listed
from moldau.console.pipelines import find_pipelines
from moldau.console.screens import common
from moldau.console.screens.brokers import broker_setting_list, progress, reassignment_list
from moldau.console.screens.dead_letters import letter_list, letter_topic, letter_topic_list
from moldau.console.screens.groups import group_list
from moldau.console.screens.overview import change_list
from moldau.console.screens.schemas import read_schema, subject_list
from moldau.console.screens.security import acl_list, quota_list, user_list
from moldau.console.screens.session import audit_list
from moldau.console.screens.toolkit import pending_list, trace_list
from moldau.console.screens.topics import topic_list
from moldau.console.screens.transactions import transaction_list
from moldau.console.visit import Visit


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


def _listed(found: Listed[Any], name: str, rows: list[Any], **more: Any) -> Response:
    return JSONResponse({name: rows, "total": found.total, "page": found.page, "pages": found.pages, **more})


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
    found = change_list(visit)
    return _listed(found, "changes", [asdict(change) for change in found.rows])


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
    found, rows = await visit.house.ask(transaction_list, visit)
    return _listed(found, "transactions", [each._asdict() for each in rows])


async def api_pipelines(visit: Visit) -> Response:
    found = await visit.house.ask(find_pipelines, visit.house.settings.pipeline_folders)
    return JSONResponse({"pipelines": [asdict(each) | {"state": each.state} for each in found]})


async def api_audit(visit: Visit) -> Response:
    found = audit_list(visit)
    return _listed(found, "entries", [asdict(each) for each in found.rows])


async def api_reassignments(visit: Visit) -> Response:
    found = await reassignment_list(visit)
    rows = []
    for each in found.rows:
        has, whole, in_sync = progress(visit, each)
        rows.append(asdict(each) | {"copied_bytes": has, "bytes": whole, "in_sync": in_sync})
    return _listed(found, "reassignments", rows)


async def api_broker_settings(visit: Visit) -> Response:
    rows = await broker_setting_list(visit)
    return JSONResponse({"settings": [each._asdict() | {"set_by": each.set_by} for each in rows]})


# ---- who may do what: a cluster without such a thing says why, and lists none


async def api_acls(visit: Visit) -> Response:
    found, disabled = await acl_list(visit)
    rows = [{"principal": each.principal, "name": each.name, "host": each.host, **each.words} for each in found.rows]
    return _listed(found, "acls", rows, disabled=disabled)


async def api_users(visit: Visit) -> Response:
    found, disabled = await user_list(visit)
    rows = [
        {
            "name": user.name,
            "mechanisms": [{"name": MECHANISMS.get(kind, str(kind)), "iterations": count} for kind, count in user[1]],
        }
        for user in found.rows
    ]
    return _listed(found, "users", rows, disabled=disabled)


async def api_quotas(visit: Visit) -> Response:
    found, disabled = await quota_list(visit)
    rows = [{"entity": dict(each.entity), "quotas": dict(each.values)} for each in found.rows]
    return _listed(found, "quotas", rows, disabled=disabled)


# ---- what the toolkit keeps in topics, and the registry


async def api_letter_topics(visit: Visit) -> Response:
    found = letter_topic_list(visit)
    return _listed(found, "topics", [_topic(topic) for topic in found.rows])


async def api_letters(visit: Visit) -> Response:
    reasons, found, is_more = await letter_list(visit, letter_topic(visit))
    told = [{"reason": each.name, "letters": each.count, "sent_back": each.sent_back} for each in reasons]
    return _listed(found, "letters", [asdict(each) for each in found.rows], reasons=told, is_more=is_more)


async def api_delays(visit: Visit) -> Response:
    found, is_cut = await pending_list(visit)
    return _listed(found, "pending", [asdict(each) for each in found.rows], is_cut=is_cut)


async def api_traces(visit: Visit) -> Response:
    rows, is_cut = await trace_list(visit)
    return JSONResponse({"steps": [asdict(each) for each in rows], "is_cut": is_cut})


async def api_schemas(visit: Visit) -> Response:
    found = await subject_list(visit)
    return _listed(found, "subjects", list(found.rows))


async def api_schema(visit: Visit) -> Response:
    versions, told, compatibility = await read_schema(visit)
    return JSONResponse({**told, "versions": versions, "compatibility": compatibility})


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
