"""Disk. Files that know the difference between written and flushed.

Written bytes survive the process; only flushed bytes survive the machine. The simulated disk in the tests
takes that literally: a crash keeps an arbitrary part of what was written and not flushed.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import struct
import sys
import threading
from dataclasses import dataclass
from typing import NamedTuple, Protocol

Buffer = bytes | bytearray | memoryview
_pwrite = os.pwrite  # every append's call
_READ_BYTES = 1 << 16
SPARE_DESCRIPTORS = 24
_NEEDED_DESCRIPTORS = 12
_WHOLE_FILE = struct.pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)  # struct flock


def flush_descriptor(fd: int) -> None:
    """fsync, down to the medium. On macOS that leaves the bytes in the memory of the drive: F_FULLFSYNC asks for more,
    where the file system knows it."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        try:
            fcntl.fcntl(fd, full)
        except OSError:
            pass  # a network volume, say: what it can do, fsync does
        else:
            return
    os.fsync(fd)


def reserve(fd: int, position: int, length: int) -> None:
    """Make blocks for this part of a file, which reads as zeros then, or ENOSPC. macOS has no call for that, and no
    other file system than Linux's is trusted with a hole: they get the zeros themselves."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, position, length)
        return
    zeros = bytes(min(length, _READ_BYTES))
    end = position + length
    while position < end:
        position += os.pwrite(fd, zeros[: end - position], position)


class DiskFile(Protocol):
    """A file open for appending and positional reading. Not shared between threads, except `flush` and `read`."""

    @property
    def size(self) -> int:
        """Bytes in the file, counting what was appended through this object."""

    def append(self, data: Buffer) -> None:
        """Write all of it at the end, or nothing: on OSError the file keeps its former size."""

    def read(self, position: int, length: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the file."""

    def flush(self) -> None:
        """fsync: what was written so far survives power loss."""

    def truncate(self, size: int) -> None: ...

    def fileno(self) -> int | None:
        """The descriptor for `sendfile`, or None where there is none (the simulator): then `read` is used."""

    def close(self) -> None:
        """Give the descriptor back now. Dropping the last reference does the same, so a region that is still being
        sent keeps its file readable even after the log closed, renamed or removed it."""


class MappedFile(Protocol):
    """A file mapped into memory, for the indexes. `view` is writable and stays valid until `resize` or `close`.

    Growing reserves the blocks: a full disk is an OSError here, not a signal at some later store into the mapping.
    """

    @property
    def view(self) -> memoryview: ...

    def resize(self, size: int) -> None: ...

    def close(self) -> None: ...


class DirEntry(NamedTuple):
    name: str
    size: int
    is_dir: bool


class DiskLock(Protocol):
    def release(self) -> None: ...


class Disk(Protocol):
    def open(self, path: str, *, create: bool = True) -> DiskFile:
        """Open for reading and appending, created if missing; without `create`, FileNotFoundError."""

    def map(self, path: str, size: int) -> MappedFile:
        """Map `size` bytes, growing (with zeros) or shrinking the file to that size."""

    def read_file(self, path: str) -> bytes: ...

    def write_file_atomically(self, path: str, data: bytes, *, flush: bool = True) -> None:
        """Temporary file, flush, rename, flush the folder: readers see the old content or the new, never a mix.

        Without `flush` that holds as long as the machine stays up; a power loss may leave the old content, the new,
        or a damaged file. For files that can be rebuilt, or that a later `flush_file` makes durable."""

    def flush_file(self, path: str) -> None:
        """fsync a file by name, stores into its mappings included; a missing one is fine."""

    def rename(self, source: str, target: str) -> None: ...

    def remove(self, path: str) -> None:
        """Remove a file; a missing one is fine."""

    def remove_tree(self, path: str) -> None: ...

    def make_dirs(self, path: str) -> None:
        """Make a folder, and those it lies in; an existing one is fine. For the first start only: see `make_dir`."""

    def make_dir(self, path: str) -> None:
        """Make a folder in an existing one; an existing one is fine. If the disk under it is gone, this fails, where
        `make_dirs` would make an empty tree in its place."""

    def list_dir(self, path: str) -> list[str]:
        """Names in the folder, sorted."""

    def scan_dir(self, path: str) -> list[DirEntry]:
        """What is in the folder, sorted by name, in one go."""

    def exists(self, path: str) -> bool: ...

    def file_size(self, path: str) -> int: ...

    def modified_ms(self, path: str) -> int: ...

    def set_modified_ms(self, path: str, modified_ms: int) -> None: ...

    def lock(self, path: str) -> DiskLock:
        """Lock a file against other processes (Java's locks included); BlockingIOError if another one holds it, any
        other OSError if the file cannot be had."""

    def flush_dir(self, path: str) -> None:
        """Make creations, renames and removals in this folder durable."""

    def flush_volume(self, path: str) -> None:
        """Make everything written to the volume that holds `path` durable."""

    def space(self, path: str) -> tuple[int, int]:
        """(total, usable) bytes of the volume."""

    def check_descriptors(self) -> None:
        """OSError (see `is_shortage`) if a few files cannot be opened now, because too many are."""


@dataclass(slots=True, frozen=True)
class FileRegion:
    """Bytes of a file that leave through `sendfile` without entering the process."""

    file: DiskFile
    position: int
    length: int

    def read(self) -> bytes:
        return self.file.read(self.position, self.length)


def is_shortage(error: OSError) -> bool:
    """Whether the process, or the machine, has no descriptor left: nothing is wrong with the disk, and it passes."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


class Descriptors:
    """Opens files, and holds a few descriptors back for the moment when there is none left: files come before sockets,
    which would otherwise take them all."""

    __slots__ = ("_lock", "_spare", "_taken")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spare: list[int] = []
        self._taken = False

    def open(self, path: str, flags: int) -> int:
        if not self._taken:
            self._take_spare()
        try:
            return os.open(path, flags | os.O_CLOEXEC, 0o644)
        except OSError as error:
            if not is_shortage(error) or not self._give_up_spare():
                raise
            return os.open(path, flags | os.O_CLOEXEC, 0o644)

    def check(self) -> None:
        """OSError if fewer are held back than one operation on a log may need."""
        if len(self._spare) < _NEEDED_DESCRIPTORS:
            self._take_spare()
            if len(self._spare) < _NEEDED_DESCRIPTORS:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def map(self, fd: int, size: int) -> mmap.mmap:
        """A mapping holds a descriptor of its own."""
        try:
            return mmap.mmap(fd, size)
        except OSError as error:
            if not is_shortage(error) or not self._give_up_spare():
                raise
            return mmap.mmap(fd, size)

    def _take_spare(self) -> None:
        with self._lock, contextlib.suppress(OSError):
            self._taken = True
            while len(self._spare) < SPARE_DESCRIPTORS:
                self._spare.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def _give_up_spare(self) -> bool:
        """One now; they are taken back when another file is opened and there is room."""
        with self._lock:
            self._taken = False
            if not self._spare:
                return False
            os.close(self._spare.pop())
            return True

    def __del__(self) -> None:
        for fd in getattr(self, "_spare", ()):
            os.close(fd)


class RealFile:
    __slots__ = ("_fd", "_size", "path")

    def __init__(self, descriptors: Descriptors, path: str, *, create: bool = True) -> None:
        self.path = path
        self._fd = descriptors.open(path, os.O_RDWR | (os.O_CREAT if create else 0))
        self._size = os.fstat(self._fd).st_size

    @property
    def size(self) -> int:
        return self._size

    def append(self, data: Buffer) -> None:
        start = self._size
        end = start + len(data)
        try:
            written = _pwrite(self._fd, data, start)
            if start + written < end:
                self._append_rest(memoryview(data)[written:], start + written)
        except OSError:
            # A part of the write may be there: truncate it, so that the next append starts where this one did.
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, start)
            raise
        self._size = end

    def _append_rest(self, rest: memoryview, position: int) -> None:
        while rest:
            written = os.pwrite(self._fd, rest, position)
            if written == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
            rest = rest[written:]
            position += written

    def read(self, position: int, length: int) -> bytes:
        data = os.pread(self._fd, length, position)
        if len(data) == length or not data:
            return data
        parts = [data]
        got = len(data)
        while got < length and (more := os.pread(self._fd, length - got, position + got)):
            parts.append(more)
            got += len(more)
        return b"".join(parts)

    def flush(self) -> None:
        flush_descriptor(self._fd)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)
        self._size = size

    def fileno(self) -> int | None:
        return self._fd

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:  # the constructor may have failed before there was a descriptor
            self.close()


class RealMappedFile:
    __slots__ = ("_descriptors", "_map", "_path", "_view")

    def __init__(self, descriptors: Descriptors, path: str, size: int) -> None:
        self._descriptors = descriptors
        self._path = path
        self._map: mmap.mmap | None = None
        self._view = memoryview(b"")
        self._remap(size)

    def _remap(self, size: int) -> None:
        """The former mapping is given up last: whatever fails leaves it as it was."""
        fd = self._descriptors.open(self._path, os.O_RDWR | os.O_CREAT)
        try:
            former = os.fstat(fd).st_size
            if size > former:
                # A store into a hole of a full disk is a SIGBUS that kills the process; this is an ENOSPC instead.
                reserve(fd, former, size - former)
            mapped = self._descriptors.map(fd, size) if size else None  # a mapping cannot be empty
            self.close()
            if size < former:
                os.ftruncate(fd, size)
            if mapped is not None:
                self._map, self._view = mapped, memoryview(mapped)
        finally:
            os.close(fd)  # the mapping has its own

    @property
    def view(self) -> memoryview:
        return self._view

    def resize(self, size: int) -> None:
        self._remap(size)

    def close(self) -> None:
        self._view.release()
        self._view = memoryview(b"")
        if self._map is not None:
            self._map.close()
            self._map = None


class RealLock:
    __slots__ = ("_fd",)

    def __init__(self, descriptors: Descriptors, path: str) -> None:
        self._fd = descriptors.open(path, os.O_RDWR | os.O_CREAT)
        try:
            if sys.platform == "linux":
                # Java's kind of lock excludes other processes only, and is lost with any descriptor of the file; this
                # kind excludes Java's, belongs to the descriptor, and so keeps out a second broker in a test as well.
                fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _WHOLE_FILE)
            else:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._fd)
            if error.errno in (errno.EAGAIN, errno.EACCES):  # which of the two is up to the system
                raise BlockingIOError(errno.EAGAIN, "another process holds the lock", path) from error
            raise

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class RealDisk:
    """The machine's own file system."""

    def __init__(self) -> None:
        self._descriptors = Descriptors()
        self.check_descriptors = self._descriptors.check  # every read asks: one call, not two

    def open(self, path: str, *, create: bool = True) -> RealFile:
        return RealFile(self._descriptors, path, create=create)

    def map(self, path: str, size: int) -> RealMappedFile:
        return RealMappedFile(self._descriptors, path, size)

    def read_file(self, path: str) -> bytes:
        # Not `open`: a node with ten thousand partitions reads three small files of each before it answers anybody.
        fd = self._descriptors.open(path, os.O_RDONLY)
        try:
            parts = []
            while part := os.read(fd, _READ_BYTES):
                parts.append(part)
        finally:
            os.close(fd)
        return b"".join(parts)

    def write_file_atomically(self, path: str, data: bytes, *, flush: bool = True) -> None:
        temporary = path + ".tmp"
        fd = self._descriptors.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            if flush:
                flush_descriptor(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)
        if flush:
            self.flush_dir(os.path.dirname(path))

    def flush_file(self, path: str) -> None:
        try:
            fd = self._descriptors.open(path, os.O_RDWR)
        except FileNotFoundError:
            return
        try:
            flush_descriptor(fd)
        finally:
            os.close(fd)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def remove_tree(self, path: str) -> None:
        import shutil  # loads three compression libraries, for the day a topic is deleted

        shutil.rmtree(path, ignore_errors=True)

    def make_dirs(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def make_dir(self, path: str) -> None:
        try:
            os.mkdir(path)
        except FileExistsError:
            if not os.path.isdir(path):
                raise

    def list_dir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def scan_dir(self, path: str) -> list[DirEntry]:
        with os.scandir(path) as entries:
            return sorted(
                DirEntry(entry.name, 0, True) if entry.is_dir() else DirEntry(entry.name, entry.stat().st_size, False)
                for entry in entries
            )

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def file_size(self, path: str) -> int:
        return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))

    def lock(self, path: str) -> RealLock:
        return RealLock(self._descriptors, path)

    def flush_dir(self, path: str) -> None:
        fd = self._descriptors.open(path or ".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            flush_descriptor(fd)
        finally:
            os.close(fd)

    def flush_volume(self, path: str) -> None:
        import ctypes

        fd = self._descriptors.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
            if syncfs is None:  # not Linux: flush all volumes, which is more than was asked for
                os.sync()
            elif syncfs(fd) != 0:
                error = ctypes.get_errno()
                raise OSError(error, os.strerror(error), path)
        finally:
            os.close(fd)

    def space(self, path: str) -> tuple[int, int]:
        stats = os.statvfs(path)
        return stats.f_blocks * stats.f_frsize, stats.f_bavail * stats.f_frsize
