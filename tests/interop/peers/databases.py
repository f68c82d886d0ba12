"""PostgreSQL and MariaDB for tests: Debian's programs, a data folder of their own, a port on loopback, gone afterwards.

    with postgresql() as url: ...

What is installed is used. What is not is fetched with `apt-get download` and unpacked below `build/peers`: nothing is
installed, no service starts, and root is not needed.

Invariant: a server never runs as root (PostgreSQL refuses to); the tests of root start it as nobody.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from tests.interop.peers.workshop import PeerError, build_once, require, run, tail
from tests.support.broker_process import free_port

_READY_SECONDS_MAX = 60.0
_NOBODY = 65534
_APT = {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}


@contextmanager
def postgresql() -> Iterator[str]:
    """The URL of an empty database."""
    with _home() as home:
        programs = _programs(("postgresql",), "usr/lib/postgresql/*/bin/postgres", home)
        data, port = home / "data", free_port()
        _run(home, programs / "initdb", "-D", data, "-U", "moldau", "-A", "trust", "-E", "UTF8", "--no-locale", "-N")
        # Not in UTC: who forgets the time zone is found out.
        settings = ("listen_addresses=127.0.0.1", "unix_socket_directories=", "fsync=off", "timezone=Asia/Tokyo")
        options = [part for each in settings for part in ("-c", each)]
        url = f"postgresql+psycopg://moldau@127.0.0.1:{port}/postgres"
        with _serving(home, url, signal.SIGINT, programs / "postgres", "-D", data, "-p", str(port), *options):
            yield url


@contextmanager
def mariadb() -> Iterator[str]:
    """The URL of an empty database."""
    with _home() as home:
        programs = _programs(("mariadb-server-core", "mariadb-client-core"), "usr/sbin/mariadbd", home)
        base, data, port = programs.parent, home / "data", free_port()
        _run(
            home,
            base / "bin" / "mariadb-install-db",
            "--no-defaults",
            f"--basedir={base}",
            f"--datadir={data}",
            "--auth-root-authentication-method=normal",
        )
        server = f"mysql+pymysql://root@127.0.0.1:{port}"
        options = [
            "--no-defaults",
            f"--basedir={base}",
            f"--datadir={data}",
            f"--port={port}",
            "--bind-address=127.0.0.1",
            f"--socket={home}/socket",
            f"--pid-file={home}/pid",
            "--default-time-zone=+09:00",
            "--innodb-flush-log-at-trx-commit=0",
        ]
        with _serving(home, f"{server}/test", signal.SIGTERM, programs / "mariadbd", *options):
            yield f"{server}/test"


# ---- programs -------------------------------------------------------------------------------------------------------


def _programs(packages: tuple[str, ...], wanted: str, home: Path) -> Path:
    """The folder of the server's program: the system's, else unpacked from Debian's packages."""
    for root in (Path("/"), None):
        root = unpacked(packages) if root is None else root
        found = sorted(root.glob(wanted))
        if found:
            break
    else:
        raise PeerError(f"Debian's packages {packages} have no {wanted}: install a server and adapt this module")
    reachable = all(parent.stat().st_mode & 0o001 for parent in found[-1].parents)
    if os.geteuid() != 0 or reachable:
        return found[-1].parent
    shutil.copytree(root, home / "programs", symlinks=True)  # the checkout is root's own; nobody cannot go there
    return home / "programs" / found[-1].parent.relative_to(root)


def unpacked(packages: tuple[str, ...]) -> Path:
    advice = f"On other systems than Debian, install what it calls {' and '.join(packages)}."
    apt, dpkg = require("apt-get", advice), require("dpkg", advice)

    def fetch(folder: Path) -> None:
        listing = [apt, "install", "--simulate", "--no-install-recommends", *packages]

        def download() -> None:
            lines = run(listing, env=_APT, timeout_s=120).stdout.splitlines()
            names = [line.split()[1] for line in lines if line.startswith("Inst ")]
            run([apt, "download", *names], cwd=folder, env=_APT, timeout_s=600)

        try:
            download()
        except PeerError:
            if os.geteuid() != 0:
                raise
            run([apt, "update"], env=_APT, timeout_s=300)  # the package lists may be missing or old
            download()
        for file in sorted(folder.glob("*.deb")):
            run([dpkg, "-x", file, folder])
            file.unlink()

    return build_once(f"debian-{packages[0]}", [*packages, Path("/etc/os-release")], fetch)


# ---- processes ------------------------------------------------------------------------------------------------------


@contextmanager
def _home() -> Iterator[Path]:
    home = Path(tempfile.mkdtemp(prefix="moldau-database-"))
    try:
        if os.geteuid() == 0:
            os.chown(home, _NOBODY, _NOBODY)
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _as_nobody() -> dict[str, Any]:
    return {"user": _NOBODY, "group": _NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}


def environment_of(program: Path) -> dict[str, str]:
    """Unpacked programs find their libraries beside themselves."""
    root = Path(str(program).partition("/usr/")[0] or "/")
    libraries = {str(file.parent) for file in root.glob("usr/lib/*/*.so*")} if root != Path("/") else ()
    return {**os.environ, "LC_ALL": "C", "LD_LIBRARY_PATH": ":".join(sorted(libraries))}


def _run(home: Path, *command: str | Path) -> None:
    arguments = [str(part) for part in command]
    environment = environment_of(Path(arguments[0]))
    done = subprocess.run(
        arguments, cwd=home, env=environment, capture_output=True, text=True, check=False, timeout=180, **_as_nobody()
    )
    if done.returncode:
        raise PeerError(f"exit code {done.returncode} from: {' '.join(arguments)}\n{tail(done.stdout + done.stderr)}")


@contextmanager
def _serving(home: Path, url: str, end: signal.Signals, *command: str | Path) -> Iterator[None]:
    """Runs a server; `end` makes it stop without waiting for its clients."""
    arguments: Sequence[str] = [str(part) for part in command]
    environment = environment_of(Path(arguments[0]))
    with (home / "output").open("wb") as output:
        server = subprocess.Popen(
            arguments, cwd=home, env=environment, stdout=output, stderr=output, stdin=subprocess.DEVNULL, **_as_nobody()
        )
    try:
        deadline = time.monotonic() + _READY_SECONDS_MAX
        while not _answers(url):
            if server.poll() is not None or time.monotonic() > deadline:
                raise PeerError(f"the database did not start: {tail((home / 'output').read_bytes())}")
            time.sleep(0.1)  # a server does not say when it is ready, it answers
        yield
    finally:
        server.send_signal(end)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _answers(url: str) -> bool:
    try:
        with create_engine(url, poolclass=NullPool).connect():
            return True
    except OperationalError:
        return False
