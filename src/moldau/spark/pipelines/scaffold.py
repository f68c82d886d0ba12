"""A new pipeline file from a sample of a topic: its schema as it is found, ready to be read, changed and run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import yaml
from pyspark.sql import types as t

from moldau.client.cluster import Cluster, UnknownTopic
from moldau.spark.connecting import client_settings
from moldau.spark.fetch_client import read_range
from moldau.spark.options import EARLIEST, LATEST
from moldau.spark.pipelines.json_text import infer_schema, without_nulls
from moldau.spark.pipelines.schema import schema_text
from moldau.spark.ranges import FetchSettings, RangeToRead

_SAMPLE = 500
_SECURITY = ("security.protocol", "sasl.", "ssl.")
_SECRETS = ("sasl.jaas.config", "ssl.keystore.key", "ssl.key.pem")


def sample(kafka: Mapping[str, str], topic: str, count: int = _SAMPLE) -> list[bytes]:
    """The newest values of a topic, a share of each partition; raises ClientError."""
    settings = client_settings(kafka)
    found: list[bytes] = []
    with Cluster(settings, patience_s=5) as cluster:
        topics = cluster.topics([topic])
        if topics.missing:
            raise UnknownTopic(f"there is no topic {topic!r}")
        first = cluster.list_offsets(dict.fromkeys(topics.leaders, EARLIEST), topics=topics)
        last = cluster.list_offsets(dict.fromkeys(topics.leaders, LATEST), topics=topics)
    share = max(count // max(len(last), 1), 1)
    for (name, index), end in sorted(last.items()):
        start = max(first[name, index], end - share)
        work = RangeToRead(name, index, start, end, topics.address((name, index)))
        reading = FetchSettings(settings, read_committed=True, fail_on_data_loss=False, timeout_s=10)
        for columns in read_range(work, reading) if start < end else ():
            from moldau.records.arrow import binary_array

            found += [value for value in binary_array(columns.data, columns.values).to_pylist() if value is not None]
    return found


def secret_variables(kafka: Mapping[str, str]) -> dict[str, str]:
    """Of settings that nobody writes into a file, the variables of the environment that have them."""
    return {name: f"KAFKA_{name.upper().replace('.', '_')}" for name in _security(kafka) if _is_secret(name)}


def _security(kafka: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in kafka.items() if name.startswith(_SECURITY)}


def _is_secret(name: str) -> bool:
    return name in _SECRETS or "password" in name or "secret" in name


def pipeline_text(
    name: str, kafka: Mapping[str, str], topic: str, values: Sequence[bytes], variables: Mapping[str, str]
) -> str:
    """The file, as text; settings that have a variable are taken from there."""
    told = {
        each: f"${{secret:env:{variables[each]}}}" if each in variables else json.dumps(value, ensure_ascii=False)
        for each, value in sorted(_security(kafka).items())
    }
    source = topic.replace(".", "_").replace("-", "_")
    source = source if source[:1].isalpha() else f"t_{source}"
    lines = [
        f"name: {_plain(name)}",
        f"about: From topic {topic}.",
        "parameters:",
        f"  bootstrap: ${{MOLDAU_BOOTSTRAP_SERVER:-{kafka['bootstrap.servers']}}}",
        "",
        "kafka:",
        "  bootstrap.servers: ${bootstrap}",
        *(f"  {each}: {text}" for each, text in told.items()),
        "",
        "sources:",
        f"  {source}:",
        f"    topic: {_plain(topic)}",
        *_parse_lines(values),
        "",
        "sinks:",
        "  # Look at it first; then a topic, delta, iceberg, database, parquet: `moldau pipeline keys` has them all.",
        "  - console: 20",
        "",
    ]
    return "\n".join(lines)


def _plain(text: str) -> str:
    """As it is, unless YAML would take it for something else, such as nothing."""
    return text if yaml.safe_load(text) == text else json.dumps(text)


def _parse_lines(values: Sequence[bytes]) -> list[str]:
    schema = infer_schema(values)
    objects = sum(1 for each in values if each[:1].strip() == b"{")
    if schema is not None and 2 * objects >= len(values):
        lines = ["    parse:", "      format: json", "      schema:"]
        for field in without_nulls(schema).fields:
            if "`" in field.name:
                lines.append("        # a field with a backtick in its name is left out: no column is called so")
                continue
            kind = _time_or(field, values) or schema_text(field.dataType)
            lines.append(f"        {json.dumps(field.name)}: {json.dumps(kind)}")
        return [*lines, "      # require:", "      #   a rule with a name: some_column > 0"]
    if values and values[0][:1] == b"\0":
        return ["    parse: {format: registry, values: avro}  # and `registry: http://host:8081` at the top"]
    return ["    parse: {format: text, column: line}"]


def _time_or(field: t.StructField, values: Sequence[bytes]) -> str | None:
    """`timestamp` for a text that is a time in every value that has it."""
    if not isinstance(field.dataType, t.StringType):
        return None
    import datetime

    seen = False
    for value in values:
        try:
            text = json.loads(value).get(field.name)
        except (ValueError, AttributeError):
            continue
        if text is None:
            continue
        try:
            datetime.datetime.fromisoformat(text)
        except (TypeError, ValueError):
            return None
        seen = seen or len(text) > 10
    return "timestamp" if seen else None
