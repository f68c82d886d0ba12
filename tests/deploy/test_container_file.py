"""The image is built from a few files: all that building the package reads has to be among them."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "container"


def test_what_the_package_is_built_from_is_copied() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, hatch = settings["project"], settings["tool"]["hatch"]
    needed = {"pyproject.toml", project["readme"], *project["license-files"], "src"}
    needed |= {hook["path"] for hook in hatch["metadata"]["hooks"].values()}
    copies = [line.split()[1:-1] for line in (FOLDER / "Containerfile").read_text().splitlines() if "COPY" in line]
    ignored_not = {
        line.removeprefix("!")
        for line in (FOLDER / "Containerfile.dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    assert needed <= {each for copied in copies for each in copied}
    assert needed <= ignored_not
