"""A non-blocking byte stream under the frames: a plain socket here, TLS in `moldau.net.tls`.

Every call does at most a bounded piece of work and raises BlockingIOError when the socket is not ready.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Sequence
from typing import Protocol

from moldau.seams.disk import Buffer, DiskFile

_sendfile: Callable[[int, int, int, int], int] | None = getattr(
    os, "sendfile", None
)  # where there is none, bytes pass through the process
_COPIED_BYTES_MAX = 256 * 1024
_MORE = getattr(socket, "MSG_MORE", 0)  # Linux: do not send the last packet yet, a file region follows


class Channel(Protocol):
    def recv_into(self, view: memoryview, /) -> int:
        """Bytes received; 0 at the end of the stream."""

    def send(self, data: Buffer, /) -> int: ...

    def send_many(self, buffers: Sequence[Buffer], *, more_follows: bool) -> int: ...

    def send_file(self, file: DiskFile, position: int, length: int) -> int:
        """Bytes sent; 0 if the file ends before `position`."""

    def flush(self) -> None:
        """Push out what the channel itself holds back (ciphertext)."""

    @property
    def has_unsent(self) -> bool:
        """The channel itself holds bytes back that were accepted for sending."""

    @property
    def has_unread(self) -> bool:
        """Bytes are ready that the socket will not announce any more."""

    def fileno(self) -> int: ...

    def end_sending(self) -> None:
        """Tell the peer that nothing more comes. Never raises."""

    def discard(self, view: memoryview, /) -> int:
        """Read bytes that nobody wants, as they come from the socket; 0 at the end of the stream."""

    def close(self) -> None: ...


class PlainChannel:
    __slots__ = ("_socket", "discard", "recv_into", "send")

    has_unsent = False
    has_unread = False

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self.recv_into = self.discard = sock.recv_into
        self.send = sock.send

    def send_many(self, buffers: Sequence[Buffer], *, more_follows: bool) -> int:
        return self._socket.sendmsg(buffers, (), _MORE if more_follows else 0)

    def send_file(self, file: DiskFile, position: int, length: int) -> int:
        fd = file.fileno()
        if fd is None or _sendfile is None:
            data = file.read(position, min(length, _COPIED_BYTES_MAX))
            return self._socket.send(data) if data else 0
        return _sendfile(self._socket.fileno(), fd, position, length)

    def flush(self) -> None:
        pass

    def fileno(self) -> int:
        return self._socket.fileno()

    def end_sending(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._socket.close()
