"""Pipelines: topics → parse → SQL and Python → windows, joins, state → topics, tables, databases. In YAML or Python."""
