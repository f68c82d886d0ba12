"""ACLs, users and quotas of the cluster. Where they are switched off, the screen says how to switch them on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from starlette.responses import Response

from moldau.console.cluster import access
from moldau.console.cluster.access import Acl
from moldau.console.gate.refusal import Refusal
from moldau.console.listing import Listed, listed, searched
from moldau.console.screens import common
from moldau.console.visit import Visit
from moldau.console.wording import counted


async def _asked(visit: Visit, question: Callable[[Any], Any]) -> tuple[Any, str]:
    """The answer, and why there is none if that is so."""
    try:
        return await visit.house.ask(question, visit.house.asker), ""
    except access.Disabled as reason:
        return [], str(reason)


async def acls(visit: Visit) -> Response:
    if not visit.is_fragment:
        return visit.house.views.page(visit, "acls.html", title="ACLs", words=_WORDS, q=visit.query("q"))
    found, disabled = await acl_list(visit)
    return common.fragment(visit, "acl_rows.html", list=found, disabled=disabled, q=visit.query("q"), confirm=acl_word)


async def acl_list(visit: Visit) -> tuple[Listed[Acl], str]:
    rows, disabled = await _asked(visit, access.acls)
    shown = searched(rows, visit.query("q"), lambda acl: f"{acl.principal} {acl.name} {' '.join(acl.words.values())}")
    return listed(visit, shown), disabled


_WORDS = {
    "resource": access.RESOURCES,
    "pattern": access.PATTERNS,
    "operation": access.OPERATIONS,
    "permission": access.PERMISSIONS,
}


def _acl(form: Mapping[str, str]) -> Acl:
    numbers = {}
    for field, words in _WORDS.items():
        found = next((number for number, word in words.items() if word == form.get(field)), None)
        if found is None:
            raise Refusal(400, f"{field} is one of {', '.join(words.values())}.")
        numbers[field] = found
    principal = form.get("principal", "").strip()
    if ":" not in principal:
        raise Refusal(400, "A principal is written User:NAME.")
    name = form.get("resource_name", "").strip()
    if numbers["resource"] == 4:
        name = "kafka-cluster"
    if not name:
        raise Refusal(400, "Name the resource; * means all of its kind.")
    host = form.get("host", "").strip() or "*"
    return Acl(
        numbers["resource"], name, numbers["pattern"], principal, host, numbers["operation"], numbers["permission"]
    )


async def create_acl(visit: Visit) -> Response:
    acl = _acl(visit.form)
    await visit.house.ask(access.create_acl, visit.house.asker, acl)
    return common.done(
        visit, "/acls", f"{acl.principal}: {acl.words['permission']} {acl.words['operation']} was added."
    )


def acl_word(acl: Acl) -> str:
    """What is typed to delete a rule: it may be what kept somebody out."""
    return f"{acl.principal} {acl.name}"


async def delete_acl(visit: Visit) -> Response:
    acl = _acl(visit.form)
    common.confirmed(visit, acl_word(acl))
    count = await visit.house.ask(access.delete_acl, visit.house.asker, acl)
    return common.done(visit, "/acls", f"{counted(count, 'ACL')} deleted.")


async def users(visit: Visit) -> Response:
    if not visit.is_fragment:
        return visit.house.views.page(
            visit, "users.html", title="Users", mechanisms=access.MECHANISMS, q=visit.query("q")
        )
    found, disabled = await user_list(visit)
    return common.fragment(
        visit, "user_rows.html", list=found, disabled=disabled, mechanisms=access.MECHANISMS, q=visit.query("q")
    )


async def user_list(visit: Visit) -> tuple[Listed[access.ScramUser], str]:
    rows, disabled = await _asked(visit, access.scram_users)
    return listed(visit, searched(rows, visit.query("q"), lambda user: user.name)), disabled


async def save_user(visit: Visit) -> Response:
    form = visit.form
    name, password = form.get("name", "").strip(), form.get("password", "")
    mechanism = common.whole(form.get("mechanism", ""), "The mechanism", 1, 2)
    if not name or len(password) < 8:
        raise Refusal(400, "A user needs a name, and a password of at least 8 characters.")
    await visit.house.ask(access.save_user, visit.house.asker, name, mechanism, password)
    return common.done(visit, "/users", f"User {name} can log in with {access.MECHANISMS[mechanism]}.")


async def delete_user(visit: Visit) -> Response:
    name = visit.form.get("name", "")
    common.confirmed(visit, name)
    mechanism = common.whole(visit.form.get("mechanism", ""), "The mechanism", 1, 2)
    await visit.house.ask(access.delete_user, visit.house.asker, name, mechanism)
    return common.done(visit, "/users", f"{name} cannot log in with {access.MECHANISMS[mechanism]} any more.")


async def quotas(visit: Visit) -> Response:
    if not visit.is_fragment:
        return visit.house.views.page(
            visit, "quotas.html", title="Quotas", names=access.QUOTAS, entities=access.ENTITIES, q=visit.query("q")
        )
    found, disabled = await quota_list(visit)
    return common.fragment(visit, "quota_rows.html", list=found, disabled=disabled, q=visit.query("q"))


async def quota_list(visit: Visit) -> tuple[Listed[access.Quota], str]:
    rows, disabled = await _asked(visit, access.quotas)
    return listed(visit, searched(rows, visit.query("q"), _quota_words)), disabled


def _quota_words(quota: access.Quota) -> str:
    names = [name for name, _ in quota.values]
    return " ".join([word for kind, who in quota.entity for word in (kind, who or "everybody else")] + names)


async def save_quota(visit: Visit) -> Response:
    form = visit.form
    entity: list[tuple[str, str | None]] = [
        (kind, form.get(f"name_{kind}", "").strip() or None) for kind in access.ENTITIES if form.get(f"is_{kind}")
    ]
    if not entity:
        raise Refusal(400, "Say whom it is for: a user, a client id, both, or an address.")
    name = form.get("quota", "")
    if name not in access.QUOTAS:
        raise Refusal(400, f"A quota is one of {', '.join(access.QUOTAS)}.")
    value: float | None = None
    if not form.get("remove"):
        try:
            value = float(form.get("limit", ""))
        except ValueError as error:
            raise Refusal(400, "The limit is a number.") from error
        if not 0 < value < 1e18:
            raise Refusal(400, "The limit is above zero.")
    await visit.house.ask(access.save_quota, visit.house.asker, entity, name, value)
    return common.done(visit, "/quotas", f"{name} was {'removed' if value is None else 'set'}.")
