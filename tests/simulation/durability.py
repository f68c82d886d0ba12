"""Whether a machine that loses power now finds what it relies on: below the recovery point on its disk, every record of
that log is on its disk too, and can be read.
"""

from __future__ import annotations

import contextlib

from moldau.log.checkpoints import RECOVERY_POINT, read_offsets
from moldau.log.dirs.folders import folder_name
from moldau.log.dirs.log_dir import WITHOUT_GAPS
from moldau.log.errors import CorruptCheckpoint
from moldau.log.segments import SWAP_SUFFIX
from moldau.records import CorruptBatch, check_crc, iter_batches
from tests.simulation.history import History
from tests.support.sim_disk import SimDisk

_LOG = ".log"


class _Durable:
    """The durable half of a disk, as `read_offsets` reads it."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk

    def read_file(self, path: str) -> bytes:
        data = self._disk.durable_file(path)
        if data is None:
            raise FileNotFoundError(path)
        return data


def check_recovery_points(history: History, host: str, disk: SimDisk, dirs: list[str]) -> None:
    """Recovery point <= flushed, as the disk has it. Of a disk on which bits turned nothing is known."""
    if disk.is_rotten:
        return
    for path in dirs:
        try:
            points = read_offsets(_Durable(disk), f"{path}/{RECOVERY_POINT}")  # type: ignore[arg-type]  # all it uses
        except CorruptCheckpoint:
            continue  # rot: it says nothing
        for key, point in points.items():
            if key == WITHOUT_GAPS or point == 0:
                continue
            end = _durable_end(disk, f"{path}/{folder_name(*key)}", point)
            if end is not None and end < point:
                history.violated(
                    "the recovery point is not beyond what was flushed",
                    f"{host} {path} {key}: {point}, and the disk has it up to {end}",
                )


def _durable_end(disk: SimDisk, folder: str, point: int) -> int | None:
    """Up to where the durable files of a log can be read, or at least `point`; None if it is not there, or begins
    beyond. A cleaned segment that is about to take its place counts."""
    segments = sorted(
        (int(name.partition(".")[0]), f"{folder}/{name}")
        for name in disk.durable_names(folder)
        if name.removesuffix(SWAP_SUFFIX).endswith(_LOG)
    )
    if not segments:
        if not disk.exists(folder):
            return None  # its name is not on the disk, or it was deleted
        begun = [int(name.partition(".")[0]) for name in disk.list_dir(folder) if name.endswith(_LOG)]
        return None if begun and min(begun) >= point else 0  # all before that was deleted, and it begins anew
    if segments[0][0] >= point:
        return None
    end = segments[0][0]
    for base, path in segments:
        if base >= point:
            break
        data = disk.durable_file(path) or b""
        with contextlib.suppress(CorruptBatch):
            for position, header in iter_batches(data):
                check_crc(data, position, header)
                end = max(end, header.next_offset)
                if end >= point:
                    return end
    return end
