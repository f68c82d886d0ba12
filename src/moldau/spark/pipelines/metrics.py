"""The progress of a pipeline's queries as Prometheus reads it, on a port of its own if asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from moldau.spark.pipelines.progress import QueryProgress

_GAUGES: tuple[tuple[str, str, str, Callable[[QueryProgress], float | None]], ...] = (
    ("up", "gauge", "1 while the query runs", lambda q: float(q.state in ("running", "waiting", "starting"))),
    ("rows_total", "counter", "rows read", lambda q: q.rows_total),
    ("rows_per_second", "gauge", "rows a second in the last batch that had any", lambda q: q.rows_per_second),
    ("batch_seconds", "gauge", "time of the last batch that had rows", lambda q: q.batch_ms / 1000),
    ("batch_id", "gauge", "number of the last batch", lambda q: q.batch_id),
    ("lag_records", "gauge", "records in the topics that were not processed", lambda q: q.lag_records),
    ("state_rows", "gauge", "rows of state", lambda q: q.state_rows),
    ("state_bytes", "gauge", "memory of state", lambda q: q.state_bytes),
    ("late_rows_total", "counter", "rows that came too late", lambda q: q.late_rows),
    ("unmatched_lines_total", "counter", "log lines that fitted no template", lambda q: q.unmatched_lines),
)


def exposition(pipeline: str, queries: Sequence[QueryProgress]) -> str:
    """Prometheus' text format."""
    lines = []
    for name, kind, about, read in _GAUGES:
        full = f"moldau_pipeline_{name}"
        lines += [f"# HELP {full} {about}", f"# TYPE {full} {kind}"]
        for query in queries:
            value = read(query)
            if value is not None:
                lines.append(f'{full}{{pipeline="{_label(pipeline)}",query="{_label(query.name)}"}} {_number(value)}')
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    """All its digits: a counter that is rounded stands still, and then jumps."""
    return str(int(value)) if value == int(value) else repr(float(value))


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


@contextmanager
def served(port: int, read: Callable[[], str], host: str = "127.0.0.1") -> Iterator[int]:
    """Serve `/metrics` on a thread until the end of the block; the port, which is chosen if it is 0."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # http.server's name
            if self.path.split("?")[0] != "/metrics":
                self.send_error(404, "look at /metrics")
                return
            body = read().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # http.server's name
            """Nobody wants a line for each scrape."""

    server = ThreadingHTTPServer((host, port), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
