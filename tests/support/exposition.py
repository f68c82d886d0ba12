"""prometheus_client's parsers, which have no types."""

from typing import Any

from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics_parser

read_openmetrics: Any = openmetrics_parser.text_string_to_metric_families
read_prometheus: Any = parser.text_string_to_metric_families
