"""Requests by API: how many, how long, where the time went, which errors."""

from __future__ import annotations

from collections.abc import Iterable

from moldau.broker.request_times import RequestTimes
from moldau.metrics import Page
from moldau.wire import ErrorCode

_KAFKA = "kafka_network_requestmetrics"


def collect_requests(page: Page, listener_kind: str, every: Iterable[RequestTimes]) -> None:
    for times in every:
        if not times.requests:
            continue
        labels = {"request": times.name, "listener_kind": listener_kind}
        page.counter(f"{_KAFKA}_requests_total", "Requests taken.", times.requests, labels)
        for code, count in sorted(times.errors.items()):
            name = {**labels, "error": ErrorCode(code).name}
            page.counter(f"{_KAFKA}_errors_total", "Error codes in answers.", count, name)
        page.histogram("moldau_request_seconds", "From the request to its answer.", times.total, labels)
        count = times.total.count
        for part, help_text, seconds in (
            ("totaltimems", "Milliseconds from the request to its answer.", times.total.sum),
            ("localtimems", "Milliseconds of it spent by the handler on the event loop.", times.local_seconds),
            ("remotetimems", "Milliseconds of it spent waiting for others.", times.remote_seconds),
        ):
            page.summary(f"{_KAFKA}_{part}", help_text, seconds * 1000, count, labels)
        page.counter("moldau_slow_requests_total", "Requests above moldau.slow.request.ms.", times.slow, labels)
