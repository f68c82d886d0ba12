"""Pipelines on Spark: what runs, how it goes, and the last error of what does not."""

from __future__ import annotations

from starlette.responses import Response

from moldau.console.gate.refusal import Refusal
from moldau.console.pipelines import find_pipelines
from moldau.console.screens import common
from moldau.console.visit import Visit


async def pipelines(visit: Visit) -> Response:
    folders = visit.house.settings.pipeline_folders
    found = await visit.house.ask(find_pipelines, folders) if folders else []
    return visit.house.views.page(visit, "pipelines.html", title="Pipelines", pipelines=found, folders=folders)


async def pipeline(visit: Visit) -> Response:
    name = visit.query("name")
    found = await visit.house.ask(find_pipelines, visit.house.settings.pipeline_folders)
    one = next((each for each in found if each.name == name), None)
    if one is None:
        raise Refusal(404, f"No pipeline {name!r} has reported itself in the folders of this console.")
    return visit.house.views.page(visit, "pipeline.html", title=one.name, pipeline=one)


async def pipeline_history(visit: Visit) -> Response:
    name, what = visit.query("name"), "lag" if visit.query("show") == "lag" else "rate"
    keys = [
        key
        for key in visit.house.watcher.history.names()
        if isinstance(key, tuple) and key[:2] == ("pipeline", name) and key[3] == what
    ]
    return common.plot(visit, {str(key[2]): key for key in keys[:8]})
