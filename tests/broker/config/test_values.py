"""Parsing and printing of single values, and the tables they stand in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.broker.config import ConfigType, ConfigValue, InvalidConfig
from moldau.broker.config.definition import Importance, Scope, Support, parse_table
from moldau.broker.config.registry import authorizer_definitions, broker_definitions, suggestion
from moldau.broker.config.values import parse_value, render_value

LONG_MAX = 2**63 - 1


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (ConfigType.INT, " 7 ", 7),
        (ConfigType.INT, "+7", 7),
        (ConfigType.INT, "-2147483648", -(2**31)),
        (ConfigType.SHORT, "32767", 32767),
        (ConfigType.LONG, "9223372036854775807", LONG_MAX),
        (ConfigType.DOUBLE, "1e3", 1000.0),
        (ConfigType.DOUBLE, "0.5d", 0.5),
        (ConfigType.DOUBLE, "-Infinity", float("-inf")),
        (ConfigType.BOOLEAN, " TRUE", True),
        (ConfigType.BOOLEAN, "False", False),
        (ConfigType.LIST, "a , b,c", ("a", "b", "c")),
        (ConfigType.LIST, " ", ()),
        (ConfigType.LIST, "a,", ("a", "")),
        (ConfigType.STRING, " a b ", "a b"),
        (ConfigType.PASSWORD, " p ", "p"),
    ],
)
def test_texts_become_values(kind: ConfigType, text: str, value: ConfigValue) -> None:
    assert parse_value("k", text, kind) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (ConfigType.INT, ""),
        (ConfigType.INT, "2147483648"),
        (ConfigType.INT, "1_000"),
        (ConfigType.INT, "1.0"),
        (ConfigType.INT, "9" * 5000),
        (ConfigType.SHORT, "32768"),
        (ConfigType.LONG, "9223372036854775808"),
        (ConfigType.DOUBLE, "inf"),
        (ConfigType.DOUBLE, "Infinityd"),
        (ConfigType.DOUBLE, "1_0"),
        (ConfigType.BOOLEAN, "yes"),
    ],
)
def test_what_java_would_refuse_is_refused(kind: ConfigType, text: str) -> None:
    with pytest.raises(InvalidConfig, match="for configuration k: ") as refused:
        parse_value("k", text, kind)
    assert refused.value.key == "k"
    assert refused.value.value == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None),
        (True, "true"),
        (5, "5"),
        (("a", "b"), "a,b"),
        ((), ""),
        (0.5, "0.5"),
        (0.0, "0.0"),
        (1e6, "1000000.0"),
        (1e7, "1.0E7"),
        (1e-6, "1.0E-6"),
        (1.5e-4, "1.5E-4"),
        (-123456789.25, "-1.2345678925E8"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
    ],
)
def test_values_print_as_java_prints_them(value: ConfigValue, text: str | None) -> None:
    assert render_value(value) == text


@given(st.floats(allow_nan=False) | st.integers(-(2**63), LONG_MAX) | st.booleans())
def test_printed_values_read_back_the_same(value: float) -> None:
    kind = {float: ConfigType.DOUBLE, int: ConfigType.LONG, bool: ConfigType.BOOLEAN}[type(value)]
    assert parse_value("k", render_value(value) or "", kind) == value


def test_a_table_row_says_everything_about_a_setting() -> None:
    (known,) = parse_table(
        """
my.levels list a,b {a,b,c}+ low broker internal only:c|b,c
    What it is.
"""
    ).values()
    assert known.name == "my.levels"
    assert known.type is ConfigType.LIST
    assert known.default == ("a", "b")
    assert known.importance is Importance.LOW
    assert known.scope is Scope.PER_BROKER
    assert known.internal
    assert known.support is Support.LIMITED
    assert known.accepted == ("c", "b,c")
    assert known.documentation == "What it is."
    assert known.parse("c,c,a") == ("c", "a")
    assert known.parse_supported("c") == ("c",)
    for refused in ("", "d", "a,,b"):
        with pytest.raises(InvalidConfig):
            known.parse(refused)
    with pytest.raises(InvalidConfig, match="set it to a,b or c or b,c, or leave it out"):
        known.parse_supported("a,c")


def test_every_broker_setting_is_documented_in_a_sentence_and_its_default_is_valid() -> None:
    definitions = {**broker_definitions(), **authorizer_definitions()}
    assert len(definitions) > 360
    for known in definitions.values():
        assert known.documentation.endswith("."), known.name
        if known.default_text is not None:
            assert known.parse_supported(known.default_text) == known.default


def test_passwords_and_only_they_are_sensitive() -> None:
    sensitive = {name for name, known in broker_definitions().items() if known.sensitive}
    assert {"ssl.key.password", "ssl.keystore.key", "sasl.jaas.config"} <= sensitive
    assert "ssl.keystore.location" not in sensitive


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("num.partitons", "Did you mean num.partitions"),
        ("LOG_DIRS", "Did you mean log.dirs"),
        ("qwertyuiop", ""),
    ],
)
def test_names_that_are_nearly_right_get_a_suggestion(name: str, hint: str) -> None:
    found = suggestion(name, broker_definitions())
    assert found.startswith(hint)
    assert bool(found) == bool(hint)
