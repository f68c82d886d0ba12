"""Metrics as text: OpenMetrics 1.0, or the older format of Prometheus, from the same page.

Samples of a family stand together in both formats, so a page keeps them by family, already written: a scrape of ten
thousand series joins strings and makes nothing else. In OpenMetrics the family of a counter is named without `_total`,
its sample with it; in the older format both have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from moldau.metrics.histogram import Histogram

Kind = Literal["counter", "gauge", "histogram", "summary", "info"]
Labels = Mapping[str, object]

OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
_NO_LABELS: Labels = {}
_TOTAL = "_total"


class _Family(NamedTuple):
    kind: Kind
    help: str
    lines: list[str]


class Page:
    """All families of one scrape. A family is declared by its first sample; a counter's name ends in `_total`."""

    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}

    def __len__(self) -> int:
        """How many samples there are."""
        return sum(len(family.lines) for family in self._families.values())

    def gauge(self, name: str, help_text: str, value: float, labels: Labels = _NO_LABELS) -> None:
        self._lines(name, "gauge", help_text).append(f"{name}{labels_text(labels)} {number_text(value)}")

    def counter(self, name: str, help_text: str, value: float, labels: Labels = _NO_LABELS) -> None:
        assert name.endswith(_TOTAL), name
        self._lines(name, "counter", help_text).append(f"{name}{labels_text(labels)} {number_text(value)}")

    def info(self, name: str, help_text: str, labels: Labels) -> None:
        """A gauge that is always 1 and says something by its labels; its name ends in `_info`."""
        self._lines(name, "info", help_text).append(f"{name}{labels_text(labels)} 1")

    def summary(self, name: str, help_text: str, total: float, count: int, labels: Labels = _NO_LABELS) -> None:
        lines, text = self._lines(name, "summary", help_text), labels_text(labels)
        lines.append(f"{name}_count{text} {count}")
        lines.append(f"{name}_sum{text} {number_text(total)}")

    def histogram(self, name: str, help_text: str, histogram: Histogram, labels: Labels = _NO_LABELS) -> None:
        lines, text = self._lines(name, "histogram", help_text), labels_text(labels)
        before = text[:-1] + "," if text else "{"
        for bound, count in histogram.cumulative():
            lines.append(f'{name}_bucket{before}le="{number_text(bound)}"}} {count}')
        lines.append(f"{name}_count{text} {histogram.count}")
        lines.append(f"{name}_sum{text} {number_text(histogram.sum)}")

    def _lines(self, name: str, kind: Kind, help_text: str) -> list[str]:
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = _Family(kind, help_text, [])
        assert family.kind == kind, f"{name} is a {family.kind}"
        return family.lines

    def text(self, content_type: str) -> bytes:
        """In the format of this content type."""
        is_open = content_type == OPENMETRICS
        parts: list[str] = []
        for name, (kind, help_text, lines) in self._families.items():
            shown, shown_kind = name, kind
            if is_open and kind in ("counter", "info"):
                shown = name.removesuffix(_TOTAL).removesuffix("_info")
            elif kind == "info":
                shown_kind = "gauge"
            parts += (f"# HELP {shown} {_escaped(help_text)}", f"# TYPE {shown} {shown_kind}", *lines)
        if is_open:
            parts.append("# EOF")
        return "\n".join((*parts, "")).encode()


def wanted_format(accept: str) -> str:
    """OpenMetrics for those who name it and like nothing we have better: by their weights (`q`), as HTTP has it."""
    weights = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for each in accept.lower().split(","):
        kind, *parameters = (part.strip() for part in each.split(";"))
        if kind in weights:
            weights[kind] = max(weights[kind], _weight(parameters))
    open_metrics, plain = weights.values()
    return OPENMETRICS if open_metrics > 0 and open_metrics >= plain else PROMETHEUS


def _weight(parameters: list[str]) -> float:
    for each in parameters:
        name, _, value = each.partition("=")
        if name.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0


def labels_text(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join([f'{name}="{_quoted(str(value))}"' for name, value in labels.items()]) + "}"


def number_text(value: float) -> str:
    """Whole numbers stay whole; infinity and the absence of a number are written as both formats want them."""
    if isinstance(value, int):
        return str(int(value))
    if value != value:  # noqa: PLR0124 - only NaN differs from itself
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)


def _quoted(text: str) -> str:
    if '"' in text:
        return _escaped(text).replace('"', '\\"')
    return _escaped(text)


def _escaped(text: str) -> str:
    if "\\" in text or "\n" in text:
        return text.replace("\\", "\\\\").replace("\n", "\\n")
    return text
