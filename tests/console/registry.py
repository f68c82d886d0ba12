"""A small schema registry that speaks Confluent's API."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import unquote

OLD = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
NEW = {**OLD, "fields": [*OLD["fields"], {"name": "note", "type": "string", "default": "<b>"}]}
HOSTILE = "orders/<i>value</i>"
SUBJECTS: dict[str, list[tuple[int, Any]]] = {"orders-value": [(1, OLD), (2, NEW)], HOSTILE: [(3, OLD)]}


class Registry:
    """Answers, and remembers what it was asked. `is_away`: as if something else listened there."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.is_away = False

    def answer(self, path: str) -> Any:
        """None: no such thing."""
        self.asked.append(path)
        parts = [unquote(each) for each in path.partition("?")[0].strip("/").split("/")]
        match parts:
            case ["subjects"]:
                return list(SUBJECTS)
            case ["subjects", subject, "versions"] if subject in SUBJECTS:
                return list(range(1, len(SUBJECTS[subject]) + 1))
            case ["subjects", subject, "versions", version] if subject in SUBJECTS:
                if not 1 <= int(version) <= len(SUBJECTS[subject]):
                    return None
                id_, schema = SUBJECTS[subject][int(version) - 1]
                return {"subject": subject, "version": int(version), "id": id_, "schema": json.dumps(schema)}
            case ["schemas", "ids", id_]:
                found = [schema for each in SUBJECTS.values() for number, schema in each if number == int(id_)]
                return {"schema": json.dumps(found[0])} if found else None
            case ["config", "orders-value"]:
                return {"compatibilityLevel": "FULL"}
            case ["config"]:
                return {"compatibilityLevel": "BACKWARD"}
        return None


@contextmanager
def serving() -> Iterator[tuple[str, Registry]]:
    """Its address, and itself."""
    told = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = None if told.is_away else told.answer(self.path)
            body = b"<html>" if told.is_away else json.dumps(found or {"error_code": 404}).encode()
            self.send_response(404 if found is None and not told.is_away else 200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", told
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
