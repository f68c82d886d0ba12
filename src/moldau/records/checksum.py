"""CRC-32C, as every record batch carries it.

The `crc32c` package imports a command line and package metadata beside its compiled function, which takes a broker
longer than opening its logs. Only the compiled half is loaded here; if it is not where it is expected, all of it is.
"""

from __future__ import annotations

from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import Protocol


class Checksum(Protocol):
    """Of data, or of what `before` is the checksum of followed by it."""

    def __call__(self, data: bytes | bytearray | memoryview, before: int = 0, /) -> int: ...


def _load() -> Checksum:
    package = PathFinder.find_spec("crc32c")
    if package is not None:
        compiled = PathFinder.find_spec("crc32c._crc32c", package.submodule_search_locations)
        if compiled is not None and compiled.loader is not None:
            module = module_from_spec(compiled)
            compiled.loader.exec_module(module)
            function: Checksum = module.crc32c
            return function
    from crc32c import crc32c as slow_to_import

    return slow_to_import


crc32c = _load()
