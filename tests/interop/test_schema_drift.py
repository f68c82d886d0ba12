"""The message table beside the schemas in Apache Kafka's own jars: a new Kafka release shows here what it changed."""

import json
import re
import zipfile
from typing import Any

import pytest

from moldau.wire import ErrorCode, schema
from moldau.wire.schema import NEVER, FieldSpec, StructSpec, Versions
from tests.interop.apache_kafka import compile_java, java_command, kafka_libs
from tests.interop.peers.workshop import run

# Not ours: headers (written by hand), APIs of the ZooKeeper era, tiered storage.
LEFT_OUT = re.compile(r"RequestHeader|ResponseHeader|Remote\w+")
LATEST = 32767


def kafka_schemas() -> dict[str, dict[str, Any]]:
    found = {}
    for jar in sorted(kafka_libs().glob("kafka-*.jar")):
        if jar.name.startswith("kafka-streams"):  # its messages never leave the application
            continue
        with zipfile.ZipFile(jar) as archive:
            for name in archive.namelist():
                if re.search(r"(^|/)(message|metadata)/\w+\.json$", name):
                    text = re.sub(r"(?m)^\s*//.*$", "", archive.read(name).decode())
                    parsed = json.loads(re.sub(r'(?m)//[^\n"]*$', "", text))
                    if parsed["validVersions"] != "none" and not LEFT_OUT.fullmatch(parsed["name"]):
                        found[parsed["name"]] = parsed
    return found


SCHEMAS = kafka_schemas()


def versions(text: str | None, outer: Versions) -> Versions:
    if text in (None, "none"):
        return NEVER
    assert text is not None
    first, _, last = text.removesuffix("+").partition("-")
    end = LATEST if text.endswith("+") else int(last or first)
    found = Versions(int(first), end).within(outer)
    return found if found.first <= found.last else NEVER


def snake(name: str) -> str:
    name = name.replace("KRaft", "Kraft").replace("ISR", "Isr")
    name = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()


def default(field: dict[str, Any]) -> str | None:
    value = field.get("default", ...)
    if value is ...:
        return None
    text = "null" if value is None else str(value)
    if text.lower() in ("true", "false"):
        text = text.lower()
    if text.startswith("0x"):
        text = str(int(text, 16))
    is_zero = text in ("", "false") or (text == "0" and field["type"].startswith(("int", "uint")))
    return None if is_zero else text


def compare_fields(
    theirs: list[dict[str, Any]], ours: StructSpec, outer: Versions, shared: dict[str, Any], path: str
) -> None:
    present = [
        field for field in theirs if versions(field.get("versions") or field.get("taggedVersions"), outer) != NEVER
    ]
    assert [snake(field["name"]) for field in present] == [field.name for field in ours.fields], path
    for field, spec in zip(present, ours.fields, strict=True):
        compare_field(field, spec, outer, shared, f"{path}.{spec.name}")


def compare_field(field: dict[str, Any], spec: FieldSpec, outer: Versions, shared: dict[str, Any], path: str) -> None:
    theirs = versions(field.get("versions") or field.get("taggedVersions"), outer)
    assert spec.versions == theirs, path
    kind = field["type"].removeprefix("[]")
    assert spec.is_array == field["type"].startswith("[]"), path
    assert spec.type == (kind if kind in schema.SCALARS else "struct"), path
    assert spec.nullable == versions(field.get("nullableVersions"), theirs), path
    assert spec.tag == field.get("tag"), path
    assert spec.tagged == versions(field.get("taggedVersions"), theirs), path
    assert spec.default == default(field), path
    if spec.struct is not None:
        assert spec.struct.name == kind, path
        if kind in shared:
            inner, fields = shared[kind]
            compare_fields(fields, spec.struct, inner, shared, path)
        else:
            compare_fields(field["fields"], spec.struct, theirs, shared, path)


def test_the_table_has_every_message() -> None:
    assert set(SCHEMAS) == set(schema.names())


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_the_table_says_what_kafka_says(name: str) -> None:
    theirs, ours = SCHEMAS[name], schema.message(name)
    everything = Versions(0, LATEST)
    assert ours.versions == versions(theirs["validVersions"], everything)
    assert ours.flexible == versions(theirs["flexibleVersions"], ours.versions)
    assert ours.number == theirs.get("apiKey", -1)
    assert ours.unstable_last == bool(theirs.get("latestVersionUnstable"))
    if theirs["type"] == "request":
        assert set(ours.listeners) == set(theirs["listeners"])
    shared = {
        struct["name"]: (versions(struct.get("versions", "0+"), ours.versions), struct["fields"])
        for struct in theirs.get("commonStructs", [])
    }
    compare_fields(theirs["fields"], ours.root, ours.versions, shared, name)


def test_error_codes_are_kafkas(tmp_path: Any) -> None:
    source = tmp_path / "ErrorCodes.java"
    source.write_text(
        "import org.apache.kafka.common.protocol.Errors; import org.apache.kafka.common.errors.RetriableException;"
        "public class ErrorCodes { public static void main(String[] args) { for (Errors e : Errors.values())"
        ' System.out.println(e.code() + " " + e.name() + " " + (e.exception() instanceof RetriableException)); } }'
    )
    output = run(java_command("ErrorCodes", classes=compile_java(source)))
    lines = [line.split() for line in output.stdout.splitlines() if re.match(r"-?\d+ [A-Z_]+ (true|false)$", line)]
    theirs = {(int(code), name, retriable == "true") for code, name, retriable in lines}
    assert theirs == {(int(code), code.name, code.retriable) for code in ErrorCode}
