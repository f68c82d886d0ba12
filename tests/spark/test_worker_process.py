"""Workers are not made to walk through what they imported after each task."""

import gc
import sys
from types import SimpleNamespace

import pytest

from moldau.spark import worker_process


def test_imports_are_kept_out_of_collections_once_and_in_workers_only(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[None] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(None))
    worker_process._freeze.cache_clear()
    worker_process.keep_imports_out_of_collections()
    assert not frozen, "this process is nobody's worker"
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__spec__=None))
    worker_process.keep_imports_out_of_collections()
    assert not frozen, "nor is a program that was started by its path"
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__spec__=SimpleNamespace(name="pyspark.daemon")))
    worker_process.keep_imports_out_of_collections()
    worker_process.keep_imports_out_of_collections()
    assert len(frozen) == 1
    worker_process._freeze.cache_clear()
