"""Fixtures for tests of indexes: compiled and plain functions, random texts, occurrences by search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec

import numpy as np
import pytest

from outpace.indexes.compiled_loops import CompiledLoop


@pytest.fixture(params=["compiled", "plain"])
def loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test with compiled functions and with plain Python."""
    if request.param == "plain":
        monkeypatch.setattr(CompiledLoop, "__call__", lambda self, *arguments: self.plain(*arguments))
    elif not find_spec("numba"):
        pytest.skip("numba is not installed")
    return request.param


@pytest.fixture
def texts() -> Callable[..., list[list[int]]]:
    """(seed, num) -> random texts over alphabets of 1 to 5 tokens, each with a repeated part."""

    def make(seed: int, num: int, longest: int = 60) -> list[list[int]]:
        rng = np.random.default_rng(seed)
        found: list[list[int]] = []
        for _ in range(num):
            text = rng.integers(0, rng.integers(1, 6), rng.integers(0, longest)).tolist()
            start = int(rng.integers(0, len(text) + 1))
            found.append((text + text[start:])[:longest])
        return found

    return make


@pytest.fixture
def occurrences() -> Callable[[Sequence[Sequence[int]], Sequence[int]], int]:
    """The number of occurrences of a part in documents, overlapping ones included."""

    def count(documents: Sequence[Sequence[int]], part: Sequence[int]) -> int:
        return sum(
            list(text[start : start + len(part)]) == list(part)
            for text in documents
            for start in range(len(text) - len(part) + 1)
        )

    return count
