"""Debian's Chromium for tests: the system's, else unpacked below `build/peers`, as the databases are.

Nothing is installed, and root is not needed.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from tests.interop.peers.databases import environment_of, unpacked
from tests.interop.peers.workshop import PeerError

_PACKAGES = ("chromium", "fonts-dejavu-core")


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser without a window. It runs without its sandbox, since tests may be root."""
    found = shutil.which("chromium")
    environment: dict[str, str | float | bool] | None = None
    if found is None:
        program = unpacked(_PACKAGES) / "usr" / "lib" / "chromium" / "chromium"
        if not program.exists():
            raise PeerError(f"Debian's package chromium has no {program.name}: install one and adapt this module")
        found, environment = str(program), {**environment_of(Path(program))}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=found, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"], env=environment
        )
        try:
            yield browser
        finally:
            browser.close()
