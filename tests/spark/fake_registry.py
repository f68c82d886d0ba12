"""A registry in this process, with the part of Confluent's API that clients use, a login if wanted, and a count."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote

NOT_FOUND: dict[int, str] = {
    40401: "Subject not found",
    40402: "Version not found",
    40403: "Schema not found",
    40404: "Subject was soft deleted. Set permanent=true to delete permanently",
    40405: "Subject was not deleted first before being permanently deleted",
    40406: "Version was soft deleted. Set permanent=true to delete permanently",
    40407: "Version was not deleted first before being permanently deleted",
    40408: "Subject does not have subject-level compatibility configured",
    40409: "Subject does not have subject-level mode configured",
}


class Missing(Exception):
    """Answered with 404 and this code."""


class FakeRegistry:
    def __init__(self, login: str = "") -> None:
        self.login = login
        self.schemas: list[dict[str, Any]] = []
        self.subjects: dict[str, list[int]] = {}
        self.deleted: dict[str, set[int]] = {}  # versions that can come back
        self.gone: dict[str, set[int]] = {}  # versions that cannot
        self.settings: dict[str, dict[str, str]] = {"config": {"": "BACKWARD"}, "mode": {"": "READWRITE"}}
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
        alive = self._versions(subject, with_deleted=False)
        if number not in [versions[each - 1] for each in alive]:
            versions.append(number)
        return number

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        if self.failures:
            self.failures -= 1
            return 500, {"message": "not now"}
        path, _, query = path.partition("?")
        asked = {name: values[0] == "true" for name, values in parse_qs(query).items()}
        try:
            return 200, self._answer(method, [unquote(part) for part in path.strip("/").split("/")], body, asked)
        except Missing as error:
            code = error.args[0]
            return 404, {"error_code": code, "message": NOT_FOUND[code]}

    def _answer(self, method: str, parts: list[str], body: Any, asked: dict[str, bool]) -> Any:
        deleted = asked.get("deleted", False)
        match method, parts:
            case "GET", ["schemas", "ids", text]:
                return self._shown(self._known(int(text)))
            case "GET", ["schemas", "ids", text, "versions"]:
                return [
                    {"subject": subject, "version": each}
                    for subject, numbers in self.subjects.items()
                    for each in self._versions(subject, with_deleted=deleted)
                    if numbers[each - 1] == self._known(int(text))
                ]
            case "GET", ["subjects"]:
                return [each for each in self.subjects if self._versions(each, with_deleted=deleted)]
            case "POST", ["subjects", subject, "versions"]:
                kind = body.get("schemaType", "AVRO")
                return {"id": self.add(subject, body["schema"], kind, body.get("references"))}
            case "POST", ["subjects", subject]:
                wanted = {"schemaType": "AVRO", "references": [], **body}
                for each in self._there(subject, deleted=False):
                    number = self.subjects[subject][each - 1]
                    if self.schemas[number - 1] == wanted:
                        return {"subject": subject, "version": each, "id": number, **self._shown(number)}
                raise Missing(40403)
            case "GET", ["subjects", subject, "versions"]:
                return self._there(subject, deleted=deleted)
            case "GET", ["subjects", subject, "versions", text, *rest]:
                there = self._there(subject, deleted=deleted)
                version = there[-1] if text == "latest" else int(text)
                if version not in there:
                    raise Missing(40402)
                if rest == ["referencedby"]:
                    return [
                        number
                        for number, entry in enumerate(self.schemas, start=1)
                        if any((each["subject"], each["version"]) == (subject, version) for each in entry["references"])
                    ]
                number = self.subjects[subject][version - 1]
                return {"subject": subject, "version": version, "id": number, **self._shown(number)}
            case "POST", ["compatibility", "subjects", subject, "versions", *_]:
                kinds = {
                    self.schemas[self.subjects[subject][each - 1] - 1]["schemaType"] for each in self._there(subject)
                }
                is_fine = body.get("schemaType", "AVRO") in kinds
                return {"is_compatible": is_fine, **({} if is_fine else {"messages": ["another type of schema"]})}
            case "DELETE", ["subjects", subject]:
                return self._delete(subject, None, permanent=asked.get("permanent", False))
            case "DELETE", ["subjects", subject, "versions", text]:
                there = self._there(subject, deleted=True)
                return self._delete(
                    subject, there[-1] if text == "latest" else int(text), permanent=asked.get("permanent", False)
                )
            case _, [("config" | "mode") as what, *rest]:
                return self._setting(method, what, "".join(rest), body)
        raise AssertionError(f"the fake registry knows no {method} {parts}")

    def _known(self, number: int) -> int:
        if not 0 < number <= len(self.schemas):
            raise Missing(40403)
        return number

    def _versions(self, subject: str, *, with_deleted: bool) -> list[int]:
        every = set(range(1, len(self.subjects.get(subject, ())) + 1)) - self.gone.get(subject, set())
        return sorted(every if with_deleted else every - self.deleted.get(subject, set()))

    def _there(self, subject: str, *, deleted: bool = False) -> list[int]:
        found = self._versions(subject, with_deleted=deleted)
        if not found:
            raise Missing(40401)
        return found

    def _delete(self, subject: str, version: int | None, *, permanent: bool) -> Any:
        known = self._there(subject, deleted=True)
        wanted = known if version is None else [version]
        already = self.deleted.setdefault(subject, set())
        if not set(wanted) <= set(known):
            raise Missing(40402)
        if permanent:
            if not set(wanted) <= already:
                raise Missing(40405 if version is None else 40407)
            self.gone.setdefault(subject, set()).update(wanted)
            return wanted if version is None else version
        left = sorted(set(wanted) - already)
        if not left:
            raise Missing(40404 if version is None else 40406)
        already.update(left)
        return left if version is None else version

    def _setting(self, method: str, what: str, subject: str, body: Any) -> Any:
        name, known = ("compatibility", 40408) if what == "config" else ("mode", 40409)
        own = self.settings[what]
        if method == "PUT":
            own[subject] = body[name]
            return body
        if subject not in own:
            raise Missing(known)
        found = own.pop(subject) if method == "DELETE" else own[subject]
        return {"compatibilityLevel" if what == "config" else "mode": found}

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

        do_GET = do_POST = do_PUT = do_DELETE = _do  # noqa: N815  # http.server's names

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
