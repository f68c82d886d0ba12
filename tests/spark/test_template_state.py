"""Templates are learnt on, a batch that is repeated sees what it saw, and lines that fit nothing are counted."""

import re
import time
from pathlib import Path

import pytest

from moldau.spark.pipelines import template_state
from moldau.spark.pipelines.template_state import TaskMatcher, TemplateKeeper, begin
from moldau.spark.pipelines.templates import Learner, Matcher, learn, masked


def task(monkeypatch: pytest.MonkeyPatch, batch: int, number: int = 0) -> None:
    monkeypatch.setattr(template_state, "_place_of_task", lambda: ("q1", str(batch), number))


def test_what_comes_later_is_learnt_and_keeps_its_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(tmp_path / "templates-a")
    first = Learner()
    for message in ("login of amy done", "login of bob done", "disk 3 is full"):
        first.learn(message)
    first.rank()
    known = begin(folder, first)
    assert known == {"login of <*> done": "T1", "disk <*> is full": "T2"}
    keeper = TemplateKeeper(folder, learning=True)

    def run(batch: int, *messages: str, number: int = 0) -> list[tuple[str, str] | None]:
        task(monkeypatch, batch, number)
        matcher = TaskMatcher(folder, known, learning=True)
        found = [matcher.match(each) for each in messages]
        matcher.finish()
        return [None if each is None else (each.template, each.template_id) for each in found]

    new = ("link eth0 went down", "link eth1 went down", "login of cy done")
    before = run(0, *new)
    assert before[0] == before[1], "until it is learnt, a line has a template of its own words"
    assert before[0] is not None
    assert before[0][0] == "link <*> went down"
    assert before[2] == ("login of <*> done", "T1")
    keeper.collect()
    assert keeper.unmatched == {"q1": 2}
    after = run(1, *new)
    assert after == [("link <*> went down", "T3")] * 2 + [("login of <*> done", "T1")]
    assert run(0, *new) == before, "a batch that is repeated uses what it used before"
    keeper.collect()
    assert keeper.unmatched == {"q1": 2}, "and is counted once"
    assert begin(folder, Learner())["link <*> went down"] == "T3", "the state survives a restart"
    for number in range(60):
        run(number + 2, f"event{'abc'[number % 3] * number} number {number} happened")
        keeper.collect()
    assert len(list((tmp_path / "templates-a" / "pins").iterdir())) <= 22, "old pins are forgotten"


def test_named_templates_count_what_fits_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task(monkeypatch, 0)
    matcher = TaskMatcher(str(tmp_path / "t"), {"a <*>": "T1"}, learning=False)
    assert [each and each.template_id for each in map(matcher.match, ("a b", "c d"))] == ["T1", None]
    matcher.finish()
    keeper = TemplateKeeper(str(tmp_path / "t"), learning=False)
    keeper.collect()
    assert keeper.unmatched == {"q1": 1}


def test_matching_is_linear_and_as_patterns_would_match() -> None:
    template = "<*>".join(["start ", " a ", " b ", " a ", " c ", " end"])
    pattern = re.compile("(.*?)".join(re.escape(part) for part in template.split("<*>")), re.S)
    for message in ("start 1 a 2 b 3 a 4 c 5 end", "start  a  b  a  c  end", "start  a  b  a  c end", "start a end"):
        found, expected = Matcher([template]).match(message), pattern.fullmatch(message)
        assert (found and found.parameters) == (expected and expected.groups()), message
    began = time.perf_counter()
    assert Matcher([template]).match("start " + " a  b " * 20_000) is None
    assert time.perf_counter() - began < 0.5
    assert masked("it took 12 ms or 13").template == "it took <*> ms or <*>"
    assert masked("it took 12 ms or 13").parameters == ("12", "13")
    assert learn(["x 1", "x 2", "y"])[0] == "x <*>"
