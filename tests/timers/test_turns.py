"""Long work in turns of the loop: bounded, fair, and nobody's failure is another's."""

import asyncio
from collections.abc import Generator

import pytest

from moldau.timers.turns import PART_MS, Turns, let_go


class SlowClock:
    """Every look at it takes as long as a slice should."""

    def __init__(self, step_ms: float) -> None:
        self.now_ms = 0.0
        self.step_ms = step_ms

    def __call__(self) -> float:
        self.now_ms += self.step_ms
        return self.now_ms


def _count(to: int, seen: list[str], name: str) -> Generator[None, None, str]:
    for number in range(to):
        seen.append(f"{name}{number}")
        yield
    return name


def test_what_needs_one_slice_is_done_at_once() -> None:
    async def run() -> None:
        turns = Turns(asyncio.get_running_loop(), SlowClock(0))
        assert turns.run(_count(0, [], "a")) == "a"
        assert len(turns) == 0

    asyncio.run(run())


def test_a_turn_gives_its_part_and_no_more() -> None:
    async def run() -> None:
        seen: list[str] = []
        turns = Turns(asyncio.get_running_loop(), SlowClock(PART_MS / 2))
        works = [turns.run(_count(20, seen, name)) for name in "abcdefgh"]
        before = len(seen)
        await asyncio.sleep(0)
        assert len(seen) - before <= 2  # of eight that wait
        assert all(isinstance(work, asyncio.Future) for work in works)
        assert await asyncio.gather(*works) == list("abcdefgh")  # type: ignore[arg-type]  # futures, as just asserted

    asyncio.run(run())


def test_slices_are_taken_in_rotation() -> None:
    async def run() -> None:
        seen: list[str] = []
        turns = Turns(asyncio.get_running_loop(), SlowClock(0))
        long, short = turns.run(_count(1_000, seen, "l")), turns.run(_count(3, seen, "s"))
        assert isinstance(short, asyncio.Future)
        assert isinstance(long, asyncio.Future)
        assert await short == "s"
        assert not long.done()
        long.cancel()
        while len(turns):
            await asyncio.sleep(0)
        assert len(seen) < 50

    asyncio.run(run())


def test_work_that_fails_fails_alone() -> None:
    def fails() -> Generator[None, None, None]:
        yield
        raise ValueError("as planned")

    async def run() -> None:
        turns = Turns(asyncio.get_running_loop(), SlowClock(0))
        failing, other = turns.run(fails()), turns.run(_count(5, [], "a"))
        assert isinstance(failing, asyncio.Future)
        assert isinstance(other, asyncio.Future)
        with pytest.raises(ValueError, match="as planned"):
            await failing
        assert await other == "a"

    asyncio.run(run())


def test_of_coroutines_one_has_its_turn() -> None:
    async def run() -> None:
        turns = Turns(asyncio.get_running_loop(), SlowClock(0))
        ran: list[int] = []

        async def work(name: int) -> None:
            for _ in range(3):
                await turns.next_turn()
                ran.append(name)

        tasks = [asyncio.ensure_future(work(number)) for number in range(5)]
        seen = 0
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            assert len(ran) - seen <= 1
            seen = len(ran)
        assert ran == [0, 1, 2, 3, 4] * 3

    asyncio.run(run())


def test_long_lists_are_freed_piece_by_piece() -> None:
    freed = 0

    class Counted:
        def __del__(self) -> None:
            nonlocal freed
            freed += 1

    lists = [[Counted() for _ in range(12_000)], [Counted() for _ in range(300)]]
    pieces = []
    for _ in let_go(*lists):
        pieces.append(freed)
        freed = 0
    assert pieces == [1_000] * 12 + [300]
    assert lists == [[], []]
