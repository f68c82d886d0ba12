"""Schemas of the registry the console was started with."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import Response

from moldau.console.gate.refusal import Refusal
from moldau.console.listing import Listed, listed, searched
from moldau.console.messages.decoding import Decoded, coloured, pretty
from moldau.console.messages.registry import RegistryReader
from moldau.console.screens import common
from moldau.console.visit import Visit


def _registry(visit: Visit) -> RegistryReader:
    registry = visit.house.registry
    if registry is None:
        raise Refusal(404, "This console was started without a schema registry: --schema-registry URL.")
    return registry


async def schemas(visit: Visit) -> Response:
    if visit.house.registry is None or not visit.is_fragment:
        return visit.house.views.page(visit, "schemas.html", title="Schemas", q=visit.query("q"))
    found = await subject_list(visit)
    return common.fragment(visit, "schema_rows.html", list=found, q=visit.query("q"))


async def subject_list(visit: Visit) -> Listed[str]:
    subjects = await visit.house.ask(_registry(visit).subjects)
    return listed(visit, searched(subjects, visit.query("q"), lambda name: name))


async def read_schema(visit: Visit) -> tuple[list[int], dict[str, Any], str]:
    """The versions of a subject, the one that is asked for, and what changes are allowed."""
    registry, subject = _registry(visit), visit.query("subject")
    versions = await visit.house.ask(registry.versions, subject)
    if not versions:
        raise Refusal(404, f"The registry has no subject {subject!r}.")
    version = visit.number("version", versions[-1], 1, 1 << 31)
    found = await visit.house.ask(registry.version, subject, version)
    if found is None:
        raise Refusal(404, f"{subject!r} has no version {version}.")
    return versions, {**found, "version": version}, await visit.house.ask(registry.compatibility, subject)


async def schema(visit: Visit) -> Response:
    subject = visit.query("subject")
    versions, found, compatibility = await read_schema(visit)
    text = str(found.get("schema", ""))
    kind = str(found.get("schemaType", "AVRO"))
    shown = Decoded("text", None, text)
    if kind != "PROTOBUF":
        try:
            tree = json.loads(text)
            shown = Decoded("json", tree, pretty(tree))
        except ValueError:
            pass
    return visit.house.views.page(
        visit,
        "schema.html",
        title=subject,
        subject=subject,
        versions=versions,
        version=found["version"],
        kind=kind,
        id=found.get("id"),
        pieces=coloured(shown, 200_000),
        compatibility=compatibility,
    )
