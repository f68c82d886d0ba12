"""Topics: the list, one of them, its settings; creating, growing, emptying and deleting them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from starlette.responses import Response

from moldau.console.cluster import admin
from moldau.console.cluster.model import Partition, Topic
from moldau.console.gate.refusal import Refusal
from moldau.console.listing import Listed, listed, searched
from moldau.console.screens import common
from moldau.console.visit import Visit
from moldau.console.wording import counted

_PARTITIONS_MAX = 10_000
_SETTINGS_MAX = 50
_SPARK = 60
_READERS_SHOWN = 10

_ORDERS = {
    "name": lambda topic: topic.name,
    "partitions": lambda topic: len(topic.partitions),
    "records": lambda topic: topic.records,
    "size": lambda topic: topic.size_bytes or 0,
    "rate": lambda topic: topic.rate,
    "lag": lambda topic: -1 if topic.lag is None else topic.lag,
}
_SHOW: dict[str, Callable[[Topic], bool]] = {
    "": lambda topic: not topic.is_internal,
    "all": lambda _: True,
    "internal": lambda topic: topic.is_internal,
    "short": lambda topic: bool(topic.short),
    "leaderless": lambda topic: bool(topic.leaderless),
}


def topic_list(visit: Visit) -> Listed[Topic]:
    """Also what the API lists."""
    show = _SHOW.get(visit.query("show"), _SHOW[""])
    items = searched(visit.house.snapshot.topics.values(), visit.query("q"), lambda topic: topic.name)
    return listed(visit, [topic for topic in items if show(topic)], _ORDERS, "name")


async def topics(visit: Visit) -> Response:
    found = topic_list(visit)
    history = visit.house.watcher.history
    return visit.house.views.page(
        visit,
        "topics.html",
        title="Topics",
        list=found,
        q=visit.query("q"),
        show=visit.query("show"),
        sparks={topic.name: history.values(("topic", topic.name), _SPARK) for topic in found.rows},
    )


async def topic(visit: Visit) -> Response:
    found = common.topic_of(visit)
    house = visit.house
    groups = [house.snapshot.groups[name] for name in found.groups if name in house.snapshot.groups]
    lags = {group.name: group.lag_of(found.name) for group in groups}
    only = visit.query("show")
    unwell = [each for each in found.partitions if only != "short" or each.is_short or each.leader < 0]
    partitions = listed(visit, unwell)
    return house.views.page(
        visit,
        "topic.html",
        title=found.name,
        topic=found,
        tab="overview",
        groups=sorted(groups, key=lambda group: -lags[group.name])[:_READERS_SHOWN],
        group_count=len(groups),
        lags=lags,
        sizes=_sizes(visit, found, partitions.rows),
        partitions=partitions,
        only=only,
    )


def _sizes(visit: Visit, topic: Topic, partitions: Sequence[Partition]) -> dict[int, int]:
    """The bytes of each partition on its leader."""
    known = visit.house.watcher.sizes()
    return {each.index: known.get(each.leader, {}).get((topic.name, each.index), -1) for each in partitions}


async def topic_history(visit: Visit) -> Response:
    found = common.topic_of(visit)
    return common.plot(visit, {"records/s": ("topic", found.name)})


async def topic_settings(visit: Visit) -> Response:
    found = common.topic_of(visit)
    if not visit.is_fragment:
        return visit.house.views.page(
            visit, "topic_settings.html", title=found.name, topic=found, tab="settings", q=visit.query("q")
        )
    rows = await visit.house.ask(admin.settings_of, visit.house.asker, admin.TOPIC, found.name)
    return common.settings_table(visit, rows, f"/topics/{found.name}/settings", f"topic {found.name}")


async def change_topic_setting(visit: Visit) -> Response:
    found = common.topic_of(visit)
    name = visit.form.get("setting", "").strip()
    if not name:
        raise Refusal(400, "Say which setting.")
    value = common.setting_value(visit, name)
    await visit.house.ask(admin.change_setting, visit.house.asker, admin.TOPIC, found.name, name, value)
    what = "is back to its default" if value is None else f"is now {value}"
    return common.done(visit, f"/topics/{found.name}/settings", f"{name} of {found.name} {what}.")


async def create_topic(visit: Visit) -> Response:
    form = visit.form
    name = form.get("name", "").strip()
    if not name:
        raise Refusal(400, "A topic needs a name.")
    partitions = common.whole(form.get("partitions", "") or "-1", "The number of partitions", -1, _PARTITIONS_MAX)
    replication = common.whole(form.get("replication", "") or "-1", "The number of replicas", -1, 1_000)
    settings = {}
    for line in form.get("settings", "").splitlines()[:_SETTINGS_MAX]:
        if line.strip():
            key, equals, value = line.partition("=")
            if not equals:
                raise Refusal(400, f"{line[:80]!r} is no setting: write name=value, one a line.")
            settings[key.strip()] = value.strip()
    await visit.house.ask(admin.create_topic, visit.house.asker, name, partitions, replication, settings)
    await visit.house.refresh()
    where = f"/topics/{name}" if name in visit.house.snapshot.topics else "/topics"
    return common.done(visit, where, f"Topic {name} was created.")


async def delete_topic(visit: Visit) -> Response:
    found = common.topic_of(visit)
    common.confirmed(visit, found.name)
    await visit.house.ask(admin.delete_topic, visit.house.asker, found.name)
    await visit.house.refresh()
    return common.done(visit, "/topics", f"Topic {found.name} was deleted.")


async def empty_topic(visit: Visit) -> Response:
    found = common.topic_of(visit)
    common.confirmed(visit, found.name)
    await visit.house.ask(admin.empty_topic, visit.house.asker, visit.house.snapshot, found.name)
    await visit.house.refresh()
    return common.done(visit, f"/topics/{found.name}", f"All records of {found.name} were deleted.")


async def add_partitions(visit: Visit) -> Response:
    found = common.topic_of(visit)
    count = common.whole(visit.form.get("count", ""), "The number of partitions", 1, _PARTITIONS_MAX)
    await visit.house.ask(admin.add_partitions, visit.house.asker, found.name, count)
    await visit.house.refresh()
    return common.done(visit, f"/topics/{found.name}", f"{found.name} has {counted(count, 'partition')} now.")
