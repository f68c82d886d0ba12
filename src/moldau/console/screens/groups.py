"""Groups: who reads what, how far behind they are and where that goes; resetting offsets, with a look before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple
from urllib.parse import quote

from starlette.responses import Response

from moldau.client.cluster import Cluster
from moldau.client.settings import parse_client_settings
from moldau.console.cluster import admin
from moldau.console.cluster.health import why
from moldau.console.cluster.model import Group, Snapshot, Where
from moldau.console.gate.refusal import Refusal
from moldau.console.house import House
from moldau.console.listing import Listed, listed, searched
from moldau.console.screens import common
from moldau.console.screens.messages import time_ms
from moldau.console.visit import Visit
from moldau.console.wording import counted

_ORDERS = {
    "name": lambda group: group.name,
    "members": lambda group: len(group.members),
    "state": lambda group: group.state,
    "lag": lambda group: group.lag,
    "trend": lambda group: group.trend,
}
_SHOW = ("ok", "slow", "stalled", "stopped")
_SPARK = 60
_TARGETS = ("earliest", "latest", "time", "offset", "shift")


def group_list(visit: Visit) -> Listed[Group]:
    snapshot, topic = visit.house.snapshot, visit.query("topic")
    known: Iterable[Group] = snapshot.groups.values()
    if topic:
        readers = snapshot.topics[topic].groups if topic in snapshot.topics else ()
        known = [snapshot.groups[name] for name in readers if name in snapshot.groups]
    items = searched(known, visit.query("q"), lambda group: group.name)
    show = visit.query("show")
    if show in _SHOW:
        items = [group for group in items if group.judgement == show]
    elif show == "members":
        items = [group for group in items if group.members]
    return listed(visit, items, _ORDERS, "name")


async def groups(visit: Visit) -> Response:
    found = group_list(visit)
    history = visit.house.watcher.history
    return visit.house.views.page(
        visit,
        "groups.html",
        title="Groups",
        list=found,
        q=visit.query("q"),
        show=visit.query("show"),
        topic=visit.query("topic"),
        sparks={group.name: history.values(("group", group.name), _SPARK) for group in found.rows},
    )


async def group(visit: Visit) -> Response:
    found = common.group_of(visit, visit.query("name"))
    owners = {
        (topic, index): member for member in found.members for topic, indexes in member.assigned for index in indexes
    }
    wanted = searched(found.positions.items(), visit.query("q"), lambda each: f"{each[0][0]}-{each[0][1]}")
    positions = sorted(wanted, key=lambda each: (-each[1].lag, each[0]))
    return visit.house.views.page(
        visit,
        "group.html",
        title=found.name,
        group=found,
        why=why(found, visit.house.snapshot),
        owners=owners,
        positions=listed(visit, positions),
        position_count=len(found.positions),
        members=listed(visit, found.members, page_name="members"),
        q=visit.query("q"),
    )


async def group_history(visit: Visit) -> Response:
    found = common.group_of(visit, visit.query("name"))
    series = {name: ("group", found.name, name) for name in found.topics[:8]}
    return common.plot(visit, series if len(series) > 1 else {"lag": ("group", found.name)})


class Move(NamedTuple):
    topic: str
    partition: int
    before: int
    after: int

    @property
    def difference(self) -> int:
        return self.after - self.before


def planned(house: House, snapshot: Snapshot, found: Group, form: Mapping[str, str]) -> list[Move]:
    """Where each partition would go; never outside of what is there. Blocks."""
    to = form.get("to", "")
    if to not in _TARGETS:
        raise Refusal(400, f"Say where to: {', '.join(_TARGETS)}.")
    only = form.get("topic", "")
    wheres = [where for where in found.positions if not only or where[0] == only]
    if only and not wheres and only in snapshot.topics:  # a topic the group has not read yet
        wheres = [(only, each.index) for each in snapshot.topics[only].partitions]
    if not wheres:
        raise Refusal(400, f"{found.name} has no offsets there. Name a topic it shall read.")
    starts = admin.offsets_at(house.asker, snapshot, wheres, -2)
    ends = admin.offsets_at(house.asker, snapshot, wheres, -1)
    targets = _targets(house, snapshot, found, form, wheres, starts, ends)
    moves = []
    for where in sorted(wheres):
        if where in starts and where in ends:
            position = found.positions.get(where)
            target = max(starts[where], min(ends[where], targets.get(where, ends[where])))
            moves.append(Move(*where, position.committed if position else -1, target))
    return moves


def _targets(
    house: House,
    snapshot: Snapshot,
    found: Group,
    form: Mapping[str, str],
    wheres: list[Where],
    starts: dict[Where, int],
    ends: dict[Where, int],
) -> dict[Where, int]:
    to, at = form["to"], form.get("at", "").strip()
    if to == "earliest":
        return starts
    if to == "latest":
        return ends
    if to == "offset":
        return dict.fromkeys(wheres, common.whole(at, "The offset", 0, 1 << 62))
    if to == "shift":
        by = common.whole(at, "The number of records", -(1 << 62), 1 << 62)
        return {where: found.positions[where].committed + by for where in wheres if where in found.positions}
    known = admin.offsets_at(house.asker, snapshot, wheres, time_ms(at))
    return {where: offset if offset >= 0 else ends[where] for where, offset in known.items()}


def _commit(house: House, name: str, moves: list[Move]) -> None:
    kafka = {"request.timeout.ms": "10000", **house.settings.kafka}
    with Cluster(parse_client_settings(kafka), patience_s=10.0) as cluster:
        cluster.commit(name, {(move.topic, move.partition): move.after for move in moves})


def _delete(house: House, name: str) -> None:
    kafka = {"request.timeout.ms": "10000", **house.settings.kafka}
    with Cluster(parse_client_settings(kafka), patience_s=10.0) as cluster:
        cluster.delete_groups([name])


async def reset_group(visit: Visit) -> Response:
    """Twice: the first time shows what would be, the second does it."""
    house, form = visit.house, visit.form
    found = common.group_of(visit, form.get("name", ""))
    if found.members:
        raise Refusal(
            409,
            f"{found.name} has {counted(len(found.members), 'member')}; only a group without can be moved. "
            "Stop its consumers first.",
        )
    moves = await house.ask(planned, house, house.snapshot, found, dict(form))
    if form.get("step") != "apply":
        plain = [move._asdict() for move in moves]
        asked = [where for where in found.positions if form.get("topic", "") in ("", where[0])]
        return common.preview(
            visit,
            "group_reset.html",
            plain,
            title=found.name,
            group=found,
            moves=moves,
            form=form,
            away=max(0, len(asked) - len(moves)),
        )
    common.confirmed(visit, found.name)
    await house.ask(_commit, house, found.name, moves)
    await house.refresh()
    count = sum(bool(move.difference) for move in moves)
    return common.done(
        visit,
        f"/group?name={quote(found.name, safe='')}",
        f"{counted(count, 'partition')} of {found.name} {'was' if count == 1 else 'were'} moved.",
    )


async def delete_group(visit: Visit) -> Response:
    found = common.group_of(visit, visit.form.get("name", ""))
    common.confirmed(visit, found.name)
    await visit.house.ask(_delete, visit.house, found.name)
    await visit.house.refresh()
    return common.done(visit, "/groups", f"Group {found.name} and its offsets were deleted.")
