"""Is a piece of a file in memory? If not, a thread fetches it, so that one reader of old data does not stall the loop.

Linux can be asked to read without waiting (RWF_NOWAIT). Elsewhere, and on file systems that cannot tell, everything
counts as warm and `sendfile` waits for the disk.
"""

import contextlib
import errno
import os

from moldau.seams.disk import Buffer, FileRegion

_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)
_WARM_STEP_BYTES = 256 * 1024
WARM_BYTES = 1024 * 1024
"""How much is fetched at once: enough to hide the way through the thread, little enough not to evict others' pages."""


def is_cold(fd: int, position: int, length: int) -> bool:
    """Whether reading this would wait for the disk, judged by its first and last byte."""
    if _NOWAIT is None or length <= 0:
        return False
    probe = bytearray(1)
    try:
        os.preadv(fd, (probe,), position, _NOWAIT)
        os.preadv(fd, (probe,), position + length - 1, _NOWAIT)
    except OSError as error:
        return error.errno == errno.EAGAIN
    return False


def read_if_warm(region: FileRegion) -> Buffer | None:
    """The region's bytes, or None if reading them would wait for the disk. Fewer bytes: the file is too short."""
    fd = region.file.fileno()
    if _NOWAIT is not None and fd is not None:
        data = bytearray(region.length)
        try:
            # A short read may also mean the end of the file: only one that waits can tell.
            return data if os.preadv(fd, (data,), region.position, _NOWAIT) == region.length else None
        except OSError as error:
            if error.errno == errno.EAGAIN:
                return None
    return region.read()


def warm(fd: int, position: int, length: int) -> None:
    """Bring it into the page cache. For a thread: waits for the disk.

    The file may be closed meanwhile, even its number reused: then some other bytes are read, and thrown away too.
    """
    end = position + length
    with contextlib.suppress(OSError):
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(fd, position, length, os.POSIX_FADV_WILLNEED)
        while position < end:
            data = os.pread(fd, min(_WARM_STEP_BYTES, end - position), position)
            if not data:
                return
            position += len(data)
