"""Functions are compiled at their first call and cached until the code changes."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from outpace.indexes import compiled_loops as loops
from outpace.indexes.compiled_loops import as_tokens, compiled_loop, grown


def add_up(values: np.ndarray, start: int) -> int:
    total = start
    for value in values:
        total += value
    return total


@pytest.mark.slow
def test_nothing_is_compiled_by_importing() -> None:
    program = "\n".join(
        [
            "import importlib, pkgutil, sys",
            "import outpace.indexes as indexes",
            "names = [module.name for module in pkgutil.walk_packages(indexes.__path__, 'outpace.indexes.')]",
            "modules = [importlib.import_module(name) for name in names]",
            "assert len(modules) > 10 and not {'numba', 'faiss'} & {*sys.modules}",
        ]
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_loop_runs_with_and_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.array([2**31 - 1] * 3, np.int32)  # more than int32 holds
    monkeypatch.setattr(loops, "find_spec", lambda name: None)
    plain = compiled_loop(add_up)
    assert plain(values, 1) == plain.plain(values, 1) == 3 * (2**31 - 1) + 1
    assert "compiled" not in plain.__dict__
    pytest.importorskip("numba")
    assert compiled_loop(add_up).compiled(values, 1) == 3 * (2**31 - 1) + 1


def test_what_is_compiled_is_named_after_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    monkeypatch.setattr(loops, "_hash_of_sources", lambda folder: "12345678")
    monkeypatch.setattr(add_up, "__qualname__", "add_up")
    assert compiled_loop(add_up).compiled.py_func.__qualname__ == "add_up-12345678"


def test_a_loop_runs_without_a_writable_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    numba = pytest.importorskip("numba")
    compile_, cache_flags = numba.njit, list[bool]()

    def njit(function: object = None, cache: bool = False) -> object:
        cache_flags.append(cache)
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return compile_(function)

    monkeypatch.setattr(numba, "njit", njit)
    monkeypatch.setattr(add_up, "__qualname__", "add_up")
    monkeypatch.setattr(
        numba, "njit", lambda *given, **names: njit(*given, **names) if given else lambda f: njit(f, True)
    )
    assert compiled_loop(add_up).compiled(np.array([1, 2], np.int32), 3) == 6
    assert cache_flags == [True, False]


def test_tokens_are_whole_numbers_in_a_row() -> None:
    assert as_tokens([1, 2]).dtype == np.int32 and len(as_tokens([])) == 0
    assert as_tokens(np.arange(6)[::2]).flags["C_CONTIGUOUS"]
    for wrong in ([[1]], [-1], 5):
        with pytest.raises(ValueError, match="none of them negative"):
            as_tokens(wrong)
    with pytest.raises(OverflowError):
        as_tokens([1 << 31])


def test_arrays_grow_by_doubling_and_keep_what_they_have() -> None:
    array = np.arange(4, dtype=np.int32)
    assert grown(array, 4) is array
    assert grown(array, 5, -1).tolist() == [0, 1, 2, 3, -1, -1, -1, -1]
    assert len(grown(array, 50)) == 50
