"""Why the system refused something, without the number that helps nobody where the reason stands beside it."""

from __future__ import annotations


def reason(error: Exception) -> str:
    """`moldau-certs: Permission denied`, where Python says `[Errno 13] Permission denied: 'moldau-certs'`."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
