"""Persistent maps against plain dicts, and what they cost."""

import time

from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.controller.persistent import PersistentMap, changed_keys

_STEPS = st.lists(st.tuples(st.integers(0, 60), st.one_of(st.none(), st.integers(1, 5))), max_size=120)


@settings(deadline=None)
@given(st.lists(_STEPS, max_size=8))
def test_a_map_is_the_dict_it_stands_for_and_never_changes(batches: list[list[tuple[int, int | None]]]) -> None:
    current: PersistentMap[int, int] = PersistentMap()
    history: list[tuple[PersistentMap[int, int], dict[int, int]]] = [(current, {})]
    for batch in batches:
        builder = current.builder()
        expected = dict(history[-1][1])
        for key, value in batch:
            if value is None:
                assert builder.remove(key) == expected.pop(key, None)
            else:
                builder.put(key, value)
                expected[key] = value
        current = builder.publish()
        history.append((current, expected))
    for made, expected in history:
        assert dict(made) == expected
        assert len(made) == len(expected)
        assert dict(made.items()) == expected
        assert sorted(made.values()) == sorted(expected.values())
        assert all((key in made) == (key in expected) for key in range(62))
        assert all(made.get(key, -1) == expected.get(key, -1) for key in range(62))


@settings(deadline=None)
@given(st.lists(_STEPS, min_size=1, max_size=8))
def test_changed_keys_are_exactly_those_that_differ(batches: list[list[tuple[int, int | None]]]) -> None:
    maps: list[PersistentMap[int, int]] = [PersistentMap(dict.fromkeys(range(40), 1))]
    for batch in batches:
        builder = maps[-1].builder()
        for key, value in batch:
            if value is None:
                builder.remove(key)
            else:
                builder.put(key, value)
        maps.append(builder.publish())
    for before in maps:
        for after in maps:
            expected = {key for key in range(62) if before.get(key) != after.get(key)}
            assert set(changed_keys(before, after)) == expected


def test_iteration_follows_history_and_not_hashes() -> None:
    made: PersistentMap[str, int] = PersistentMap()
    names = [f"topic-{number * 7919 % 1000}" for number in range(1000)]
    for number, name in enumerate(names):
        made = made.with_entry(name, number)
    assert list(made) == list(dict.fromkeys(names))


def test_one_more_entry_does_not_copy_the_rest() -> None:
    """50,000 single updates of a map that grows to 50,000: copying the dict each time would take minutes."""
    started = time.process_time()
    made: PersistentMap[int, int] = PersistentMap()
    for number in range(50_000):
        made = made.with_entry(number, number)
    assert len(made) == 50_000
    assert time.process_time() - started < 5
