"""What the package says about where it lives: true, reachable, without anybody's password, or nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import project_urls as urls

ROOT = Path(__file__).resolve().parent.parent
HOSTED = {"GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "owner/moldau"}


@pytest.fixture(autouse=True)
def _no_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in os.environ if each.startswith("GIT_")]:
        monkeypatch.delenv(name)


def checkout(folder: Path, remote: str | None) -> Path:
    subprocess.run(["git", "init", "-q", str(folder)], check=True, timeout=30)
    if remote is not None:
        subprocess.run(["git", "-C", str(folder), "remote", "add", "origin", remote], check=True, timeout=30)
    return folder


@pytest.mark.parametrize(
    ("remote", "page"),
    [
        ("https://example.org/owner/moldau.git", "https://example.org/owner/moldau"),
        ("https://example.org/owner/moldau/", "https://example.org/owner/moldau"),
        ("http://git.example.org:8080/moldau", "http://git.example.org:8080/moldau"),
        ("https://user:secret@example.org/owner/moldau", "https://example.org/owner/moldau"),
        ("https://token@example.org/owner/moldau", "https://example.org/owner/moldau"),
        ("https://example.org/owner/moldau?token=secret#part", "https://example.org/owner/moldau"),
        ("git@example.org:owner/moldau.git", "https://example.org/owner/moldau"),
        ("ssh://git@example.org:2222/owner/moldau.git", "https://example.org/owner/moldau"),
        ("/srv/git/moldau.git", None),
        ("../moldau", None),
        ("file:///srv/git/moldau.git", None),
        ("C:\\git\\moldau", None),
        ("https://localhost/owner/moldau", None),
        ("http://127.0.0.1:3000/owner/moldau", None),
        ("http://[::1]:3000/owner/moldau", None),
        ("https://git/owner/moldau", None),
        ("git@box.local:owner/moldau", None),
        ("https://example.org", None),
        ("https://example.org:port/owner/moldau", None),
        ("", None),
    ],
)
def test_the_page_of_a_remote(remote: str, page: str | None) -> None:
    assert urls.page_of(remote) == page


def test_the_variable_is_asked_first(tmp_path: Path) -> None:
    root = checkout(tmp_path, "https://example.org/git/moldau")
    hosted = HOSTED | {"GITHUB_WORKSPACE": str(root)}
    told = {"MOLDAU_REPOSITORY_URL": "https://example.org/told/moldau"}
    assert urls.repository(root, hosted | told) == "https://example.org/told/moldau"
    assert urls.repository(root, hosted) == "https://github.com/owner/moldau"
    assert urls.repository(root, {}) == "https://example.org/git/moldau"


def test_a_variable_that_is_no_address_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="https://host/owner/name"):
        urls.repository(tmp_path, {"MOLDAU_REPOSITORY_URL": "owner/moldau"})


def test_somebody_elses_job_is_not_our_home(tmp_path: Path) -> None:
    elsewhere = checkout(tmp_path / "elsewhere", None)
    assert urls.repository(elsewhere, HOSTED | {"GITHUB_WORKSPACE": str(tmp_path)}) is None
    assert urls.repository(elsewhere, HOSTED) is None


def test_a_folder_inside_of_another_project_does_not_take_its_address(tmp_path: Path) -> None:
    inside = checkout(tmp_path, "https://example.org/other/project") / "moldau-0.2.0"
    inside.mkdir()
    assert urls.repository(inside, {}) is None


def test_an_archive_without_links_stays_without(tmp_path: Path) -> None:
    root = checkout(tmp_path, "https://example.org/other/project")
    (root / "PKG-INFO").write_text("Metadata-Version: 2.4\n")
    assert urls.repository(root, HOSTED | {"GITHUB_WORKSPACE": str(root)}) is None


@pytest.mark.parametrize("remote", [None, "/srv/git/moldau.git"])
def test_who_knows_nothing_says_nothing(tmp_path: Path, remote: str | None) -> None:
    assert urls.repository(checkout(tmp_path, remote), {}) is None
    assert urls.links(None) == {}


def test_a_hook_of_another_repository_does_not_lend_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = checkout(tmp_path / "ours", "https://example.org/git/moldau")
    other = checkout(tmp_path / "other", "https://example.org/other/project")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    assert urls.repository(root, {}) == "https://example.org/git/moldau"


def test_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = checkout(tmp_path, "https://example.org/git/moldau")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert urls.repository(root, {}) is None


def test_every_link_leads_to_a_page_of_the_repository() -> None:
    links = urls.links("https://example.org/owner/moldau")
    assert list(links) == ["Homepage", "Documentation", "Source", "Changelog", "Issues"]
    files = [each.split("/blob/HEAD/")[1] for each in links.values() if "/blob/HEAD/" in each]
    assert files
    assert all((ROOT / each).is_file() for each in files)


def test_hatchling_asks_for_them(tmp_path: Path) -> None:
    """What `pip` and hosted CI do, as far as the metadata."""
    program = f"""
from hatchling.builders.wheel import WheelBuilder
print(dict(WheelBuilder({str(ROOT)!r}).metadata.core.urls))
"""
    environment = {"PATH": "/usr/bin:/bin", "MOLDAU_REPOSITORY_URL": "https://example.org/owner/moldau"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert "'Issues': 'https://example.org/owner/moldau/issues'" in done.stdout
