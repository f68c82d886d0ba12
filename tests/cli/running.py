"""Commands inside of this process: what they print and how they end, in milliseconds."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

from moldau import cli


class Ended(NamedTuple):
    code: int
    data: bytes
    err: str

    @property
    def out(self) -> str:
        return self.data.decode()

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Command:
    """`command("topic", "list")` against one cluster."""

    def __init__(self, bootstrap_servers: str, home: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._environment = {"MOLDAU_BOOTSTRAP_SERVER": bootstrap_servers, "MOLDAU_HOME": home, "COLUMNS": "200"}

    def __call__(self, *arguments: str, stdin: str | bytes = b"", **environment: str) -> Ended:
        given = stdin.encode() if isinstance(stdin, str) else stdin
        with _streams(given) as (out, err), patch.dict(os.environ, {**self._environment, **environment}):
            with patch.object(sys, "argv", ["moldau", *arguments]):
                code = cli.run(list(arguments))
            sys.stdout.flush()
        assert "Traceback" not in err.getvalue()
        return Ended(code, out.getvalue(), err.getvalue())

    def ok(self, *arguments: str, stdin: str | bytes = b"") -> Ended:
        ended = self(*arguments, stdin=stdin)
        assert ended.code == 0, ended
        return ended

    def refused(self, code: int, *arguments: str, stdin: str | bytes = b"") -> str:
        """What it says when it ends with that code."""
        ended = self(*arguments, stdin=stdin)
        assert ended.code == code, ended
        return ended.err


@contextmanager
def _streams(given: bytes) -> Iterator[tuple[io.BytesIO, io.StringIO]]:
    out, err = io.BytesIO(), io.StringIO()
    with (
        patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(given))),
        patch.object(sys, "stdout", _Kept(out)),
        patch.object(sys, "stderr", err),
    ):
        yield out, err


class _Kept(io.TextIOWrapper):
    """Closed by nobody, as its bytes are read afterwards."""

    def __init__(self, data: io.BytesIO) -> None:
        super().__init__(data, encoding="utf-8", newline="\n", write_through=True)

    def close(self) -> None:
        self.detach()
