"""The demo's last words are true, or it fails."""

import io

import pytest
from rich.console import Console

from moldau.demo.summary import DemoFailed, Summary


def test_what_is_as_expected_is_told_at_the_end() -> None:
    summary, said = Summary(), io.StringIO()
    summary.expect("toolkit", "orders billed", 3_000, 3_000)
    summary.expect("pipelines", "hosts with alerts", {"b", "a"}, {"a", "b"})
    summary.expect("pipelines", "orders by tier", {"gold": 2, "blue": 1_000}, {"blue": 1_000, "gold": 2})
    summary.show(Console(file=said, width=120))
    lines = said.getvalue()
    assert "3,000" in lines
    assert "a, b" in lines
    assert "blue 1,000, gold 2" in lines
    assert "3 results checked" in lines


def test_a_difference_ends_it() -> None:
    with pytest.raises(DemoFailed, match="toolkit: orders billed: 2999, expected 3000"):
        Summary().expect("toolkit", "orders billed", 2_999, 3_000)


def test_nothing_is_no_success() -> None:
    with pytest.raises(DemoFailed, match="nothing was shown"):
        Summary().show(Console(file=io.StringIO()))
