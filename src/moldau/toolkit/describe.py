"""What an app is made of and how it does, as plain data: for people, dashboards and tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from moldau.toolkit.message import Message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau.toolkit.group import Group
    from moldau.toolkit.runtime import HandlerRuntime
    from moldau.toolkit.spec import HandlerSpec
    from moldau.toolkit.timekeeping import Time

    class Described(Protocol):
        """An app, as far as its description may touch it."""

        @property
        def name(self) -> str: ...
        @property
        def bootstrap_servers(self) -> str: ...
        @property
        def time(self) -> Time: ...
        @property
        def specs(self) -> Sequence[HandlerSpec]: ...
        @property
        def groups(self) -> Sequence[Group]: ...


def describe(app: Described) -> dict[str, Any]:
    running = {id(handler.spec): handler for group in app.groups for handler in group.handlers}
    return {
        "app": app.name,
        "bootstrap_servers": app.bootstrap_servers,
        "is_running": bool(app.groups),
        "assignment": [f"{topic}-{index}" for group in app.groups for topic, index in group.assignment],
        "handlers": [_handler(app, spec, running.get(id(spec))) for spec in app.specs],
    }


def _handler(app: Described, spec: HandlerSpec, runtime: HandlerRuntime | None) -> dict[str, Any]:
    options = spec.options
    found: dict[str, Any] = {
        "functions": [function.name for function in spec.functions],
        "topics": [*spec.topics, *(pattern.pattern for pattern in spec.patterns)],
        "group": spec.group,
        "workers": options.workers,
        "order": options.order,
        "commit": options.commit,
        "retry": {"now": options.retry.now, "later_ms": list(options.retry.later_ms), "by": options.retry.by},
        "dead_letter": options.dead_letter,
        "to": options.to,
    }
    if runtime is not None:
        counts = runtime.counts
        now = app.time.monotonic_ms()
        found |= {
            "handled": counts.handled,
            "failed": counts.failed,
            "retried": counts.retried,
            "dead": counts.dead,
            "dropped": counts.dropped,
            "held": sum(lane.scheduler.held for lane in runtime.lanes),
            "running": [
                {"message": repr(Message(entry)), "for_ms": round(now - since)} for entry, since in runtime.busy_since()
            ],
            "parked": [
                {"message": repr(Message(entry)), "behind": behind, "due_in_ms": round(entry.due_ms - now)}
                for lane in runtime.lanes
                for entry, behind in lane.scheduler.parked()
            ],
            "is_breaker_open": runtime.breaker is not None and runtime.breaker.open_until_ms is not None,
        }
    return found
