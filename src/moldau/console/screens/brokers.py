"""Brokers and the quorum; reassignments with their progress; elections of preferred leaders."""

from __future__ import annotations

from starlette.responses import Response

from moldau.console.cluster import admin
from moldau.console.cluster.admin import Reassignment, Setting
from moldau.console.cluster.model import Broker
from moldau.console.gate.refusal import Refusal
from moldau.console.listing import Listed, listed, searched
from moldau.console.screens import common
from moldau.console.visit import Visit
from moldau.console.wording import counted

_CHANGES = 15


async def brokers(visit: Visit) -> Response:
    house = visit.house
    changes = house.watcher.changes.in_brief(_CHANGES, frozenset({"isr", "leader"}))
    return house.views.page(visit, "brokers.html", title="Brokers", changes=changes)


def _broker(visit: Visit) -> Broker:
    number = common.whole(str(visit.request.path_params["broker"]), "The broker", 0, 1 << 31)
    found = visit.house.snapshot.brokers.get(number)
    if found is None:
        raise Refusal(404, f"There is no broker {number}.")
    return found


async def broker(visit: Visit) -> Response:
    found = _broker(visit)
    topics = visit.house.snapshot.topics.values()
    led = [(topic.name, each) for topic in topics for each in topic.partitions if each.leader == found.id]
    led = searched(led, visit.query("q"), lambda each: each[0])
    short = [
        (topic.name, each)
        for topic in topics
        for each in topic.partitions
        if found.id in each.replicas and found.id not in each.isr
    ]
    return visit.house.views.page(
        visit,
        "broker.html",
        title=f"Broker {found.id}",
        broker=found,
        tab="overview",
        led=listed(visit, led),
        short=listed(visit, short, page_name="short"),
        q=visit.query("q"),
    )


async def broker_history(visit: Visit) -> Response:
    numbers = sorted(visit.house.snapshot.brokers)
    if visit.query("show") == "isr":
        return common.plot(visit, {f"broker {each}": ("broker-short", each) for each in numbers[:12]})
    if visit.query("show") == "answer":
        return common.plot(visit, {f"broker {each}": ("broker-answer", each) for each in numbers[:12]})
    return common.plot(visit, {f"broker {each}": ("broker", each) for each in numbers[:12]})


async def broker_settings(visit: Visit) -> Response:
    found = _broker(visit)
    title = f"Broker {found.id}"
    if not visit.is_fragment:
        return visit.house.views.page(
            visit, "broker_settings.html", title=title, broker=found, tab="settings", q=visit.query("q")
        )
    return common.settings_table(
        visit, await broker_setting_list(visit), f"/brokers/{found.id}/settings", f"broker {found.id}"
    )


async def broker_setting_list(visit: Visit) -> list[Setting]:
    found = _broker(visit)
    if not found.is_up:
        raise Refusal(503, f"Broker {found.id} is away, so nobody can say how it is set up.")
    return await visit.house.ask(admin.settings_of, visit.house.asker, admin.BROKER, str(found.id))


async def change_broker_setting(visit: Visit) -> Response:
    found = _broker(visit)
    name = visit.form.get("setting", "").strip()
    if not name:
        raise Refusal(400, "Say which setting.")
    value = common.setting_value(visit, name)
    await visit.house.ask(admin.change_setting, visit.house.asker, admin.BROKER, str(found.id), name, value)
    what = "is back to its default" if value is None else f"is now {value}"
    return common.done(visit, f"/brokers/{found.id}/settings", f"{name} of broker {found.id} {what}.")


# ---- reassignments --------------------------------------------------------------------------------------------------


async def reassignments(visit: Visit) -> Response:
    house = visit.house
    if not visit.is_fragment or visit.request.headers.get("hx-target") != "moving":
        return house.views.page(visit, "reassignments.html", title="Reassignments", topic=visit.query("topic"))
    found = await reassignment_list(visit)
    rows = [(each, progress(visit, each)) for each in found.rows]
    return common.fragment(visit, "reassignment_rows.html", rows=rows, list=found)


async def reassignment_list(visit: Visit) -> Listed[Reassignment]:
    found = await visit.house.ask(admin.reassignments, visit.house.asker)
    return listed(visit, searched(found, visit.query("q"), lambda each: each.topic))


def progress(visit: Visit, each: Reassignment) -> tuple[int, int, int]:
    """Bytes the new replicas have, bytes they shall have, and how many of them are in sync."""
    house = visit.house
    sizes = house.watcher.sizes()
    topic = house.snapshot.topics.get(each.topic)
    partition = next((p for p in topic.partitions if p.index == each.partition), None) if topic else None
    if partition is None:
        return 0, 0, 0
    whole = sizes.get(partition.leader, {}).get((each.topic, each.partition), 0)
    has = sum(sizes.get(new, {}).get((each.topic, each.partition), 0) for new in each.adding)
    return has, whole * len(each.adding), sum(new in partition.isr for new in each.adding)


async def start_reassignment(visit: Visit) -> Response:
    """Twice: the first time shows where replicas would be, the second moves them."""
    house, form = visit.house, visit.form
    topic = house.snapshot.topics.get(form.get("topic", "").strip())
    if topic is None:
        raise Refusal(404, f"There is no topic {form.get('topic', '')!r}.")
    wanted = [common.whole(each, "A broker", 0, 1 << 31) for each in form.get("brokers", "").split(",") if each.strip()]
    brokers_up = [each for each in dict.fromkeys(wanted) if each in house.snapshot.brokers]
    replication = common.whole(form.get("replication") or str(topic.replication), "The number of replicas", 1, 1_000)
    if len(brokers_up) < replication:
        raise Refusal(
            400,
            f"For {counted(replication, 'replica')} name at least {counted(replication, 'broker')}, with commas.",
        )
    plan = admin.spread(house.snapshot, topic.name, brokers_up, replication)
    changed = {each.index: plan[each.index] for each in topic.partitions if tuple(each.replicas) != plan[each.index]}
    if form.get("step") != "apply":
        rows = [(each, plan[each.index]) for each in topic.partitions]
        return common.preview(
            visit,
            "reassignment_plan.html",
            [{"partition": each.index, "before": each.replicas, "after": after} for each, after in rows],
            title="Reassignments",
            topic=topic,
            rows=rows,
            form=form,
            changed=len(changed),
        )
    if changed:
        await house.ask(admin.reassign, house.asker, topic.name, changed)
    await house.refresh()
    return common.done(
        visit,
        "/reassignments",
        f"On the way: {counted(len(changed), 'partition')} of {topic.name}.",
    )


async def cancel_reassignment(visit: Visit) -> Response:
    name = visit.form.get("topic", "")
    index = common.whole(visit.form.get("partition", ""), "The partition", 0, 1 << 31)
    await visit.house.ask(admin.reassign, visit.house.asker, name, {index: None})
    await visit.house.refresh()
    return common.done(visit, "/reassignments", f"The reassignment of {name}-{index} was cancelled.")


async def elect_leaders(visit: Visit) -> Response:
    moved = await visit.house.ask(admin.elect_preferred, visit.house.asker)
    await visit.house.refresh()
    return common.done(
        visit,
        "/brokers",
        f"Led by its preferred replica again: {counted(moved, 'partition')}.",
    )
