"""Topic expressions in RE2 syntax. Expected results in the table were computed by RE2/J 1.8, the engine Kafka uses."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.groups.regex import Regex, resolve
from moldau.groups.regex_syntax import InvalidRegex

NAMES = (
    "orders orders-eu a b c abc aac aa aaa aaaa ab aab ABC abC Ab aB a.c a.b a.bx foo foo-bar foobar x ax -x 12 a1 w.5 "
    "_ - . z"
)

TABLE = {
    "orders-.*": "orders-eu",
    "a|b": "a b",
    "(a|b)*c": "c abc aac",
    "a{2,3}": "aa aaa",
    "a{2,}": "aa aaa aaaa",
    "x{,3}": "",
    "[a-c]+": "a b c abc aac aa aaa aaaa ab aab",
    "[^a]": "b c x _ - . z",
    r"\w+\.\d": "w.5",
    "(?i)ABC": "abc ABC abC",
    "(?i:a)b": "ab Ab",
    "(?i)a(?-i)b": "ab Ab",
    r"\Aabc\z": "abc",
    r"\bfoo\b": "foo",
    r"foo\b-bar": "foo-bar",
    r"\Qa.b\E.*": "a.b a.bx",
    "[[:alpha:]]b": "ab Ab",
    r"\PL": "_ - .",
    r"[\d-]+": "12 -",
    r"\x61\x{62}": "ab",
    r"\141": "a",
    "(?P<first>a)(?<second>b)": "ab",
    "a*?b": "b ab aab",
    "(|a)+b": "b ab aab",
    "a{0}": "",
    r"\-": "-",
}

ANY_NAMES = (
    *(
        "app one",
        "app:1",
        "app/1",
        "Größe",
        "größe",
        "日本",
        "αβγ",
        "ΑΒΓ",
        "tab\there",
        "line\nbreak",
        "é",
        "É",
        "Ж",
        "~",
    ),
    *("naïve_1", ""),
)

ANY_TABLE = {
    "app.*": ["app one", "app:1", "app/1"],
    r"app\s\w+": ["app one"],
    "[[:punct:]]": ["~"],
    r"\p{Lu}\pL+": ["Größe", "ΑΒΓ"],
    r"\p{Greek}+": ["αβγ", "ΑΒΓ"],
    r"\p{Han}+": ["日本"],
    r"\p{Common}": ["~"],
    r"\p{Latin}+": ["Größe", "größe", "é", "É"],
    "(?i)größe": ["Größe", "größe"],
    "(?i)[α-γ]+": ["αβγ", "ΑΒΓ"],
    "[à-ÿ]": ["é"],
    ".*break": [],
    "(?s).*break": ["line\nbreak"],
    "[[:^ascii:]]+": ["日本", "αβγ", "ΑΒΓ", "é", "É", "Ж"],
    "[[:cntrl:]]|tab[[:cntrl:]]here": ["tab\there"],
    r"\W": ["é", "É", "Ж", "~"],
}

REFUSED = [
    "(a",
    "a)",
    "[a",
    "a**",
    "a*+",
    "*",
    "a{1001}",
    "a{3,2}",
    "a{2}{3}",
    "(?=a)",
    "(?<!a)b",
    r"\1",
    r"\e",
    "[z-a]",
    "[[:foo:]]",
    "(?x)a",
    "a\\",
]


@pytest.mark.parametrize("pattern", TABLE)
def test_matches_what_re2_matches(pattern: str) -> None:
    regex = Regex(pattern)
    assert [name for name in NAMES.split() if regex.matches(name)] == TABLE[pattern].split()


@pytest.mark.parametrize("pattern", ANY_TABLE)
def test_names_may_have_other_characters_than_topics(pattern: str) -> None:
    regex = Regex(pattern, frozenset[str]().union(*ANY_NAMES))
    assert [name for name in ANY_NAMES if regex.matches(name)] == ANY_TABLE[pattern]


@pytest.mark.parametrize("pattern", REFUSED)
def test_refuses_what_re2_refuses(pattern: str) -> None:
    with pytest.raises(InvalidRegex):
        Regex(pattern)


@pytest.mark.parametrize("pattern", ["((((a{1000}){1000}){1000}){1000})", "(" * 200 + ")" * 200, "a" * 1001])
def test_refuses_what_would_cost_too_much(pattern: str) -> None:
    with pytest.raises(InvalidRegex):
        Regex(pattern)


def test_no_expression_is_slow() -> None:
    """Python's `re` would take longer than the universe has existed."""
    regex = Regex("(a*)*(a*)*(a|aa)+(.*a){20}b")
    assert not regex.matches("a" * 249)
    assert regex.matches("a" * 248 + "b")


def test_resolve_ignores_expressions_it_cannot_read() -> None:
    assert resolve(["b.*", "("], ["bills", "orders"]) == {"b.*": frozenset({"bills"}), "(": frozenset()}


PIECES = st.recursive(
    st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\d", r"\w", "^", "$", r"\b", "-"]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{1,2}", "*?"])).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
    ),
    max_leaves=8,
)


@given(pattern=PIECES, name=st.text("ab1-_.", max_size=6))
def test_agrees_with_pythons_own_engine(pattern: str, name: str) -> None:
    """On the part of the syntax both have. `$` is `\\Z` there: no topic name ends with a newline."""
    assert Regex(pattern).matches(name) == (re.compile(pattern).fullmatch(name) is not None)


@pytest.mark.parametrize("depth", range(1, 12))
def test_nothing_repeated_is_nothing(depth: int) -> None:
    """However often: a thousand to the power of `depth` would never end."""
    pattern = "(" * depth + ")" + "{1000})" * (depth - 1) + "{1000}x"
    assert Regex(pattern).matches("x")
    assert not Regex(pattern).matches("xx")


def test_a_long_match_pauses() -> None:
    regex = Regex("(a|b)*a(a|b){300}")
    assert sum(1 for _ in regex.slices("ab" * 5_000)) > 50
