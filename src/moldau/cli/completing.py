"""Names for the shell's Tab: topics and groups of the cluster, asked for quickly or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moldau.cli.target import Target

_SECONDS = 1.0


def _names(ctx: Any, incomplete: str, ask: Any) -> list[str]:
    """Whatever goes wrong, Tab shows nothing: there is no place to tell why."""
    from moldau.cli.target import Target, resolve

    try:
        given = ctx.params
        settings = resolve(
            given.get("bootstrap_server"),
            given.get("client_settings") or (),
            given.get("client_config"),
            given.get("context"),
        )
        target = Target(settings | {"request.timeout.ms": "1000"})
        return sorted(name for name in ask(target) if name.startswith(incomplete))
    except BaseException:  # fail() raises an exit
        return []


def complete_topics(ctx: Any, incomplete: str) -> list[str]:
    return _names(ctx, incomplete, lambda target: target.admin_client().list_topics(timeout=_SECONDS).topics)


def complete_groups(ctx: Any, incomplete: str) -> list[str]:
    """Of every type."""
    return _names(ctx, incomplete, _groups)


def _groups(target: Target) -> list[str]:
    from moldau.cli.group_views import all_groups

    with target.admin() as admin:
        return [each.group_id for _, each in all_groups(admin)]
