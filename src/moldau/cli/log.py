"""`moldau log dump|verify|recover`: the files of a node, offline. Moldau's and Apache Kafka's are the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from moldau.cli.failure import ExitCode, counted, fail, misused, tell
from moldau.cli.frame import Commands, Output
from moldau.cli.output import size
from moldau.cli.places import show_time
from moldau.cli.record_forms import as_json

app = Commands(help="A node's files, offline: dump, verify, recover.")

Places = Annotated[
    list[Path], typer.Argument(metavar="PLACE...", help="Log dirs, folders of partitions, or files.", exists=True)
]


@app.command(
    examples=(
        "log dump moldau-data/orders-0 --records --from 1000 --max 20",
        "log dump moldau-data/__cluster_metadata-0 --decode --json",
    ),
)
def dump(
    output: Output,
    places: Places,
    show_records: Annotated[bool, typer.Option("--records", "-r", help="Records too, not only batches.")] = False,
    first: Annotated[int | None, typer.Option("--from", metavar="OFFSET", min=0, help="From this offset on.")] = None,
    most: Annotated[int | None, typer.Option("--max", "-n", min=1, help="At most so many rows a file.")] = None,
    decode: Annotated[
        bool, typer.Option("--decode", "-d", help="Records of the cluster's own topics, in words; implies --records.")
    ] = False,
) -> None:
    """Show what is in segments, indexes, snapshots and checkpoints."""
    files = [file for place in places for file in _files(place)]
    if not files:
        fail(f"no files of partitions in {', '.join(map(str, places))}", ExitCode.NOT_FOUND)
    for number, file in enumerate(files):
        rows = _limited(_rows(file, show_records=show_records or decode, decode=decode, first=first), most)
        if not output.as_json and output.template is None:
            output.line(("\n" if number else "") + f"{file}")
        try:
            if output.as_json or output.template is not None:
                for row in rows:
                    output.done("", {"file": str(file), **row})
            else:
                output.show(list(rows), empty="empty")
        except BrokenPipeError:
            raise
        except OSError as error:
            fail(f"cannot read {file}: {error.strerror}")


def _files(place: Path) -> list[Path]:
    from moldau.cli.log_files import partition_folders

    if place.is_file():
        return [place]
    wanted = (".log", ".checkpoint")
    return [file for folder in partition_folders(place) for file in sorted(folder.iterdir()) if file.suffix in wanted]


def _limited(rows: Iterable[dict[str, Any]], most: int | None) -> Iterator[dict[str, Any]]:
    for number, row in enumerate(rows):
        if most is not None and number >= most:
            return
        yield row


def _rows(file: Path, *, show_records: bool, decode: bool, first: int | None) -> Iterator[dict[str, Any]]:
    from moldau.cli import log_files

    suffix = file.suffix
    if suffix in (".log", ".checkpoint"):
        yield from _batch_rows(file, show_records=show_records, decode=decode, first=first or 0)
    elif suffix == ".index":
        yield from ({"offset": offset, "position": position} for offset, position in log_files.offset_entries(file))
    elif suffix == ".timeindex":
        for timestamp, offset in log_files.time_entries(file):
            yield {"timestamp": show_time(timestamp), "timestamp_ms": timestamp, "offset": offset}
    elif suffix == ".txnindex":
        yield from log_files.aborted_entries(file)
    elif suffix == ".snapshot":
        yield from _producer_rows(file)
    elif file.name.endswith("-checkpoint") or file.name.endswith(".properties"):
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            yield {"line": line}
    else:
        misused(f"{file} is no file that is known here: .log, .index, .timeindex, .txnindex, .snapshot, .checkpoint")


def _producer_rows(file: Path) -> Iterator[dict[str, Any]]:
    from moldau.log.errors import LogError
    from moldau.log.producers.snapshots import decode

    try:
        entries = decode(file.read_bytes())
    except LogError as error:
        fail(f"{file}: {error}", ExitCode.UNHEALTHY)
    for each in entries:
        yield {
            "producer_id": each.producer_id,
            "producer_epoch": each.epoch,
            "last_timestamp": show_time(each.last_timestamp),
            "open_since_offset": each.txn_first_offset if each.txn_first_offset >= 0 else None,
        }


def _batch_rows(file: Path, *, show_records: bool, decode: bool, first: int) -> Iterator[dict[str, Any]]:
    from moldau.cli.log_files import Torn, batches, records
    from moldau.records.batch import check_crc
    from moldau.records.errors import RecordsError

    try:
        for batch in batches(file):
            header = batch.header
            if header.last_offset < first:
                continue
            try:
                check_crc(batch.data, 0, header)
                crc = "ok"
            except RecordsError:
                crc = "wrong"
            if not show_records:
                yield {
                    "offset": header.base_offset,
                    "last": header.last_offset,
                    "records": header.record_count,
                    "position": batch.position,
                    "bytes": header.size_bytes,
                    "codec": header.codec.name.lower(),
                    "crc": crc,
                    "epoch": header.leader_epoch,
                    "producer_id": header.producer_id if header.has_producer_id else None,
                    "sequence": header.base_sequence if header.has_producer_id else None,
                    "transactional": header.is_transactional,
                    "control": header.is_control,
                    "timestamp": show_time(header.max_timestamp),
                }
                continue
            try:
                for record in records(batch):
                    if record.offset >= first:
                        yield _record_row(file, batch.header.is_control, record, decode=decode)
            except RecordsError as error:
                tell(f"{file}, position {batch.position}: {error}")
    except Torn as error:
        tell(f"{file}, position {error.position}: {error}")


def _record_row(file: Path, is_control: bool, record: Any, *, decode: bool) -> dict[str, Any]:
    key, value = as_json(record.key), as_json(record.value)
    if is_control:
        key, value = _control(record), None
    elif decode:
        key, value = _decoded(file.parent.name, record)
    return {
        "offset": record.offset,
        "timestamp": show_time(record.timestamp),
        "key": key,
        "value": value,
        "headers": [f"{name.decode(errors='replace')}={as_json(each)}" for name, each in record.headers],
    }


def _control(record: Any) -> str:
    from moldau.records.control import read_control_type

    try:
        return f"control {read_control_type(record.key).name.lower()}"
    except Exception as error:  # of a newer Kafka
        return f"control ({error})"


def _decoded(folder: str, record: Any) -> tuple[Any, Any]:
    """Records of the cluster's own topics; of others, what they are."""
    from moldau.cli.internal_records import decode_internal

    topic = folder.rpartition("-")[0]
    return decode_internal(topic, record.key, record.value)


@app.command()
def verify(
    output: Output,
    places: Places,
    quick: Annotated[bool, typer.Option("--quick", help="Batches and checksums, not every record.")] = False,
) -> None:
    """Look for damage: checksums, offsets, records, indexes. Exits with 6 if there is any; changes nothing."""
    from moldau.cli.log_files import partition_folders, verify_folder

    folders = [folder for place in places for folder in (partition_folders(place) if place.is_dir() else ())]
    if not folders:
        fail(f"no partitions in {', '.join(map(str, places))}", ExitCode.NOT_FOUND)
    found, batches, read = [], 0, 0
    for folder in _tracked(folders):
        problems, count, seen = verify_folder(folder, deep=not quick)
        found += problems
        batches += count
        read += seen
    rows = [each._asdict() for each in found]
    output.show(rows, document={"partitions": len(folders), "batches": batches, "bytes": read, "problems": rows})
    tell(f"{counted(len(folders), 'partition')}, {batches} batches, {size(read)}: {counted(len(found), 'problem')}")
    if found:
        tell("a segment that a crash left incomplete is truncated at the next start; `moldau log recover` does it now")
        raise typer.Exit(ExitCode.UNHEALTHY)


def _tracked(folders: list[Path]) -> Iterable[Path]:
    import sys

    if not sys.stderr.isatty() or len(folders) == 1:
        return folders
    from rich.console import Console
    from rich.progress import track

    return track(folders, description="verifying", console=Console(stderr=True), transient=True)


@app.command()
def recover(
    output: Output,
    log_dir: Annotated[Path, typer.Argument(metavar="LOG_DIR", help="One of a stopped node's log.dirs.")],
    partitions: Annotated[
        list[str] | None, typer.Option("--partition", "-p", metavar="TOPIC-N", help="Only this; may be repeated.")
    ] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Do it; without, what is wrong is shown.")] = False,
) -> None:
    """Check every record of a stopped node, truncate logs where they are damaged, and make their indexes anew.

    What comes after the damage is gone then: on a cluster, deleting the
    partition's folder and letting the node fetch it from the others is better.
    """
    from moldau.cli.log_recovery import recover_dir
    from moldau.log.errors import DirLocked, LogError

    if not log_dir.is_dir() or not (log_dir / "meta.properties").exists():
        misused(f"{log_dir} is none of a node's log.dirs: there is no meta.properties")
    try:
        rows = recover_dir(log_dir, set(partitions or ()), execute=execute)
    except DirLocked:
        fail(f"the node in {log_dir} is running: stop it first (`moldau log verify` reads the files of a running one)")
    except LogError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{log_dir}: {error.strerror or error}")
    missing = set(partitions or ()) - {row["partition"] for row in rows}
    if missing:
        fail(f"there is no {', '.join(sorted(missing))} in {log_dir}", ExitCode.NOT_FOUND)
    output.show(
        [row for row in rows if row["what"]],
        document=rows,
        empty=f"{counted(len(rows), 'partition')}: nothing is wrong",
    )
    if not execute and any(row["what"] for row in rows):
        tell("nothing was changed: add --execute to do it")
        raise typer.Exit(ExitCode.UNHEALTHY)
