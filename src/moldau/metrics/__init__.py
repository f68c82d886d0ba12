"""Numbers for people who watch: histograms that are cheap to fill, the text Prometheus reads, and the HTTP port it
reads it from. What a node counts is told in `moldau.broker.metrics`.
"""

from moldau.metrics.histogram import SECONDS, Histogram
from moldau.metrics.http import HttpAnswer, HttpEndpoint
from moldau.metrics.text import OPENMETRICS, PROMETHEUS, Page, wanted_format

__all__ = ["OPENMETRICS", "PROMETHEUS", "SECONDS", "Histogram", "HttpAnswer", "HttpEndpoint", "Page", "wanted_format"]
