"""`moldau format`, `serve --audit-log`, `user` and `certs`, as people use them, in one story."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from moldau.testing.ports import free_ports
from tests.cli.running import Command


def test_a_cluster_with_certificates_and_users(tmp_path: Path) -> None:
    command = Command("127.0.0.1:1", str(tmp_path / "home"))

    def moldau(*arguments: str, text: str = "", status: int = 0) -> str:
        ended = command(*arguments, stdin=text)
        assert ended.code == status, ended
        return ended.out + ended.err

    certs = str(tmp_path / "certs")
    moldau("certs", "init", "-d", certs)
    assert "is there already" in moldau("certs", "init", "-d", certs, status=2)
    moldau("certs", "server", "node", "--host", "127.0.0.1", "-d", certs)
    assert "cannot be the name" in moldau("certs", "client", "../node", "-d", certs, status=2)
    assert (tmp_path / "certs" / "node.pem").stat().st_mode & 0o077 == 0
    (port,) = free_ports(1)
    server = tmp_path / "server.properties"
    server.write_text(
        f"listeners=SASL_SSL://127.0.0.1:{port}\ninter.broker.listener.name=SASL_SSL\n"
        "sasl.enabled.mechanisms=SCRAM-SHA-512\nsasl.mechanism.inter.broker.protocol=SCRAM-SHA-512\n"
        f"log.dirs={tmp_path}/data\nssl.keystore.type=PEM\nssl.keystore.location={certs}/node.pem\n"
    )
    client = tmp_path / "client.properties"
    client.write_text(
        f"bootstrap.servers=127.0.0.1:{port}\nsecurity.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n"
        'sasl.jaas.config=ScramLoginModule required username="root" password="root-secret";\n'
        f"ssl.truststore.type=PEM\nssl.truststore.location={certs}/ca.pem\n"
    )
    first = ("--add-scram", "SCRAM-SHA-512=[name=root,password=root-secret]")
    assert "with the users root" in moldau("format", "-c", str(server), *first)
    assert "formatted already" in moldau("format", "-c", str(server), *first, status=2)
    audit_log = tmp_path / "audit.log"
    serve = [sys.executable, "-m", "moldau", "serve", "-c", str(server), "--audit-log", str(audit_log)]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("ready ")
            use = ("--config", str(client), "-b", f"127.0.0.1:{port}")
            moldau("user", "add", "alice", "--password-stdin", *use, text="alice-secret\n")
            listed = moldau("user", "list", "--json", *use)
            assert {"user": "alice", "mechanism": "SCRAM-SHA-512", "iterations": 8192} in json.loads(listed)
            assert {"user": "root", "mechanism": "SCRAM-SHA-512", "iterations": 4096} in json.loads(listed)
            moldau("user", "remove", "alice", *use)
            assert "alice: there is no such user" in moldau("user", "remove", "alice", *use, status=4)
            assert "alice" not in moldau("user", "list", *use)
        finally:
            process.terminate()
            _, errors = process.communicate(timeout=30)
    lines = [json.loads(line.split(" ", 2)[2]) for line in audit_log.read_text().splitlines()]
    assert any(line.get("target") == "user alice" and line["principal"] == "User:root" for line in lines)
    assert any(line["event"] == "authentication" and line["outcome"] == "ok" for line in lines)
    assert "secret" not in audit_log.read_text() + errors
