"""Java's patterns of topic names, in Python: the same topics, or a refusal that names what is not known."""

import pytest

from moldau.spark.options import OptionError, parse_stream_options
from moldau.spark.topic_patterns import PatternRefused, topic_pattern

TOPICS = ("orders", "Orders-1", "a.b_c", "x9", "_hidden", "zz")


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        (r"^\p{Lower}+$", ["orders", "zz"]),
        (r"^\p{Alpha}+$", ["orders", "zz"]),
        (r"^\p{javaUpperCase}", ["Orders-1"]),
        (r"\p{IsPunctuation}|\p{Punct}", None),
        (r"\p{Punct}", ["Orders-1", "a.b_c", "_hidden"]),
        (r"^[\p{Alnum}&&[^\p{Digit}]]+$", ["orders", "zz"]),
        (r"^[a-z&&[^o]]+\d?$", ["x9", "zz"]),
        (r"^[a-m[x-z]]", ["a.b_c", "x9", "zz"]),
        (r"^\Qa.b\E", ["a.b_c"]),
        (r"\P{L}\z", ["Orders-1", "x9"]),
        (r"^\p{L}++$", ["orders", "zz"]),
        (r"(?<name>orders)", ["orders"]),
        (r"(?i)^ORDERS", ["orders", "Orders-1"]),
        (r"^[^\W_]+$", ["orders", "x9", "zz"]),
        (r"^[._-]", ["_hidden"]),
        (r"orders|zz", ["orders", "zz"]),
        (r"(?i)^[^o_]", ["a.b_c", "x9", "zz"]),
        (r"(?i)^[^P-_]", ["orders", "Orders-1", "a.b_c"]),
        (r"^(?i:[^o])", ["a.b_c", "x9", "_hidden", "zz"]),
        (r"^(?i:x)[^Z]", ["x9"]),
        (r"(?i)^\p{Lu}", ["orders", "Orders-1", "a.b_c", "x9", "zz"]),
        (r"(?i)^\P{Lower}", ["_hidden"]),
        (r"^[z&&]", ["zz"]),
        (r"^[&&z]", ["zz"]),
        (r"^z{2}$", ["zz"]),
        (r"[&&]", None),
        (r"z{,2}", None),
        (r"^{", None),
        (r"^\x61", None),
        (r"^[a-z", None),
        (r"(?x)a b", None),
        (r"\X", None),
        (r"\p{script=Greek}", None),
        (r"(", None),
    ],
)
def test_the_same_topics_as_in_java(pattern: str, found: list[str] | None) -> None:
    options = {"kafka.bootstrap.servers": "h:1", "subscribePattern": pattern}
    if found is None:
        with pytest.raises(PatternRefused):
            topic_pattern(pattern)
        with pytest.raises(OptionError, match="option 'subscribePattern'"):
            parse_stream_options(options)
    else:
        assert [topic for topic in TOPICS if topic_pattern(pattern).search(topic)] == found
        parse_stream_options(options)
