"""Build the wheel, install it where nothing else is, and see that it works there: `make package`.

    python -m scripts.check_package [--keep FOLDER]

What is seen: the wheel has what it needs and nothing of the tests; the core and its dependencies stay below 60 MB; the
command line starts; a broker serves a stock client; the pytest fixture is found by its entry point; extras that name a
room have one; a source archive builds the same wheel, with the project's links in it if anybody knows its address.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from collections.abc import Mapping
from email.parser import Parser
from pathlib import Path

from scripts.project_urls import VARIABLE, links, repository

ROOT = Path(__file__).resolve().parent.parent
CORE_BYTES_MAX = 60 * 1024 * 1024
NEEDED = (
    "moldau/py.typed",
    "moldau/wire/schema/records.txt",
    "moldau/testing/pytest_plugin.py",
    "moldau/cli/serving.py",
)
PROGRAM = """
from confluent_kafka import Consumer, Producer
from moldau.testing import Broker

with Broker(topics={"t": 1}) as broker:
    broker.produce("t", [b"hello"])
    assert [each.value for each in broker.read("t")] == [b"hello"]
print("served")
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, help="build and install here, and leave it")
    keep = parser.parse_args().keep
    if keep is not None:
        check(keep.resolve())
    else:
        with tempfile.TemporaryDirectory(prefix="moldau-package-") as folder:
            check(Path(folder))


def check(folder: Path) -> None:
    wheel = build(ROOT, folder)
    look_into(wheel)
    see(links_in(wheel) == links(repository(ROOT, os.environ)), f"the wheel's links: {links_in(wheel)}")
    look_into_archive(folder / "archive", wheel)
    python = install(wheel, folder / "venv")
    size = installed_bytes(folder / "venv")
    if size > CORE_BYTES_MAX:
        sys.exit(f"the core takes {size / 1e6:.0f} MB, more than {CORE_BYTES_MAX / 1e6:.0f} MB")
    see(run(python, "-m", "moldau", "--version").startswith("moldau "), "moldau --version")
    see("served" in run(python, "-c", PROGRAM, cwd=folder), "a broker and a stock client")
    see("moldau_broker" in run(python, "-c", ENTRY_POINTS, cwd=folder), "the pytest plugin's entry point")
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, installed with its dependencies {size / 1e6:.0f} MB")


ENTRY_POINTS = """
from importlib.metadata import entry_points
(plugin,) = entry_points(group="pytest11", name="moldau")
source = __import__("importlib.util", fromlist=["util"]).find_spec(plugin.module).origin
print(open(source).read())
"""


def build(source: Path, folder: Path) -> Path:
    run(
        Path(sys.executable),
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(folder),
        str(source),
    )
    (wheel,) = folder.glob("moldau-*.whl")
    return wheel


def look_into(wheel: Path) -> None:
    names = names_in(wheel)
    missing = [each for each in NEEDED if each not in names]
    strays = [each for each in names if not each.startswith(("moldau/", "moldau-", "pyspark_moldau/"))]
    if missing or strays:
        sys.exit(f"the wheel lacks {missing}, and has {strays[:5]} that do not belong there")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for room in ("console", "security", "spark", "toolkit"):
        if room not in extras or not any(name.startswith(f"moldau/{room}/") for name in names):
            sys.exit(f"{room} must be a room and an extra: one of them is missing")


def links_in(wheel: Path) -> dict[str, str]:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(archive.read(name).decode(), headersonly=True)
    return dict(each.split(", ", 1) for each in metadata.get_all("Project-URL", []))


def look_into_archive(folder: Path, wheel: Path) -> None:
    """An archive made where the address is known gives the wheel we have, with links, where it is not."""
    address = "https://example.org/owner/moldau"
    arguments = ("-m", "hatchling", "build", "-t", "sdist", "-d", str(folder))
    run(Path(sys.executable), *arguments, cwd=ROOT, environment=os.environ | {VARIABLE: address})
    (archive,) = folder.glob("moldau-*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    again = build(folder / archive.name.removesuffix(".tar.gz"), folder)
    see(links_in(again) == links(address), f"the links of a wheel made from the source archive: {links_in(again)}")
    see(names_in(again) == names_in(wheel), "the same files in a wheel made from the source archive")


def names_in(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return sorted(archive.namelist())


def install(wheel: Path, folder: Path) -> Path:
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", str(wheel))
    return python


def installed_bytes(folder: Path) -> int:
    """What was installed, without pip and what Python compiles at first use."""
    (packages,) = folder.glob("lib/python*/site-packages")
    files = [each for each in packages.rglob("*") if each.is_file() and "__pycache__" not in each.parts]
    tools = {"pip", "setuptools"}
    return sum(each.stat().st_size for each in files if each.relative_to(packages).parts[0].split("-")[0] not in tools)


def run(program: Path, *arguments: str, cwd: Path | None = None, environment: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        [str(program), *arguments], capture_output=True, text=True, cwd=cwd, env=environment, timeout=300, check=False
    )
    if done.returncode:
        sys.exit(f"{program.name} {' '.join(arguments)[:200]} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def see(is_so: bool, what: str) -> None:
    if not is_so:
        sys.exit(f"not as it should be: {what}")


if __name__ == "__main__":
    main()
