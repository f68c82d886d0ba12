"""A way to a server that can be cut: connections end, new ones are refused, until it is healed."""

import contextlib
import socket
import threading
from typing import Self


class Outage:
    """Listens on `port` and passes on what comes to `target_port`."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = self._listen(0)
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()

    def cut(self) -> None:
        with self._lock:
            self._end(self._listener)
            for each in self._open:
                self._end(each)
            self._open.clear()

    def heal(self) -> None:
        self._listener = self._listen(self.port)

    def _listen(self, port: int) -> socket.socket:
        listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return listener

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it was closed
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target_port))
                with self._lock:
                    self._open |= {near, far}
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):  # either side ended
            while data := source.recv(1 << 16):
                target.sendall(data)
        for each in (source, target):
            self._end(each)
        with self._lock:
            self._open -= {source, target}

    @staticmethod
    def _end(sock: socket.socket) -> None:
        with contextlib.suppress(OSError):  # shutting down wakes whoever waits in it; closing alone does not
            sock.shutdown(socket.SHUT_RDWR)
        sock.close()
