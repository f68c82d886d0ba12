"""The notebook of the documentation, from top to bottom, as a reader would run it."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NOTEBOOK = Path(__file__).parents[2] / "docs" / "start" / "pyspark.ipynb"
pytestmark = pytest.mark.timeout(180)


def test_every_cell_runs(spark: "SparkSession", capsys: pytest.CaptureFixture[str]) -> None:
    cells: list[dict[str, Any]] = json.loads(_NOTEBOOK.read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert not [cell for cell in cells if cell.get("outputs")], "outputs are made by readers"
    names: dict[str, Any] = {}
    try:
        for number, source in enumerate(code):
            exec(compile(source, f"{_NOTEBOOK.name}:cell {number}", "exec"), names)
    finally:
        names["broker"].stop()
    assert names["large"].schema.names[:2] == ["key", "value"]
    assert "|      c6|" in capsys.readouterr().out
