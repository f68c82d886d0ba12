"""Where foreign peers are fetched and built: once, lazily, in the git-ignored `build/peers`.

Invariant: a folder returned by `build_once` is complete and was made from exactly the inputs its name says. It is made
under another name and renamed into place, under a file lock, so that parallel test workers build it once and a build
that was killed half-way is never mistaken for a finished one.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
PEERS = Path(__file__).resolve().parent
BUILD = REPOSITORY / "build" / "peers"


class PeerError(Exception):
    """A peer could not be built or run; the message says what to install or shows what the peer printed."""


def require(command: str, advice: str) -> str:
    """The full path of a command, or an error that says how to get it."""
    path = shutil.which(command)
    if path is None:
        raise PeerError(f"`{command}` is not on the PATH. {advice}")
    return path


def run_unchecked(
    command: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
    timeout_s: float = 300,
) -> subprocess.CompletedProcess[str]:
    """Run to the end, whatever the exit code; too long is an error that carries the end of what was printed."""
    arguments = [str(part) for part in command]
    try:
        return subprocess.run(
            arguments,
            cwd=cwd,
            env={**os.environ, **env} if env else None,
            input=stdin if stdin is not None else "",
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as failure:
        printed = f"{tail(failure.stdout)}\n{tail(failure.stderr)}"
        raise PeerError(f"no end after {timeout_s} s: {' '.join(arguments)}\n{printed}") from failure


def run(
    command: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
    timeout_s: float = 300,
) -> subprocess.CompletedProcess[str]:
    """Run to the end; a failure is an error that carries the command and the end of what it printed."""
    finished = run_unchecked(command, cwd=cwd, env=env, stdin=stdin, timeout_s=timeout_s)
    if finished.returncode != 0:
        printed = f"{tail(finished.stdout)}\n{tail(finished.stderr)}"
        raise PeerError(f"exit code {finished.returncode} from: {' '.join(finished.args)}\n{printed}")
    return finished


def tail(text: str | bytes | None, lines: int = 40) -> str:
    if isinstance(text, bytes):  # what TimeoutExpired carries, even in text mode
        text = text.decode(errors="replace")
    return "\n".join((text or "").splitlines()[-lines:])


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Held by one process at a time; released by the kernel if that process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def build_once(name: str, inputs: Sequence[Path | str], build: Callable[[Path], object]) -> Path:
    """The folder `build/peers/<name>-<hash of inputs>`, made by `build(folder)` if it is not there yet.

    Inputs are files (their content counts) or strings (versions, options).
    """
    digest = hashlib.sha256()
    for item in inputs:
        content = item.read_bytes() if isinstance(item, Path) else item.encode()
        digest.update(len(content).to_bytes(8, "big") + content)
    target = BUILD / f"{name}-{digest.hexdigest()[:12]}"
    if target.is_dir():
        return target
    with file_lock(BUILD / f".{name}.lock"):
        if target.is_dir():
            return target
        unfinished = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=BUILD))
        try:
            build(unfinished)
            unfinished.chmod(0o755)
            unfinished.rename(target)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return target
