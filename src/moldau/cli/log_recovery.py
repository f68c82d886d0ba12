"""Recovering a stopped node's logs from their first record on: what its start does from the recovery point on.

The dir's lock is taken, so a running node is safe from it. The metadata log is left alone: it has rules of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from moldau.cli.log_files import Problem, partition_folders, segments, verify_folder
from moldau.log.errors import LogError

_METADATA = "__cluster_metadata"


def recover_dir(log_dir: Path, only: set[str], *, execute: bool) -> list[dict[str, Any]]:
    """A row for each partition, with what is, or was, wrong with it."""
    from moldau.log.dirs.log_dir import LogDir
    from moldau.seams import RealDisk

    disk = RealDisk()
    dir_ = LogDir(str(log_dir), disk, _raise)
    dir_.open(may_be_made=False)
    try:
        folders = [
            each
            for each in partition_folders(log_dir)
            if each.name.rpartition("-")[0] != _METADATA and (not only or each.name in only)
        ]
        if not execute:
            return [_looked_at(each) for each in folders]
        dir_.take_over()
        return [_recovered(each, dir_) for each in folders]
    finally:
        dir_.unlock()


def _raise(path: str, error: OSError) -> None:
    raise error


def _looked_at(folder: Path) -> dict[str, Any]:
    problems, _, _ = verify_folder(folder)
    whats = [f"{Path(each.file).name} at {each.position}: {each.what}" for each in problems[:3]]
    more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
    return {"partition": folder.name, "what": "; ".join(whats) + more + _would_lose(folder)}


def _would_lose(folder: Path) -> str:
    """What recovery cuts off: all from the first batch on that is not whole and true. It looks at no single record."""
    damage, _, _ = verify_folder(folder, deep=False)
    first: Problem | None = next((each for each in damage if each.file.endswith(".log")), None)
    if first is None:
        return ""
    behind = sum(each.stat().st_size for each in segments(folder) if str(each) >= first.file) - (first.position or 0)
    return f"; all from offset {first.offset} on would be removed, {behind} bytes"


def _recovered(folder: Path, dir_: Any) -> dict[str, Any]:
    from moldau.log.checkpoints import LOG_START_OFFSET
    from moldau.log.config import LogConfig
    from moldau.log.context import LogContext
    from moldau.log.dirs.folders import parse_folder
    from moldau.log.recovery.recovery import Gaps, RecoveryReport, open_log

    name = parse_folder(folder.name)
    if name is None:
        raise LogError(f"{folder.name} is no partition's folder: they are called TOPIC-N")
    report = RecoveryReport()
    log = open_log(
        LogContext(dir_.disk),
        str(folder),
        *name.topic_partition,
        LogConfig(),
        recovery_point=0,
        log_start_offset=dir_.read_checkpoint(LOG_START_OFFSET).get(name.topic_partition, 0),
        clean=False,
        gaps=Gaps.ANYWHERE,  # a gap may be what compaction left: nothing is removed for it
        report=report,
    )
    log.flush()
    log.close()
    return {"partition": folder.name, "what": "; ".join(report.lines)}
