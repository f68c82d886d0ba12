"""A console beside a broker, a cluster or the demo: a process of its own, so that pages cost brokers nothing.

It is told to end by the end of its standard input, so it ends with whoever started it, however that ends.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Sequence

DEFAULT_LISTEN = "127.0.0.1:8080"
_STOP_S = 5.0


class ConsoleBeside:
    """Runs from the moment it is made. It says where it is on standard error: standard output is its starter's."""

    def __init__(self, bootstrap_servers: str, listen: str = DEFAULT_LISTEN, more: Sequence[str] = ()) -> None:
        place = listen if ":" in listen else f"127.0.0.1:{listen}"
        command = [sys.executable, "-m", "moldau", "console", "-b", bootstrap_servers, "--listen", place, *more]
        self._process = subprocess.Popen(  # noqa: S603  our own command
            [*command, "--until-stdin-closes"], stdin=subprocess.PIPE, stdout=sys.stderr, start_new_session=True
        )

    def stop(self) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
