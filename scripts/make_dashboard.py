"""Write deploy/grafana/moldau.json: the dashboard, from a short list of what is on it. `--check` compares only."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

TARGET = Path(__file__).resolve().parent.parent / "deploy/grafana/moldau.json"
NODE = 'instance=~"$instance"'
WIDTH, COLUMNS = 24, 3


def rate(name: str, labels: str = NODE) -> str:
    return f"rate({name}{{{labels}}}[$__rate_interval])"


def by_topic(name: str) -> str:
    series = rate(f"kafka_server_brokertopicmetrics_{name}_total", 'topic!=""')
    return f"topk(10, sum by (topic) ({series}))"


def p99(name: str, labels: str = NODE) -> str:
    return f"histogram_quantile(0.99, sum by (instance, le) ({rate(f'{name}_bucket', labels)}))"


def mean_ms(part: str, request: str) -> str:
    name, labels = f"kafka_network_requestmetrics_{part}timems", f'request="{request}",{NODE}'
    return f"{rate(f'{name}_sum', labels)} / {rate(f'{name}_count', labels)}"


Panel = tuple[str, str, str, str]  # title, unit, legend, query
ROWS: list[tuple[str, list[Panel]]] = [
    (
        "Health",
        [
            ("Brokers", "none", "", "max(kafka_brokers)"),
            ("Partitions without leader", "none", "", "max(kafka_controller_kafkacontroller_offlinepartitionscount)"),
            ("Under-replicated", "none", "", "sum(kafka_server_replicamanager_underreplicatedpartitions)"),
            ("Under min.insync.replicas", "none", "", "sum(kafka_server_replicamanager_underminisrpartitioncount)"),
            ("Active controllers", "none", "", "sum(kafka_controller_kafkacontroller_activecontrollercount)"),
            ("Log dirs offline", "none", "", "sum(kafka_log_logmanager_offlinelogdirectorycount)"),
        ],
    ),
    (
        "Traffic",
        [
            (
                "Records in by topic",
                "short",
                "{{topic}}",
                by_topic("messagesin"),
            ),
            (
                "Bytes in by topic",
                "Bps",
                "{{topic}}",
                by_topic("bytesin"),
            ),
            (
                "Bytes out by topic",
                "Bps",
                "{{topic}}",
                by_topic("bytesout"),
            ),
            (
                "Replication",
                "Bps",
                "{{instance}} in",
                f'rate(kafka_server_brokertopicmetrics_replicationbytesin_total{{topic="",{NODE}}}[$__rate_interval])',
            ),
            (
                "Connections",
                "short",
                "{{instance}} {{listener}}",
                f"kafka_server_socketservermetrics_connection_count{{{NODE}}}",
            ),
            (
                "Requests",
                "reqps",
                "{{request}}",
                f"sum by (request) ({rate('kafka_network_requestmetrics_requests_total')})",
            ),
        ],
    ),
    (
        "Latency",
        [
            (
                "Produce, 99th percentile",
                "s",
                "{{instance}}",
                p99("moldau_request_seconds", f'request="Produce",{NODE}'),
            ),
            (
                "Fetch, mean time of its own",
                "ms",
                "{{instance}}",
                mean_ms("local", "Fetch"),
            ),
            (
                "Where the time of Produce went",
                "ms",
                "{{instance}} waiting",
                mean_ms("remote", "Produce"),
            ),
            (
                "Event loop delay, 99th percentile",
                "s",
                "{{instance}}",
                p99("moldau_loop_delay_seconds"),
            ),
            (
                "Flush, 99th percentile",
                "s",
                "{{instance}}",
                p99("moldau_log_flush_seconds"),
            ),
            (
                "Errors",
                "reqps",
                "{{request}} {{error}}",
                f"sum by (request, error) ({rate('kafka_network_requestmetrics_errors_total')})",
            ),
        ],
    ),
    (
        "Consumer groups and transactions",
        [
            ("Lag in records", "short", "{{consumergroup}} {{topic}}", "topk(20, kafka_consumergroup_lag_sum)"),
            (
                "Lag in seconds",
                "s",
                "{{consumergroup}} {{topic}}",
                "topk(20, max by (consumergroup, topic) (kafka_consumergroup_lag_seconds))",
            ),
            ("Members", "short", "{{consumergroup}}", "kafka_consumergroup_members"),
            ("Groups by state", "short", "{{state}}", "sum by (state) (moldau_groups)"),
            ("Transactions by state", "short", "{{state}}", "sum by (state) (moldau_transactions)"),
            ("Oldest open transaction", "s", "{{instance}}", f"moldau_oldest_transaction_seconds{{{NODE}}}"),
        ],
    ),
    (
        "Replication, quorum, disks, process",
        [
            (
                "ISR shrinks and expansions",
                "short",
                "{{instance}}",
                f"increase(kafka_server_replicamanager_isrshrinks_total{{{NODE}}}[$__rate_interval])",
            ),
            ("Quorum: lag behind the controller", "short", "node {{node}}", "moldau_quorum_lag_records"),
            ("Elections seen", "short", "{{instance}}", f"increase(moldau_quorum_elections_total{{{NODE}}}[1h])"),
            ("Bytes of logs", "bytes", "{{instance}} {{logdirectory}}", f"moldau_log_dir_log_bytes{{{NODE}}}"),
            ("Free on disk", "bytes", "{{instance}} {{logdirectory}}", f"moldau_disk_free_bytes{{{NODE}}}"),
            ("Dirtiest log", "percent", "{{instance}}", f"kafka_log_logcleanermanager_max_dirty_percent{{{NODE}}}"),
            (
                "Processor",
                "percentunit",
                "{{instance}}",
                f"rate(process_cpu_seconds_total{{{NODE}}}[$__rate_interval])",
            ),
            ("Memory", "bytes", "{{instance}}", f"process_resident_memory_bytes{{{NODE}}}"),
            ("Descriptors", "short", "{{instance}}", f"process_open_fds{{{NODE}}}"),
        ],
    ),
]


def dashboard() -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    top = 0
    for row, wanted in ROWS:
        panels.append({"type": "row", "title": row, "gridPos": _place(0, top, WIDTH, 1), "id": len(panels) + 1})
        top += 1
        is_health = row == "Health"
        columns, height = (len(wanted), 4) if is_health else (COLUMNS, 7)
        width = WIDTH // columns
        for at, (title, unit, legend, query) in enumerate(wanted):
            panels.append(
                {
                    "id": len(panels) + 1,
                    "type": "stat" if is_health else "timeseries",
                    "title": title,
                    "datasource": {"type": "prometheus", "uid": "${datasource}"},
                    "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
                    "gridPos": _place(at % columns * width, top + at // columns * height, width, height),
                    "targets": [{"expr": query, "legendFormat": legend or "__auto", "refId": "A"}],
                }
            )
        top += -(-len(wanted) // columns) * height
    return {
        "title": "Moldau",
        "uid": "moldau",
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "tags": ["moldau", "kafka"],
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus"},
                {
                    "name": "instance",
                    "type": "query",
                    "datasource": {"type": "prometheus", "uid": "${datasource}"},
                    "query": "label_values(moldau_ready, instance)",
                    "multi": True,
                    "includeAll": True,
                    "current": {"text": "All", "value": "$__all"},
                    "refresh": 2,
                },
            ]
        },
        "panels": panels,
    }


def _place(x: int, y: int, w: int, h: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": w, "h": h}


def main() -> None:
    text = json.dumps(dashboard(), indent=1) + "\n"
    if sys.argv[1:] == ["--check"]:
        if TARGET.read_text() != text:
            sys.exit("deploy/grafana/moldau.json is not what scripts/make_dashboard.py makes: run it")
        return
    TARGET.write_text(text)


if __name__ == "__main__":
    main()
