"""The checker sees every anomaly it is there for, and nothing in a good history."""

from __future__ import annotations

import pytest

from tests.cluster.torture.history import FinalRead, History, anomalies


def good() -> tuple[History, FinalRead]:
    records = [(0, 0, b"a/0"), (0, 1, b"a/1"), (1, 0, b"b/0"), (1, 2, b"t/0"), (0, 3, b"x/0")]
    history = History(
        acked={b"a/0": (0, 0), b"b/0": (1, 0)},
        unknown={b"a/1"},
        committed={"t": [b"t/0"]},
        aborted={"x": [b"x/0"]},
        polls=[[(0, 0, b"a/0"), (1, 0, b"b/0"), (0, 1, b"a/1")]],
    )
    return history, FinalRead(records, records[:-1])


def test_a_good_history() -> None:
    assert anomalies(*good()) == []


def test_each_anomaly_is_seen() -> None:
    history, final = good()
    history.acked[b"a/9"] = (0, 7)
    assert anomalies(history, final) == ["lost: b'a/9' acknowledged at (0, 7)"]

    history, final = good()
    history.acked_somewhere.add(b"a/9")
    assert anomalies(history, final) == ["lost: b'a/9' acknowledged"]

    history, final = good()
    history.polls[0].append((1, 3, b"b/1"))
    assert anomalies(history, final) == ["lost: b'b/1' was read at (1, 3)"]

    history, final = good()
    history.acked[b"a/0"] = (0, 1)
    assert "inconsistent offset (0, 1)" in anomalies(history, final)[0]

    history, final = good()
    final.everything.append((0, 4, b"a/1"))
    found = anomalies(history, final)
    assert any(each.startswith("duplicate") for each in found)
    assert any(each.startswith("out of order") for each in found)

    history, final = good()
    history.polls[0].append((0, 0, b"a/0"))
    assert anomalies(history, final) == ["non-monotonic poll of consumer 0: b'a/0' at (0, 0)"]


@pytest.mark.parametrize(
    ("ended", "expected"), [("committed", "lacks"), ("aborted", "G1a"), ("undecided", "torn transaction")]
)
def test_broken_transactions_are_seen(ended: str, expected: str) -> None:
    history, final = good()
    history.committed.clear()
    history.aborted.clear()
    getattr(history, ended)["t"] = [b"t/0", b"t/1"]
    found = anomalies(history, final)
    assert len(found) == 1
    assert expected in found[0]
