"""Whether data can be kept in a folder, as far as that can be seen before anything is begun."""

from __future__ import annotations

import os

_TOUCHED_BY_EVERY_START = (".lock", "meta.properties")


def trouble(folder: str) -> str | None:
    """Why a node cannot keep its data there, and what to do; None if nothing speaks against it."""
    there = os.path.abspath(folder)
    while not os.path.lexists(there) and there != os.path.dirname(there):
        there = os.path.dirname(there)
    if os.path.exists(there) and not os.path.isdir(there):
        return f"{folder} cannot be a data folder: {there} is a file"
    if not os.access(there, os.W_OK | os.X_OK):
        return _forbidden(folder, there)
    for name in _TOUCHED_BY_EVERY_START:
        file = os.path.join(folder, name)
        if os.path.exists(file) and not os.access(file, os.R_OK | os.W_OK):
            return _forbidden(folder, file)
    return None


def _forbidden(folder: str, there: str) -> str:
    if os.path.exists(there) and os.statvfs(there).f_flag & os.ST_RDONLY:
        return f"the data folder {folder} is on a file system that is mounted read-only: mount it for writing"
    what = "" if os.path.abspath(folder) == os.path.abspath(there) else f" ({there})"
    return (
        f"user {_user()} may not write to the data folder {folder}{what}: give it to that user (chown -R), "
        f"or name another (--data-dir, log.dirs)"
    )


def _user() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
