"""Functions over arrays that numba compiles at their first call; without numba they run as they are."""

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
Tokens = Sequence[int] | NDArray[Any]  # one text


class Loop(Generic[P, R]):
    """One function, compiled or not. Numbers fit int64, and arrays are contiguous and writable."""

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
        import numba

        # numba keeps what it compiled by name and file, and does not see changes of functions that are called
        self._function.__qualname__ += f"-{_sources()}"
        try:
            return numba.njit(cache=True)(self._function)
        except RuntimeError:  # there is no folder to keep it in
            return numba.njit(self._function)

    def plain(self, *arguments: Any) -> R:
        # an element of a memoryview is a Python number: faster than numpy's, and it does not overflow
        return self._function(*(a.data if isinstance(a, np.ndarray) else a for a in arguments))

    @property
    def _numba_type_(self) -> Any:
        """What lets one compiled function call another."""
        return self.compiled._numba_type_


@cache
def _sources() -> str:
    """What tells this version of all loops from others."""
    files = sorted(Path(__file__).parent.rglob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:8]


def loop(function: Callable[P, R]) -> Loop[P, R]:
    """Mark a function as one that numba may compile."""
    return Loop(function)


def as_tokens(tokens: Tokens) -> NDArray[np.int32]:
    """(n,) int32, contiguous; ValueError if one is negative or there are more dimensions."""
    found = np.asarray(tokens, np.int32, order="C")
    if found.ndim != 1 or (len(found) and found.min() < 0):
        raise ValueError("tokens are a sequence of numbers, none of them negative")
    return found


def grown(array: NDArray[Any], size: int, fill: int = 0) -> NDArray[Any]:
    """An array of at least `size` rows that begins with this one; twice as large where it has to grow."""
    if size <= len(array):
        return array
    wider = np.full((max(size, 2 * len(array)), *array.shape[1:]), fill, array.dtype)
    wider[: len(array)] = array
    return wider
