"""A disk in memory that forgets: `crash` gives the disk a machine would find after losing power.

- Written and not flushed: every 512-byte page that changed may be old or new, a file that grew may have any size in
  between, and what was never written reads as zeros.
- Names (created, renamed, removed): kept in order up to an arbitrary point, as a journalling file system does; a flush
  of any folder makes all earlier changes of names durable.
- `crash_at=n` stops the world just before the n-th change, by raising `Crash` (no `except Exception` stops that).
- `fail` makes paths under a prefix raise OSError; `space_left_bytes` makes the disk fill up; `unmount` takes a part of
  it away as a whole, and `mount` brings it back.
"""

import errno
import os
import random
from collections.abc import Callable

from moldau.seams import Random
from moldau.seams.disk import Buffer, DirEntry

PAGE_BYTES = 512


class Crash(BaseException):
    """The machine lost power here."""


class _Inode:
    __slots__ = ("data", "durable", "modified_ms")

    def __init__(self, durable: bytes = b"", modified_ms: int = 0) -> None:
        self.data = bytearray(durable)
        self.durable = durable
        self.modified_ms = modified_ms

    def after_crash(self, chance: random.Random) -> "_Inode":
        old, new = self.durable, bytes(self.data)
        if old == new or chance.random() < 0.3:
            return _Inode(new if chance.random() < 0.5 else old, self.modified_ms)
        size = chance.randint(min(len(old), len(new)), max(len(old), len(new)))
        result = bytearray(old[:size].ljust(size, b"\0"))
        for start in range(0, size, PAGE_BYTES):
            page = slice(start, min(start + PAGE_BYTES, size))
            if old[page] != new[page] and chance.random() < 0.5:
                result[page] = new[page].ljust(page.stop - page.start, b"\0")
        return _Inode(bytes(result), self.modified_ms)


class SimFile:
    def __init__(self, disk: "SimDisk", path: str, inode: _Inode) -> None:
        self._disk, self._path, self._inode = disk, path, inode

    @property
    def size(self) -> int:
        return len(self._inode.data)

    def append(self, data: Buffer) -> None:
        self._disk.change("append", self._path, len(data))
        self._inode.data += data

    def write_at(self, position: int, data: Buffer) -> None:
        """For tests that damage a file."""
        self._disk.change("write", self._path, max(0, position + len(data) - self.size))
        self._inode.data[position : position + len(data)] = data

    def read(self, position: int, length: int) -> bytes:
        self._disk.check(self._path, "read")
        return bytes(self._inode.data[position : position + length])

    def flush(self) -> None:
        self._disk.change("flush", self._path)
        self._inode.durable = bytes(self._inode.data)

    def truncate(self, size: int) -> None:
        self._disk.change("truncate", self._path)
        data = self._inode.data
        self._inode.data = data[:size] if size <= len(data) else data + bytes(size - len(data))

    def fileno(self) -> int | None:
        return None

    def close(self) -> None:
        """Nothing to give back."""


class SimMappedFile:
    def __init__(self, disk: "SimDisk", path: str, inode: _Inode, size: int) -> None:
        self._disk, self._path, self._inode = disk, path, inode
        self._view = memoryview(b"")
        self.resize(size)

    @property
    def view(self) -> memoryview:
        return self._view

    def resize(self, size: int) -> None:
        self.close()
        former = len(self._inode.data)
        if size != former:
            self._disk.change("resize", self._path, max(0, size - former))
            data = self._inode.data
            self._inode.data = data[:size] + bytes(max(0, size - former))
        self._view = memoryview(self._inode.data)

    def close(self) -> None:
        self._view.release()
        self._view = memoryview(b"")


class SimLock:
    def __init__(self, disk: "SimDisk", path: str) -> None:
        self._disk, self._path = disk, path

    def release(self) -> None:
        self._disk.locks.discard(self._path)


class SimDisk:
    def __init__(self, crash_at: int | None = None) -> None:
        self.crash_at = crash_at
        self.changes = 0
        self.now_ms = 0
        self.space_left_bytes: int | None = None
        self.is_out_of_descriptors = False
        self.locks: set[str] = set()
        self._names: dict[str, _Inode] = {}
        self._dirs: set[str] = {"/"}
        self._durable_names: dict[str, _Inode] = {}
        self._durable_dirs: set[str] = {"/"}
        self._journal: list[tuple[str, str, str | _Inode]] = []
        self._faults: list[tuple[str, int, frozenset[str]]] = []
        self._unmounted: dict[str, tuple[dict[str, _Inode], set[str]]] = {}
        self.is_rotten = False  # bits have turned
        # Told of every use, change or not, before it happens.
        self.at_use: Callable[[str], None] | None = None
        # Called just before every change: a test can take a crashed copy at each of them in one run.
        self.before_change: Callable[[str], None] | None = None

    # -- trouble

    def change(self, what: str, path: str, grows_bytes: int = 0) -> None:
        """Called before every change of the disk: the place where power fails and disks break."""
        self.changes += 1
        if self.before_change is not None:
            self.before_change(f"{what} {path}")
        if self.changes == self.crash_at:
            raise Crash(f"power lost before change {self.changes}: {what} {path}")
        self.check(path, what)
        if self.space_left_bytes is not None:
            if grows_bytes > self.space_left_bytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            self.space_left_bytes -= grows_bytes

    def check(self, path: str, what: str) -> None:
        if self.at_use is not None:
            self.at_use(path)
        for prefix, code, kinds in self._faults:
            if path.startswith(prefix) and (not kinds or what in kinds):
                raise OSError(code, os.strerror(code), path)

    def fail(self, prefix: str, code: int = errno.EIO, *kinds: str) -> None:
        """From now on, changes and reads under `prefix` (of these kinds, or all) fail."""
        self._faults.append((prefix, code, frozenset(kinds)))

    def heal(self) -> None:
        """No file system comes back by that: a process must not see it while it runs."""
        self._faults.clear()
        self.space_left_bytes = None

    @property
    def unmounted(self) -> list[str]:
        return list(self._unmounted)

    def unmount(self, path: str, *, leaves_folder: bool) -> None:
        """The file system mounted at `path` is gone, and with it what is there, until `mount`; what is open stays
        usable, as after a lazy umount. The folder it was mounted on is there and empty, or not there."""
        assert path not in self._unmounted
        self.flush_volume_of(path)
        inside = path + "/"
        names = {name: inode for name, inode in self._names.items() if name.startswith(inside)}
        dirs = {folder for folder in self._dirs if folder == path or folder.startswith(inside)}
        self._unmounted[path] = (names, dirs)
        self._hide(path)
        if leaves_folder:
            self._dirs.add(path)
            self._durable_dirs.add(path)

    def mount(self, path: str) -> None:
        """It is back; what was written into its place meanwhile is hidden by it."""
        if path not in self._unmounted:
            return
        self.flush_volume_of(path)
        self._hide(path)
        names, dirs = self._unmounted.pop(path)
        for known in (self._names, self._durable_names):
            known.update(names)
        for folders in (self._dirs, self._durable_dirs):
            folders.update(dirs)

    def forget(self, path: str) -> None:
        """It never comes back."""
        self._unmounted.pop(path, None)

    def flush_volume_of(self, path: str) -> None:
        """Unmounting writes everything; names are not ours to tell apart, so all of them become durable."""
        for entry in self._journal:
            _apply(self._durable_names, self._durable_dirs, entry)
        self._journal.clear()
        for name, inode in self._names.items():
            if name.startswith(path + "/"):
                inode.durable = bytes(inode.data)

    def _hide(self, path: str) -> None:
        inside = path + "/"
        for known in (self._names, self._durable_names):
            for name in [name for name in known if name.startswith(inside)]:
                del known[name]
        for folders in (self._dirs, self._durable_dirs):
            folders.difference_update([each for each in folders if each == path or each.startswith(inside)])

    def crash(self, seed: int) -> "SimDisk":
        """What is there when the power comes back."""
        chance = random.Random(seed)
        after = SimDisk()
        after.now_ms, after.is_rotten = self.now_ms, self.is_rotten
        names, dirs = dict(self._durable_names), set(self._durable_dirs)
        for entry in self._journal[: chance.randint(0, len(self._journal))]:
            _apply(names, dirs, entry)
        known: dict[int, _Inode] = {}
        for path, inode in sorted(names.items()):
            known.setdefault(id(inode), inode.after_crash(chance))
            after._names[path] = known[id(inode)]
        after._dirs = dirs
        after._settle()
        after._unmounted = {
            path: ({name: inode.after_crash(chance) for name, inode in sorted(files.items())}, set(folders))
            for path, (files, folders) in self._unmounted.items()
        }
        return after

    def rot(self, random: Random, concerns: Callable[[str], bool], place: Callable[[bytes], int | None]) -> str | None:
        """Turn a bit of a file that is not the newest of its folder: a cold one. Where, if there is one."""
        newest: dict[str, str] = {}
        for path in sorted(self._names):
            if concerns(path):
                newest[os.path.dirname(path)] = path
        cold = [
            path
            for path, inode in sorted(self._names.items())
            if concerns(path) and path not in newest.values() and inode.data
        ]
        if not cold:
            return None
        path = cold[random.below(len(cold))]
        inode = self._names[path]
        position = place(bytes(inode.data))
        if position is None:
            return None
        self.damage(path, position, 1 << random.below(8))
        return f"{path}@{position}"

    def damage(self, path: str, position: int, mask: int) -> None:
        """Turn bits of a byte, for good, as if it had been written so."""
        self.is_rotten = True
        inode = self._existing(path)
        inode.data[position] ^= mask
        inode.durable = bytes(inode.data)

    def files(self) -> list[str]:
        return sorted(self._names)

    def durable_names(self, folder: str) -> list[str]:
        """The files of a folder that are certain to be there after the next loss of power."""
        inside = folder + "/"
        return [name[len(inside) :] for name in self._durable_names if name.startswith(inside)]

    def durable_file(self, path: str) -> bytes | None:
        """What is certain to be there after the next loss of power; None: perhaps no such file."""
        inode = self._durable_names.get(path)
        return None if inode is None else inode.durable

    def survived_process(self) -> "SimDisk":
        """What is there after the process died and the machine did not: everything written. What was not flushed may
        still be lost with the power, later."""
        after = SimDisk()
        after.now_ms, after.is_rotten = self.now_ms, self.is_rotten
        copies: dict[int, _Inode] = {}

        def copy(inode: _Inode) -> _Inode:
            known = copies.get(id(inode))
            if known is None:
                known = copies[id(inode)] = _Inode(inode.durable, inode.modified_ms)
                known.data = bytearray(inode.data)
            return known

        after._names = {path: copy(inode) for path, inode in self._names.items()}
        after._durable_names = {path: copy(inode) for path, inode in self._durable_names.items()}
        after._dirs, after._durable_dirs = set(self._dirs), set(self._durable_dirs)
        after._journal = [
            (kind, first, copy(second) if isinstance(second, _Inode) else second)
            for kind, first, second in self._journal
        ]
        after._unmounted = {
            path: ({name: copy(inode) for name, inode in files.items()}, set(folders))
            for path, (files, folders) in self._unmounted.items()
        }
        return after

    def _settle(self) -> None:
        self._durable_names, self._durable_dirs = dict(self._names), set(self._dirs)

    def _rename_entry(self, kind: str, first: str, second: "str | _Inode") -> None:
        entry = (kind, first, second)
        _apply(self._names, self._dirs, entry)
        self._journal.append(entry)

    # -- the seam

    def open(self, path: str, *, create: bool = True) -> SimFile:
        return SimFile(self, path, self._inode(path, create=create))

    def _inode(self, path: str, *, create: bool = True) -> _Inode:
        self.check(path, "open")
        inode = self._names.get(path)
        if inode is None:
            if not create or os.path.dirname(path) not in self._dirs:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            self.change("create", path)
            inode = _Inode(modified_ms=self.now_ms)
            self._rename_entry("create", path, inode)
        return inode

    def map(self, path: str, size: int) -> SimMappedFile:
        return SimMappedFile(self, path, self._inode(path), size)

    def read_file(self, path: str) -> bytes:
        self.check(path, "read")
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return bytes(self._names[path].data)

    def write_file_atomically(self, path: str, data: bytes, *, flush: bool = True) -> None:
        temporary = path + ".tmp"
        self.change("write", temporary, len(data))
        inode = _Inode(modified_ms=self.now_ms)
        inode.data = bytearray(data)
        self._rename_entry("create", temporary, inode)
        if flush:
            self.change("flush", temporary)
            inode.durable = data
        self.rename(temporary, path)
        if flush:
            self.flush_dir(os.path.dirname(path))

    def flush_file(self, path: str) -> None:
        inode = self._names.get(path)
        if inode is not None:
            self.change("flush", path)
            inode.durable = bytes(inode.data)

    def rename(self, source: str, target: str) -> None:
        if source not in self._names and source not in self._dirs:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        self.change("rename", source)
        self._rename_entry("rename", source, target)

    def remove(self, path: str) -> None:
        if path in self._names:
            self.change("remove", path)
            self._rename_entry("remove", path, "")

    def remove_tree(self, path: str) -> None:
        below = path + "/"
        for name in [name for name in self._names if name.startswith(below)]:
            self.remove(name)
        self.change("remove", path)
        self._rename_entry("remove_dir", path, "")

    def make_dirs(self, path: str) -> None:
        parts = path.strip("/").split("/")
        for depth in range(1, len(parts) + 1):
            folder = "/" + "/".join(parts[:depth])
            if folder not in self._dirs:
                self.change("mkdir", folder)
                self._rename_entry("mkdir", folder, "")

    def make_dir(self, path: str) -> None:
        self.check(path, "mkdir")
        if os.path.dirname(path) not in self._dirs:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if path not in self._dirs:
            self.change("mkdir", path)
            self._rename_entry("mkdir", path, "")

    def list_dir(self, path: str) -> list[str]:
        return [entry.name for entry in self.scan_dir(path)]

    def scan_dir(self, path: str) -> list[DirEntry]:
        self.check(path, "read")
        if path not in self._dirs:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        inside = path.rstrip("/") + "/"
        depth = len(inside)
        files = [
            DirEntry(name[depth:], len(inode.data), False)
            for name, inode in list(self._names.items())
            if name.startswith(inside) and "/" not in name[depth:]
        ]
        folders = [
            DirEntry(folder[depth:], 0, True)
            for folder in list(self._dirs)
            if folder.startswith(inside) and folder != inside and "/" not in folder[depth:]
        ]
        return sorted(files + folders)

    def exists(self, path: str) -> bool:
        return path in self._names or path in self._dirs

    def file_size(self, path: str) -> int:
        return len(self._existing(path).data)

    def modified_ms(self, path: str) -> int:
        return self._existing(path).modified_ms

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        self._existing(path).modified_ms = modified_ms

    def _existing(self, path: str) -> _Inode:
        inode = self._names.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return inode

    def lock(self, path: str) -> SimLock:
        if path in self.locks:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), path)
        self.locks.add(path)
        return SimLock(self, path)

    def flush_dir(self, path: str) -> None:
        if path not in self._dirs:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self.change("flush", path)
        for entry in self._journal:
            _apply(self._durable_names, self._durable_dirs, entry)
        self._journal.clear()

    def flush_volume(self, path: str) -> None:
        self.change("flush", path)
        for inode in self._names.values():
            inode.durable = bytes(inode.data)
        self.flush_dir(path)

    def check_descriptors(self) -> None:
        if self.is_out_of_descriptors:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def space(self, path: str) -> tuple[int, int]:
        if path not in self._dirs:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        used = sum(len(inode.data) for inode in self._names.values())
        left = 1 << 40 if self.space_left_bytes is None else self.space_left_bytes
        return used + left, left


def _apply(names: dict[str, _Inode], dirs: set[str], entry: tuple[str, str, "str | _Inode"]) -> None:
    kind, first, second = entry
    if kind == "create":
        assert isinstance(second, _Inode)
        names[first] = second
    elif kind == "remove":
        names.pop(first, None)
    elif kind == "mkdir":
        dirs.add(first)
    elif kind == "remove_dir":
        dirs.discard(first)
    elif kind == "rename":
        assert isinstance(second, str)
        if first in dirs:
            dirs.discard(first)
            dirs.add(second)
            below = first + "/"
            for name in [name for name in names if name.startswith(below)]:
                names[second + name[len(first) :]] = names.pop(name)
        else:
            names[second] = names.pop(first)
