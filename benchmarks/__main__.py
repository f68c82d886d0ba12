"""`make bench`: measure every room beside its peers and rewrite docs/benchmarks.md, with plots.

`python -m benchmarks wire records` measures only these and leaves the rest of the page as it was.
"""

import importlib
import json
import os
import platform
import sys
import textwrap
from pathlib import Path

from benchmarks.rows import Row

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
PLOTS = ROOT / "docs" / "benchmarks"
NUMBERS = PLOTS / "numbers.json"
ROOMS = {
    "wire": "Messages: encoding and decoding beside kio and kafka-python",
    "records": "Record batches beside aiokafka (Cython), kafka-python and kio",
    "log": "The log beside the bare system calls (the median of 11 rounds; in brackets the extremes)",
    "net": "The reactor beside asyncio streams, and the timing wheel",
    "broker": "The broker beside Apache Kafka",
    "tls": "TLS beside Apache Kafka's TLS (in per cent: of what the same broker does without)",
    "coordinators": "Groups and transactions beside Apache Kafka",
    "cluster": "Three nodes beside three of Apache Kafka",
    "toolkit": "The toolkit beside plain confluent-kafka, aiokafka and FastStream",
    "delays": "Delayed messages",
    "outbox": "The outbox's relay, from committed rows to acknowledged and confirmed ones",
    "spark": "Spark on topics beside Spark's own Kafka connector",
}


def shown(value: float) -> str:
    if value >= 100_000:
        return f"{value / 1e6:,.2f}M"
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:,.2f}" if value < 10 else f"{value:,.1f}"


def ratio(row: Row, peer: float) -> str:
    """How many times better we are; below one is worse."""
    better = row.ours / peer if row.better == "higher" else peer / row.ours
    return f"{better:.2f}x"


def table(rows: list[Row]) -> list[str]:
    peers = list(dict.fromkeys(name for row in rows for name in row.peers))
    head = ["", "Moldau", *peers, "target"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        cells = [row.name, f"{shown(row.ours)} {row.unit}"]
        for peer in peers:
            value = row.peers.get(peer)
            cells.append("" if value is None else f"{shown(value)} ({ratio(row, value)})")
        lines.append("| " + " | ".join([*cells, row.target]) + " |")
    return lines


def plot(room: str, rows: list[Row]) -> bool:
    """Bars of how many times better we are than each peer. False if there is nothing to compare."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = room  # the same numbers give the same file
    from matplotlib import pyplot

    bars = [(f"{row.name} ({peer})", row, value) for row in rows for peer, value in row.peers.items()]
    if not bars:
        return False
    figure, axes = pyplot.subplots(figsize=(9, 0.6 + 0.32 * len(bars)))
    factors = [row.ours / value if row.better == "higher" else value / row.ours for _, row, value in bars]
    colours = ["#2a7f62" if factor >= 1 else "#b5533c" for factor in factors]
    axes.barh([name for name, _, _ in bars], factors, color=colours)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlabel("times better than the peer (logarithmic)")
    axes.invert_yaxis()
    axes.tick_params(labelsize=8)
    figure.tight_layout()
    PLOTS.mkdir(exist_ok=True)
    figure.savefig(PLOTS / f"{room}.svg", metadata={"Date": None})
    pyplot.close(figure)
    return True


def page(numbers: dict[str, list[Row]]) -> str:
    lines = [
        "# Benchmarks",
        "",
        *textwrap.wrap(
            "Written by `make bench`. Every figure stands beside what others reach in the same run on the same machine;"
            " what counts is the ratio in brackets (above 1x: Moldau is better). Absolute numbers belong to the"
            f" machine: {os.cpu_count()} cores, Python {platform.python_version()}, {platform.system()}.",
            120,
            break_on_hyphens=False,
        ),
    ]
    for room, title in ROOMS.items():
        if room in numbers:
            lines += ["", f"## {title}", "", *table(numbers[room])]
            if plot(room, numbers[room]):
                lines += ["", f"![{title}](benchmarks/{room}.svg)"]
    return "\n".join([*lines, ""])


def main() -> None:
    wanted = sys.argv[1:] or list(ROOMS)
    PLOTS.mkdir(parents=True, exist_ok=True)
    stored = json.loads(NUMBERS.read_text()) if NUMBERS.exists() else {}
    numbers = {room: [Row(**row) for row in rows] for room, rows in stored.items()}
    for room in wanted:
        if not (Path(__file__).parent / f"{room}.py").exists():
            continue
        print(f"measuring {room} …", flush=True)
        numbers[room] = importlib.import_module(f"benchmarks.{room}").rows()
        print("\n".join(table(numbers[room])), flush=True)
        plain = {
            name: [{field: getattr(row, field) for field in row.__slots__} for row in rows]
            for name, rows in numbers.items()
        }
        NUMBERS.write_text(json.dumps(plain, indent=1) + "\n")
        PAGE.write_text(page(numbers))


if __name__ == "__main__":
    main()
