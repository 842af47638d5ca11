"""Functions over arrays that numba compiles at their first call; without numba they run as plain Python.

Compiled code does not check array bounds: callers check the values that serve as indices.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

P = ParamSpec("P")
R = TypeVar("R")
Tokens = Sequence[int] | NDArray[Any]  # token ids of one text


class Loop(Generic[P, R]):
    """One function, compiled or not. Its integers fit int64; its arrays are contiguous and writable."""

    def __init__(self, function: Callable[P, R]) -> None:
        self._function: Callable[..., R] = function
        self.__doc__ = function.__doc__

    def __call__(self, *arguments: P.args, **_: P.kwargs) -> R:
        return self.run(*arguments)

    @cached_property
    def run(self) -> Callable[..., R]:
        return self.compiled if find_spec("numba") else self.plain

    @cached_property
    def compiled(self) -> Any:
        """The function compiled by numba, from its cache on disk where the sources are the same."""
        import numba

        # numba's cache is keyed by name and file, and misses changes of called functions: the name holds a
        # hash
        self._function.__qualname__ += f"-{_hash_of_sources()}"
        try:
            return numba.njit(cache=True)(self._function)
        except RuntimeError:  # no folder for the cache is writable
            return numba.njit(self._function)

    def plain(self, *arguments: Any) -> R:
        """The function run by Python."""
        # the elements of a memoryview are Python integers: faster than numpy's, and they do not overflow
        return self._function(*(a.data if isinstance(a, np.ndarray) else a for a in arguments))

    @property
    def _numba_type_(self) -> Any:
        """Read by numba where a compiled function calls this one."""
        return self.compiled._numba_type_


@cache
def _hash_of_sources() -> str:
    files = sorted(Path(__file__).parent.rglob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:8]


def loop(function: Callable[P, R]) -> Loop[P, R]:
    """Decorate a function that numba may compile."""
    return Loop(function)


def as_tokens(tokens: Tokens) -> NDArray[np.int32]:
    """(n,) int32, contiguous; ValueError for other shapes and negative values."""
    array = np.asarray(tokens, np.int32, order="C")
    if array.ndim != 1 or (len(array) and array.min() < 0):
        raise ValueError("tokens are a sequence of integers, none of them negative")
    return array


def grown(array: NDArray[Any], size: int, fill: int = 0, limit: int | None = None) -> NDArray[Any]:
    """The array itself if it has `size` rows, else a copy with at least twice as many rows, at most `limit`;
    new rows hold `fill`."""
    if size <= len(array):
        return array
    length = max(size, 2 * len(array))
    larger = np.full((length if limit is None else min(length, limit), *array.shape[1:]), fill, array.dtype)
    larger[: len(array)] = array
    return larger
