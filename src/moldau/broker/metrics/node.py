"""This node's own parts: sockets, purgatories, fetch sessions, log dirs, flushes, the cleaner."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol

from moldau.metrics import Page
from moldau.net.listener import Listener as SocketListener

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from moldau.broker.parts import HasAudit, HasLogs, HasLoop, HasPurgatories, HasQuotas
    from moldau.broker.replicas.parts import HasFetchSessions
    from moldau.log.dirs.log_manager import LogManager
    from moldau.seams.network import Listener

    class Needs(HasFetchSessions, HasLogs, HasLoop, HasPurgatories, Protocol):
        """What this file may touch."""


_SOCKETS = (
    ("connection_creation_total", "Connections accepted.", "connections_accepted"),
    ("connection_close_total", "Connections closed.", "connections_closed"),
    ("incoming_byte_total", "Bytes received.", "bytes_in"),
    ("outgoing_byte_total", "Bytes sent.", "bytes_out"),
    ("request_total", "Requests received.", "frames_in"),
    ("response_total", "Answers sent.", "frames_out"),
)
_TROUBLES = (
    ("rejected", "connections_rejected"),
    ("idle", "idle_closed"),
    ("stalled", "stalled_closed"),
    ("not logged in, and room was needed", "strangers_closed"),
    ("bad frame", "bad_frames"),
    ("not accepted", "accept_errors"),
    ("failed handler", "handler_errors"),
)


def collect_sockets(page: Page, broker: HasAudit, listeners: Iterable[Listener], sasl: Container[str]) -> None:
    """`sasl`: names of the listeners whose clients log in."""
    for listener in listeners:
        if not isinstance(listener, SocketListener):
            continue  # a simulated one
        labels = {"listener": listener.name}
        counters = listener.counters
        prefix = "kafka_server_socketservermetrics"
        for name in (prefix, "kafka_server_socket_server_metrics"):  # dashboards have it one way or the other
            page.gauge(f"{name}_connection_count", "Open connections.", counters.connections_open, labels)
        for name, help_text, field in _SOCKETS:
            page.counter(f"{prefix}_{name}", help_text, getattr(counters, field), labels)
        logins = broker.audit.logins[listener.name]
        succeeded = logins.succeeded if listener.name in sasl else counters.tls_handshakes
        for outcome, help_text, value in (
            ("successful", "Clients that proved who they are: by SASL or, without it, TLS.", succeeded),
            ("failed", "Clients that did not, and TLS handshakes that failed.", logins.failed + counters.tls_failures),
        ):
            page.counter(f"{prefix}_{outcome}_authentication_total", help_text, value, labels)
        again = "Sessions that proved it once more (connections.max.reauth.ms)."
        page.counter(f"{prefix}_successful_reauthentication_total", again, logins.again, labels)
        for reason, field in _TROUBLES:
            page.counter(
                "moldau_connection_troubles_total",
                "Connections that ended, or never began, for a reason of ours.",
                getattr(counters, field),
                {**labels, "reason": reason},
            )
        page.counter("moldau_cold_reads_total", "Answers that waited for the disk.", counters.cold_reads, labels)


def collect_quotas(page: Page, broker: HasQuotas) -> None:
    """By kind of quota, not by client: names of clients are theirs to invent."""
    for each in broker.quotas.every:
        labels = {"quota": each.name}
        page.gauge("moldau_quota_entities", "Limited clients that used something lately.", each.entities, labels)
        page.counter("moldau_quota_throttles_total", "How often a client was silenced.", each.silenced, labels)
        seconds = each.silenced_ms / 1000
        page.counter("moldau_quota_throttled_seconds_total", "For how long altogether.", seconds, labels)


def collect_waiting(page: Page, broker: Needs) -> None:
    for name, purgatory in (("Produce", broker.produce_purgatory), ("Fetch", broker.fetch_purgatory)):
        labels = {"delayedoperation": name}
        prefix = "kafka_server_delayedoperationpurgatory"
        page.gauge(f"{prefix}_numdelayedoperations", "Requests that wait.", len(purgatory), labels)
        page.gauge(f"{prefix}_purgatorysize", "Keys they wait under.", purgatory.watched_keys, labels)
        page.counter("moldau_purgatory_expired_total", "Requests that waited in vain.", purgatory.expired_count, labels)
    page.gauge(
        "kafka_server_fetchsessioncache_numincrementalfetchsessions", "Fetch sessions.", len(broker.fetch_sessions)
    )


async def collect_logs(page: Page, broker: Needs) -> None:
    logs = broker.logs
    for path, log_dir in logs.dirs.items():
        labels = {"logdirectory": path}
        page.gauge("kafka_log_logmanager_logdirectoryoffline", "Whether it failed.", int(not log_dir.is_online), labels)
        used = sum(log.size_bytes for log in list(log_dir.logs.values()))
        page.gauge("moldau_log_dir_log_bytes", "Bytes of the logs in it.", used, labels)
    page.gauge(
        "kafka_log_logmanager_offlinelogdirectorycount",
        "Log dirs that failed.",
        sum(not each.is_online for each in logs.dirs.values()),
    )
    for path, total, free in await broker.loop.run_in_executor(broker.executor, _space, logs):
        page.gauge("moldau_disk_bytes", "Size of the volume of a log dir.", total, {"logdirectory": path})
        page.gauge("moldau_disk_free_bytes", "What is free on it.", free, {"logdirectory": path})
    page.histogram("moldau_log_flush_seconds", "How long a flush of a log took.", logs.context.flush_times)
    times = logs.context.flush_times
    page.summary("kafka_log_logflushstats_logflushrateandtimems", "The same.", times.sum * 1000, times.count)
    cleaning = logs.cleaning
    page.gauge("moldau_cleaner_running", "Logs being compacted.", cleaning.running_count)
    page.counter("moldau_cleaner_runs_total", "Compactions finished.", cleaning.finished_count)
    page.counter("moldau_cleaner_read_bytes_total", "Bytes compactions read.", cleaning.bytes_read)
    page.counter("moldau_cleaner_written_bytes_total", "Bytes they kept.", cleaning.bytes_written)
    page.gauge(
        "kafka_log_logcleanermanager_max_dirty_percent",
        "How much of the dirtiest log is not compacted.",
        cleaning.dirty_ratio_max * 100,
    )
    page.gauge(
        "kafka_log_logcleanermanager_uncleanable_partitions_count",
        "Logs that cannot be compacted, for they cannot be read.",
        sum(bool(log.uncleanable) for log in list(logs.logs.values())),
    )


def _space(logs: LogManager) -> list[tuple[str, int, int]]:
    """Any thread: a volume that hangs must not hang the loop."""
    found = []
    for path, log_dir in logs.dirs.items():
        if log_dir.is_online:
            with contextlib.suppress(OSError):
                found.append((path, *log_dir.disk.space(path)))
    return found
