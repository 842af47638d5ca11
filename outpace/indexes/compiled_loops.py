"""Decorator for functions over numpy arrays: compiled by numba at the first call, plain Python without numba.

Compiled code does not check array bounds, so callers validate all values used as indices.
"""

from __future__ import annotations

import hashlib
import inspect
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


class CompiledLoop(Generic[P, R]):
    """A function with a compiled (numba) and a plain Python version; integer arguments must fit int64, array
    arguments must be contiguous and writable. They take arrays one by one: a tuple of arrays costs compiled
    functions a tenth of their time, for the counts of references."""

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
        """The function compiled by numba, or loaded from numba's disk cache if the sources are unchanged."""
        import numba

        # numba's cache does not notice changes of called functions in other files: a hash of all sources in
        # the name makes it
        folder = Path(inspect.getfile(self._function)).parent
        self._function.__qualname__ += f"-{_hash_of_sources(folder)}"
        try:
            return numba.njit(cache=True)(self._function)
        except RuntimeError:  # numba found no writable cache folder
            return numba.njit(self._function)

    def plain(self, *arguments: Any) -> R:
        """Call the function in plain Python."""
        # elements of a memoryview are Python ints: faster than numpy scalars, and without overflow
        return self._function(*(a.data if isinstance(a, np.ndarray) else a for a in arguments))

    @property
    def _numba_type_(self) -> Any:
        """numba's type of the compiled function; numba reads it when another compiled function calls this."""
        return self.compiled._numba_type_


@cache
def _hash_of_sources(folder: Path) -> str:
    """Of the files of a folder and of this one, which hold all that compiled functions there call."""
    files = sorted({*folder.glob("*.py"), *Path(__file__).parent.rglob("*.py")})
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:8]


def compiled_loop(function: Callable[P, R]) -> CompiledLoop[P, R]:
    """Decorator: the function as a `CompiledLoop`, compiled by numba if that is installed."""
    return CompiledLoop(function)


def as_tokens(tokens: Tokens) -> NDArray[np.int32]:
    """The tokens as a contiguous (n,) int32 array; ValueError for other shapes and negative ids."""
    array = np.asarray(tokens, np.int32, order="C")
    if array.ndim != 1 or (len(array) and array.min() < 0):
        raise ValueError("tokens are a sequence of integers, none of them negative")
    return array


def grown(array: NDArray[Any], size: int, fill: int = 0, limit: int | None = None) -> NDArray[Any]:
    """The array itself if it has at least `size` rows, else a copy with max(size, twice its rows), at most
    `limit`, rows; new rows are filled with `fill`."""
    if size <= len(array):
        return array
    length = max(size, 2 * len(array))
    larger = np.full((length if limit is None else min(length, limit), *array.shape[1:]), fill, array.dtype)
    larger[: len(array)] = array
    return larger
