"""The text of both formats, read back by prometheus_client; the histogram behind it."""

import math

import pytest

from moldau.metrics import OPENMETRICS, PROMETHEUS, Histogram, Page, wanted_format
from tests.support.exposition import read_openmetrics, read_prometheus

READERS = {OPENMETRICS: read_openmetrics, PROMETHEUS: read_prometheus}
ODD = 'quo"te \\ back\nline'


def samples(page: Page, content_type: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = page.text(content_type).decode()
    families = list(READERS[content_type](text))
    return {(each.name, tuple(sorted(each.labels.items()))): each.value for one in families for each in one.samples}


@pytest.mark.parametrize("content_type", READERS)
def test_both_parsers_read_every_kind(content_type: str) -> None:
    page, histogram = Page(), Histogram((0.1, 1.0))
    for value in (0.1, 0.5, 7.0):
        histogram.observe(value)
    page.gauge("a_gauge", "Help with\nlines \\ and more.", 1.5, {"label": ODD})
    page.gauge("a_gauge", "Help with\nlines \\ and more.", -3, {"label": "other"})
    page.counter("things_total", "Things.", 12)
    page.info("build_info", "Who.", {"version": "1"})
    page.summary("times", "Times.", 2.5, 3)
    page.histogram("waits", "Waits.", histogram, {"api": "Fetch"})
    found = samples(page, content_type)
    assert found["a_gauge", (("label", ODD),)] == 1.5
    assert found["a_gauge", (("label", "other"),)] == -3
    assert found["things_total", ()] == 12
    assert found["build_info", (("version", "1"),)] == 1
    assert found["times_count", ()] == 3
    assert found["times_sum", ()] == 2.5
    buckets = {le: found["waits_bucket", (("api", "Fetch"), ("le", le))] for le in ("0.1", "1.0", "+Inf")}
    assert buckets == {"0.1": 1, "1.0": 2, "+Inf": 3}
    assert found["waits_sum", (("api", "Fetch"),)] == pytest.approx(7.6)


@pytest.mark.parametrize("content_type", READERS)
def test_numbers_that_are_none(content_type: str) -> None:
    page = Page()
    for name, value in (("nan", math.nan), ("up", math.inf), ("down", -math.inf), ("yes", True)):
        page.gauge(name, name, value)
    found = samples(page, content_type)
    assert math.isnan(found["nan", ()])
    assert (found["up", ()], found["down", ()], found["yes", ()]) == (math.inf, -math.inf, 1)


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", PROMETHEUS),
        ("*/*", PROMETHEUS),
        ("text/html, */*;q=0.8", PROMETHEUS),
        ("application/openmetrics-text", OPENMETRICS),
        ("Application/OpenMetrics-Text; version=1.0.0, text/plain", OPENMETRICS),
        ("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.4,*/*;q=0.2", OPENMETRICS),
        ("text/plain;version=0.0.4;q=0.5,application/openmetrics-text;version=1.0.0;q=0.4,*/*;q=0.2", PROMETHEUS),
        ("application/openmetrics-text;q=0", PROMETHEUS),
        ("application/openmetrics-text; q = many", PROMETHEUS),
    ],
)
def test_who_likes_the_older_format_better_gets_it(accept: str, expected: str) -> None:
    """As `scrape_protocols` of Prometheus puts them in order."""
    assert wanted_format(accept) == expected


def test_one_family_has_one_kind() -> None:
    page = Page()
    page.gauge("x_total", "x", 1)
    with pytest.raises(AssertionError, match="x_total is a gauge"):
        page.counter("x_total", "x", 1)


def test_a_weight_stands_for_many() -> None:
    histogram = Histogram((1.0,))
    histogram.observe(0.5, 16)
    histogram.observe(3.0)
    assert list(histogram.cumulative()) == [(1.0, 16), (math.inf, 17)]
    assert (histogram.count, histogram.sum) == (17, 11.0)
