"""CRC-32C, as every record batch carries it.

The `crc32c` package imports a command line and package metadata beside its compiled function, which takes a broker
longer than opening its logs. Only the compiled half is loaded here; if it is not where it is expected, all of it is.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import module_from_spec


def _load() -> Callable[[bytes | bytearray | memoryview], int]:
    package = PathFinder.find_spec("crc32c")
    if package is not None:
        compiled = PathFinder.find_spec("crc32c._crc32c", package.submodule_search_locations)
        if compiled is not None and compiled.loader is not None:
            module = module_from_spec(compiled)
            compiled.loader.exec_module(module)
            function: Callable[[bytes | bytearray | memoryview], int] = module.crc32c
            return function
    from crc32c import crc32c as slow_to_import

    return slow_to_import


crc32c = _load()
