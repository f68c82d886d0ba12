"""The users file: a line per user, `name:role:hash`, made by `moldau console-user`. Read again when it changes.

Invariants
- A wrong name costs as much as a wrong password, and nobody tries quickly: after a few failures an address waits.
- Nobody locks somebody else out: failures count for the name at that address. An address that tries many names, and a
  name that many addresses try, wait too, but not where that name has logged in from that address before.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from moldau.console.gate.roles import Role, role_named

_COST = 1 << 14
_BLOCK = 8
_PARALLEL = 1
_MEMORY_MAX = 64 << 20
_FAILURES_MAX = 5  # of a name at an address
_FAILURES_OF_AN_ADDRESS_MAX = 20
_FAILURES_OF_A_NAME_MAX = 50
_WAIT_S = 30.0
_KEPT_MAX = 10_000


_Who = tuple[str, str]  # a name and an address; empty: any


class UsersFileError(ValueError):
    """The file cannot be used: which line, and what to write."""


@dataclass(slots=True, frozen=True)
class User:
    name: str
    role: Role
    hash: str


def hashed(password: str, salt: bytes | None = None) -> str:
    salt = os.urandom(16) if salt is None else salt
    digest = _scrypt(password, salt, _COST, _BLOCK, _PARALLEL)
    return f"scrypt${_COST}${_BLOCK}${_PARALLEL}${_text(salt)}${_text(digest)}"


def matches(password: str, kept: str) -> bool:
    try:
        kind, cost, block, parallel, salt, digest = kept.split("$")
        if kind != "scrypt":
            return False
        found = _scrypt(password, base64.b64decode(salt), int(cost), int(block), int(parallel))
        return hmac.compare_digest(found, base64.b64decode(digest))
    except ValueError:
        return False


def _scrypt(password: str, salt: bytes, cost: int, block: int, parallel: int) -> bytes:
    return hashlib.scrypt(
        password.encode(errors="surrogatepass"), salt=salt, n=cost, r=block, p=parallel, maxmem=_MEMORY_MAX, dklen=32
    )


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def parse_users(text: str) -> dict[str, User]:
    found: dict[str, User] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        parts = line.strip().split(":")
        if len(parts) != 3 or not parts[0] or not parts[2].startswith("scrypt$"):
            raise UsersFileError(f"line {number} is not name:role:hash: `moldau console-user NAME` makes such a line")
        try:
            role = role_named(parts[1])
        except ValueError as error:
            raise UsersFileError(f"line {number}: {error}") from error
        found[parts[0]] = User(parts[0], role, parts[2])
    return found


class Users:
    """Who may log in with a password; belongs to many threads."""

    def __init__(self, file: Path, now: Callable[[], float] = time.monotonic) -> None:
        self._file = file
        self._now = now
        self._lock = threading.Lock()
        self._stamp: tuple[int, int] | None = None
        self._users: dict[str, User] = {}
        self._failures: OrderedDict[_Who, tuple[int, float]] = OrderedDict()
        self._known: OrderedDict[_Who, tuple[int, float]] = OrderedDict()  # who has logged in from where
        self._nobody = hashed("nobody has this password")
        self._load()

    def _load(self) -> None:
        try:
            status = self._file.stat()
            stamp = (status.st_mtime_ns, status.st_size)
            if stamp != self._stamp:
                self._users = parse_users(self._file.read_text(encoding="utf-8"))
                self._stamp = stamp
        except OSError as error:
            raise UsersFileError(f"{self._file} cannot be read: {error.strerror}") from error

    def find(self, name: str) -> User | None:
        """As the file is now; as it was, if it cannot be read right now."""
        with self._lock:
            with contextlib.suppress(UsersFileError, UnicodeDecodeError):
                self._load()
            return self._users.get(name)

    def log_in(self, name: str, password: str, address: str) -> User | None:
        """Blocks for tens of milliseconds. None: wrong, or too many attempts."""
        user = self.find(name)
        if self.must_wait(name, address):
            return None
        fits = matches(password[:1_000], user.hash if user is not None else self._nobody)
        with self._lock:
            if user is not None and fits:
                self._failures.pop((name, address), None)
                _keep(self._known, (name, address), (0, 0.0))
                return user
            for failed in ((name, address), ("", address), (name, "")):
                count, last = self._failures.get(failed, (0, 0.0))
                if self._now() - last >= _WAIT_S:
                    count = 0
                _keep(self._failures, failed, (count + 1, self._now()))
        return None

    def must_wait(self, name: str, address: str) -> bool:
        with self._lock:
            if self._are_too_many((name, address), _FAILURES_MAX):
                return True
            return (name, address) not in self._known and (
                self._are_too_many(("", address), _FAILURES_OF_AN_ADDRESS_MAX)
                or self._are_too_many((name, ""), _FAILURES_OF_A_NAME_MAX)
            )

    def _are_too_many(self, failed: _Who, most: int) -> bool:
        count, last = self._failures.get(failed, (0, 0.0))
        return count >= most and self._now() - last < _WAIT_S


def _keep(kept: OrderedDict[_Who, tuple[int, float]], who: _Who, what: tuple[int, float]) -> None:
    kept[who] = what
    kept.move_to_end(who)
    while len(kept) > _KEPT_MAX:
        kept.popitem(last=False)
