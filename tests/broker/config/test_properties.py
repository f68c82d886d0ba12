"""server.properties and `--set`. The comparison with Java's own parser is in tests/interop/test_config_drift.py."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.broker.config import InvalidConfig, parse_overrides, parse_properties, read_properties


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("a=b", {"a": "b"}),
        ("  a : b ", {"a": "b "}),
        ("a b c", {"a": "b c"}),
        ("a", {"a": ""}),
        ("# c\n! d\n\n  # e\na=b # not a comment", {"a": "b # not a comment"}),
        ("a=1\r\nb=2\rc=3\nd=4", {"a": "1", "b": "2", "c": "3", "d": "4"}),
        ("a=x,\\\n   y,\\\r\n\tz", {"a": "x,y,z"}),
        ("a=x\\\\\nb=y", {"a": "x\\", "b": "y"}),
        ("# a comment does not go on\\\na=b", {"a": "b"}),
        ("a=b\\\n# part of the value", {"a": "b# part of the value"}),
        ("a\\=b\\:c\\ d=e", {"a=b:c d": "e"}),
        ("a=\\u0041\\t\\q", {"a": "A\tq"}),
        ("a=\\uD83D\\uDE00", {"a": "😀"}),
        ("a=1\na=2", {"a": "2"}),
        ("a==b", {"a": "=b"}),
        ("a=b\\", {"a": "b"}),
        ("", {}),
    ],
)
def test_the_syntax_of_java_properties(text: str, settings: dict[str, str]) -> None:
    assert parse_properties(text) == settings


@pytest.mark.parametrize("text", ["a=\\u12", "a=\\u12g4", "\\u=b"])
def test_a_broken_unicode_escape_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfig, match="four hexadecimal digits"):
        parse_properties(text)


@given(st.dictionaries(st.text(min_size=1), st.text()))
def test_escaped_settings_read_back_the_same(settings: dict[str, str]) -> None:
    def escaped(text: str) -> str:
        units = text.encode("utf-16-be", "surrogatepass")
        return "".join(f"\\u{units[index]:02x}{units[index + 1]:02x}" for index in range(0, len(units), 2))

    text = "\n".join(f"{escaped(key)}={escaped(value)}" for key, value in settings.items())
    assert parse_properties(text) == settings


def test_files_are_latin_1_as_kafka_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_bytes(b"broker.rack=caf\xe9\n")
    assert read_properties(str(path)) == {"broker.rack": "café"}


def test_a_file_that_cannot_be_read_says_which(tmp_path: Path) -> None:
    path = str(tmp_path / "missing.properties")
    with pytest.raises(InvalidConfig, match=r"missing\.properties: No such file"):
        read_properties(path)
    broken = tmp_path / "broken.properties"
    broken.write_text("a=\\u1")
    with pytest.raises(InvalidConfig, match=r"broken\.properties: Malformed"):
        read_properties(str(broken))


def test_overrides_are_taken_literally() -> None:
    assert parse_overrides(["a=b=c", " x = y ", "z="]) == {"a": "b=c", "x": "y", "z": ""}
    for wrong in ("a", "=b", ""):
        with pytest.raises(InvalidConfig, match="write it as key=value"):
            parse_overrides([wrong])
