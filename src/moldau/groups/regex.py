"""Regular expressions over names, in RE2 syntax (as Kafka takes them in KIP-848 subscriptions and elsewhere), matched
in linear time.

Python's `re` backtracks: one expression from one client could stop the broker. Here an expression becomes a
nondeterministic automaton whose deterministic form is built as names are matched, so no input is slow.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from enum import Enum
from typing import NamedTuple

from moldau.groups.regex_syntax import TOPIC_CHARACTERS, WORD, InvalidRegex, Node, parse

_PROGRAM_MAX = 2_000
_CACHE_MAX = 10_000
_WORK_PER_SLICE = 4_000  # characters, or instructions looked at: about a millisecond


class _Op(Enum):
    CHAR = 1
    """Consume one of `chars`, go to `a`."""
    SPLIT = 2
    START = 3
    END = 4
    WORD = 5
    NOT_WORD = 6
    MATCH = 7


class _Instruction(NamedTuple):
    op: _Op
    chars: frozenset[str] = frozenset()
    a: int = -1
    b: int = -1


class Regex:
    """A compiled expression. `matches` wants the whole name to match, as Kafka does.

    `alphabet` holds every character of the names to come.
    """

    __slots__ = ("_cache", "_program")

    def __init__(self, pattern: str, alphabet: frozenset[str] = TOPIC_CHARACTERS) -> None:
        self._program = _compile(parse(pattern, alphabet))
        self._cache: dict[tuple[frozenset[int], bool, bool, str], frozenset[int]] = {}

    def matches(self, name: str) -> bool:
        work = self.slices(name)
        while True:
            try:
                next(work)
            except StopIteration as done:
                return bool(done.value)

    def slices(self, name: str) -> Generator[None, None, bool]:
        """The same for the event loop: linear is not short, if name and expression are long."""
        states = frozenset((0,))
        at_start, after_word = True, False
        work = 0
        for char in name:
            work += 1
            if work >= _WORK_PER_SLICE:
                work = 0
                yield
            key = (states, at_start, after_word, char)
            following = self._cache.get(key)
            if following is None:
                work += len(self._program)
                following = self._step(states, at_start, after_word, char)
                if len(self._cache) >= _CACHE_MAX:
                    self._cache.clear()
                self._cache[key] = following
            if not following:
                return False
            states, at_start, after_word = following, False, char in WORD
        closed = self._closure(states, at_start, after_word, None)
        return any(self._program[index].op is _Op.MATCH for index in closed)

    def _step(self, states: frozenset[int], at_start: bool, after_word: bool, char: str) -> frozenset[int]:
        closed = self._closure(states, at_start, after_word, char)
        return frozenset(self._program[index].a for index in closed if char in self._program[index].chars)

    def _closure(self, states: Iterable[int], at_start: bool, after_word: bool, following: str | None) -> set[int]:
        """All states reachable without consuming a character, here, before this character (None: at the end)."""
        at_boundary = after_word != (following is not None and following in WORD)
        holds = {
            _Op.START: at_start,
            _Op.END: following is None,
            _Op.WORD: at_boundary,
            _Op.NOT_WORD: not at_boundary,
        }
        seen: set[int] = set()
        stack = list(states)
        while stack:
            index = stack.pop()
            if index in seen:
                continue
            seen.add(index)
            instruction = self._program[index]
            if instruction.op is _Op.SPLIT:
                stack += (instruction.a, instruction.b)
            elif holds.get(instruction.op, False):
                stack.append(instruction.a)
        return seen


def check_regex(pattern: str) -> None:
    """InvalidRegex when it is none."""
    Regex(pattern)


def resolve(patterns: Iterable[str], topic_names: Iterable[str]) -> dict[str, frozenset[str]]:
    """Which topics each expression matches. Takes a while with many topics: call it off the loop."""
    names = list(topic_names)
    resolved = {}
    for pattern in patterns:
        try:
            regex = Regex(pattern)
        except InvalidRegex:  # taken by another broker that knows more syntax: better no topics than no group
            resolved[pattern] = frozenset[str]()
            continue
        resolved[pattern] = frozenset(name for name in names if regex.matches(name))
    return resolved


def _compile(node: Node) -> list[_Instruction]:
    program: list[_Instruction] = []

    def add(instruction: _Instruction) -> int:
        if len(program) >= _PROGRAM_MAX:
            raise InvalidRegex("expression too large")
        program.append(instruction)
        return len(program) - 1

    def emit(piece: Node) -> None:
        """Code for a piece; it continues at the instruction after it."""
        if piece.kind == "char":
            at = add(_Instruction(_Op.CHAR, piece.chars))
            program[at] = program[at]._replace(a=at + 1)
        elif piece.kind == "concat":
            for part in piece.parts:
                emit(part)
        elif piece.kind == "either":
            emit_either(piece.parts)
        elif piece.kind == "repeat":
            emit_repeat(piece)
        else:
            at = add(_Instruction(_Op[piece.kind]))
            program[at] = program[at]._replace(a=at + 1)

    def emit_either(parts: tuple[Node, ...]) -> None:
        jumps = []
        for part in parts[:-1]:
            split = add(_Instruction(_Op.SPLIT))
            emit(part)
            jumps.append(add(_Instruction(_Op.SPLIT)))
            program[split] = _Instruction(_Op.SPLIT, a=split + 1, b=len(program))
        emit(parts[-1])
        for jump in jumps:
            program[jump] = _Instruction(_Op.SPLIT, a=len(program), b=len(program))

    def emit_repeat(piece: Node) -> None:
        body = piece.parts[0]
        for _ in range(piece.low):
            before = len(program)
            emit(body)
            if len(program) == before:
                break  # nothing, however often: `((){1000}){1000}` would take its time over it
        if piece.high == -1:
            split = add(_Instruction(_Op.SPLIT))
            emit(body)
            add(_Instruction(_Op.SPLIT, a=split, b=split))
            program[split] = _Instruction(_Op.SPLIT, a=split + 1, b=len(program))
            return
        splits = []
        for _ in range(piece.high - piece.low):
            splits.append(add(_Instruction(_Op.SPLIT)))
            emit(body)
        for split in splits:
            program[split] = _Instruction(_Op.SPLIT, a=split + 1, b=len(program))

    emit(node)
    program.append(_Instruction(_Op.MATCH))
    return program
