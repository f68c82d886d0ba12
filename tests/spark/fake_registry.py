"""A registry in this process, with the part of Confluent's API that clients use, a login if wanted, and a count."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FakeRegistry:
    def __init__(self, login: str = "") -> None:
        self.login = login
        self.schemas: list[dict[str, Any]] = []
        self.subjects: dict[str, list[int]] = {}
        self.asked: list[str] = []
        self.failures = 0  # so many requests to come are answered with 500
        self.url = ""

    def add(self, subject: str, schema: Any, kind: str = "AVRO", references: Any = None) -> int:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        entry = {"schema": text, "schemaType": kind, "references": references or []}
        if entry not in self.schemas:
            self.schemas.append(entry)
        number = self.schemas.index(entry) + 1
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        parts = path.strip("/").split("/")
        if self.failures:
            self.failures -= 1
            return 500, {"message": "not now"}
        if parts[:2] == ["schemas", "ids"]:
            number = int(parts[2])
            if not 0 < number <= len(self.schemas):
                return 404, {"error_code": 40403, "message": "Schema not found"}
            return 200, self._shown(number)
        subject = parts[1]
        if method == "POST":
            return 200, {"id": self.add(subject, body["schema"], body.get("schemaType", "AVRO"))}
        versions = self.subjects.get(subject, [])
        if not versions:
            return 404, {"error_code": 40401, "message": "Subject not found"}
        index = len(versions) - 1 if parts[3] == "latest" else int(parts[3]) - 1
        return 200, {"subject": subject, "version": index + 1, "id": versions[index], **self._shown(versions[index])}

    def _shown(self, number: int) -> dict[str, Any]:
        """Confluent's leaves out the kind of Avro."""
        entry = dict(self.schemas[number - 1])
        if entry["schemaType"] == "AVRO":
            del entry["schemaType"]
        return entry


@contextmanager
def running(login: str = "") -> Iterator[FakeRegistry]:
    registry = FakeRegistry(login)

    class Handler(BaseHTTPRequestHandler):
        def _do(self) -> None:
            registry.asked.append(self.path)
            length = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(length)) if length else None
            expected = "Basic " + base64.b64encode(registry.login.encode()).decode()
            if registry.login and self.headers.get("Authorization") != expected:
                code, content = 401, {"message": "Unauthorized"}
            else:
                code, content = registry.answer(self.command, self.path, body)
            data = json.dumps(content).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = _do  # noqa: N815  # http.server's names

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    registry.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
