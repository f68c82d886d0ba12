"""Who reads from whom: names resolved, each part of a pipeline with the parts it works on.

Invariant: parts come in an order in which every input precedes its reader; a pipeline file cannot express a cycle,
because a step sees only what stands above it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from moldau.spark.pipelines import model
from moldau.spark.pipelines.errors import Problem
from moldau.spark.suggestions import did_you_mean

DEAD_LETTERS = "dead-letters-"  # and a source's name: the query that writes its bad records
SHARED = "shared-"  # and a source's name: the query of several sinks
# Literals, quoted names, comments, words, the rest: enough to find the tables of a SELECT.
_SQL_TOKEN = re.compile(
    r"""(?P<skip>\s+|--[^\n]*|/\*.*?\*/)|(?P<string>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.)*")"""
    r"""|`(?P<quoted>[^`]+)`|(?P<word>[A-Za-z_][\w.]*)|(?P<other>.)""",
    re.S,
)
_AFTER_TABLES = re.compile(
    "where|group|having|order|limit|window|union|intersect|except|join|inner|left|right|full|cross|semi|anti|on|using|"
    "lateral|tablesample|pivot|unpivot|sort|distribute|cluster|natural|select|qualify"
)


@dataclass(slots=True, frozen=True)
class Part:
    """A source, a step or a sink under the name others use, and the names of what it reads."""

    name: str
    item: model.Source | model.Step | model.Sink
    inputs: tuple[str, ...]


@dataclass(slots=True, frozen=True)
class Graph:
    sources: dict[str, Part]
    steps: dict[str, Part]
    sinks: dict[str, Part]

    def part(self, name: str) -> Part:
        return self.sources.get(name) or self.steps[name]

    def upstream(self, part: Part) -> Iterator[Part]:
        """Everything a part rests on, itself first."""
        yield part
        for name in part.inputs:
            yield from self.upstream(self.part(name))

    def streams(self, part: Part) -> bool:
        return any(is_stream(each.item) for each in self.upstream(part))

    def rests_on_tables(self, part: Part) -> bool:
        """Whether it depends on more than the stream: on something that may change between two batches."""
        return any(each.name in self.sources and not is_stream(each.item) for each in self.upstream(part))


def is_stream(item: object) -> bool:
    match item:
        case model.TopicSource():
            return not item.as_table
        case model.FileSource():
            return not item.static
        case model.DatabaseSource():
            return bool(item.cursor)
        case model.DeltaSource():
            return item.changes
        case model.PatternSource() | model.RateSource() | model.PythonSource():
            return True
        case _:
            return False


def resolve(pipeline: model.Pipeline) -> tuple[Graph, list[Problem]]:
    """The graph, and the names that lead nowhere. With problems the graph is incomplete."""
    problems: list[Problem] = []
    sources = {name: Part(name, source, ()) for name, source in pipeline.sources.items()}
    steps: dict[str, Part] = {}
    last = next(iter(sources)) if len(sources) == 1 else ""
    for number, step in enumerate(pipeline.steps, 1):
        name = step.name or f"step_{number}"
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            problems.append(
                Problem(step.where.of("name"), f"{name!r} cannot be a step's name", "use letters, digits and '_'")
            )
        if name in sources or name in steps:
            problems.append(Problem(step.where.of("name"), f"the name {name!r} is taken", "choose another"))
        known = (*sources, *steps)
        below = {other.name for other in pipeline.steps[number - 1 :] if other.name}
        inputs = _inputs(step, last, known, problems, below)
        steps[name] = Part(name, step, inputs)
        last = name
    sinks: dict[str, Part] = {}
    for sink in pipeline.sinks:
        inputs = _from(sink.from_, last, (*sources, *steps), sink, problems)
        name = sink.name or f"{model.kind_of(sink)}-{(inputs or ('?',))[0]}"
        if not inputs and not sink.name:
            continue  # is told: it would have its name from there
        if name in sinks:
            problems.append(
                Problem(sink.where.of("name"), f"two sinks are called {name!r}", "give each a `name:` of its own")
            )
        if not re.fullmatch(r"[A-Za-z0-9_][\w.-]*", name):
            problems.append(
                Problem(sink.where.of("name"), f"{name!r} cannot be a sink's name", "use letters, digits, '-', '_'")
            )
        if name.startswith(DEAD_LETTERS):
            fix = f"choose one that does not begin with {DEAD_LETTERS!r}"
            problems.append(Problem(sink.where.of("name"), f"{name!r} is a query for bad records", fix))
        sinks[name] = Part(name, sink, inputs)
    return Graph(sources, steps, sinks), problems


def _instead(name: str, known: tuple[str, ...], below: Collection[str]) -> str:
    return f"{name!r} stands below: move it up" if name in below else did_you_mean(name, known)


def _from(
    name: str,
    last: str,
    known: tuple[str, ...],
    item: model.Step | model.Sink,
    problems: list[Problem],
    below: Collection[str] = (),
) -> tuple[str, ...]:
    chosen = name or last
    if not chosen:
        problems.append(
            Problem(item.where.mark, "there are several sources", f"say which with `from:`, one of: {', '.join(known)}")
        )
        return ()
    if chosen not in known:
        problems.append(
            Problem(item.where.of("from"), f"nothing above is called {chosen!r}", _instead(chosen, known, below))
        )
        return ()
    return (chosen,)


def _inputs(
    step: model.Step, last: str, known: tuple[str, ...], problems: list[Problem], below: set[str]
) -> tuple[str, ...]:
    if isinstance(step, model.SqlStep):
        tables = sql_tables(step.sql)
        for table in tables:
            if table not in known:
                fix = _instead(table, known, below)
                problems.append(
                    Problem(step.where.of("sql"), f"the SQL reads {table!r}, which nothing above is called", fix)
                )
        return tuple(table for table in tables if table in known)
    if isinstance(step, model.UnionStep):
        found: list[str] = []
        for name in step.union:
            found.extend(_from(name, "", known, step, problems, below))
        return tuple(found)
    inputs = _from(step.from_, last, known, step, problems, below)
    if isinstance(step, model.JoinStep):
        if step.join not in known:
            fix = _instead(step.join, known, below)
            problems.append(Problem(step.where.of("join"), f"nothing above is called {step.join!r}", fix))
            return inputs
        return (*inputs, step.join)
    return inputs


def sql_tokens(sql: str) -> list[str]:
    """Words in lower case as written otherwise, strings as one quote, punctuation one by one."""
    found = []
    for match in _SQL_TOKEN.finditer(sql):
        if match["skip"]:
            continue
        if match["string"]:
            found.append("'")
        else:
            found.append(match["quoted"] or match["word"] or match["other"])
    return found


def sql_tables(sql: str) -> list[str]:
    """Names that stand where a SELECT has its tables, without those it defines itself (WITH x AS …)."""
    tokens = sql_tokens(sql)
    lower = [token.lower() for token in tokens]
    own = {
        lower[index]
        for index in range(len(tokens) - 2)
        if lower[index + 1] == "as"
        and tokens[index + 2] == "("
        and index > 0
        and lower[index - 1] in ("with", ",", "recursive")
    }
    found: list[str] = []
    expecting = False
    depth_of_list: list[int] = []
    depth = 0
    for index, sign in enumerate(tokens):
        word = lower[index]
        if sign == "(":
            depth += 1
            if expecting:
                expecting = False  # a subquery: its own FROM follows
            continue
        if sign == ")":
            depth -= 1
            while depth_of_list and depth_of_list[-1] > depth:
                depth_of_list.pop()
            continue
        if word in ("from", "join") and not (word == "from" and _inside_function(lower, index)):
            expecting = True
            if word == "from":
                depth_of_list.append(depth)
            continue
        if _AFTER_TABLES.fullmatch(word):
            if (
                word != "join"
                and depth_of_list
                and depth_of_list[-1] == depth
                and word in ("where", "group", "order", "having", "limit", "select", "union")
            ):
                depth_of_list.pop()
            expecting = False if word != "lateral" else expecting
            continue
        if sign == "," and depth_of_list and depth_of_list[-1] == depth:
            expecting = True
            continue
        if expecting:
            expecting = False
            following = tokens[index + 1] if index + 1 < len(tokens) else ""
            is_function = following == "(" and word not in own
            if re.fullmatch(r"[A-Za-z_]\w*", sign) and word not in own and not is_function and sign not in found:
                found.append(sign)
    return found


def _inside_function(words: list[str], index: int) -> bool:
    """`extract(year from t)`, `trim(both from x)` and `is distinct from` are not tables."""
    if index and words[index - 1] == "distinct":
        return True
    depth = 0
    for back in range(index - 1, -1, -1):
        if words[back] == ")":
            depth += 1
        elif words[back] == "(":
            if depth == 0:
                return back > 0 and words[back - 1] in ("extract", "trim", "substring", "overlay", "position")
            depth -= 1
        elif words[back] == "select" and depth == 0:
            return False
    return False
