"""The notebook of the documentation, and the page that leads to it, from top to bottom, as a reader would run them."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from moldau.testing import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PAGES = Path(__file__).parents[2] / "docs" / "start"
_NOTEBOOK = _PAGES / "pyspark.ipynb"
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


def test_what_the_page_shows_runs(spark: "SparkSession", capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```", (_PAGES / "pyspark.md").read_text(), re.MULTILINE | re.DOTALL)
    with Broker(topics={"orders": 3}) as broker:
        broker.produce("orders", [str(number) for number in range(100)])
        names: dict[str, Any] = {}
        exec(compile(block.replace("127.0.0.1:9092", broker.bootstrap_servers), "pyspark.md", "exec"), names)
        assert names["orders"].count() == 100
        assert names["arriving"].isStreaming
    assert "only showing top 5 rows" in capsys.readouterr().out
