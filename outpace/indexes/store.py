"""Indexes on disk: raw arrays behind a JSON header, in the layout of safetensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray


class Index(Protocol):
    """What can be saved."""

    kind: str  # of the class

    @property
    def arrays(self) -> dict[str, NDArray[np.generic]]: ...
    @property
    def facts(
        self,
    ) -> dict[str, int]: ...  # sizes and settings that the arrays do not say, tokens and documents among them
    @property
    def nbytes(self) -> int: ...
    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, int]) -> Self: ...


I = TypeVar("I", bound=Index)


def fingerprint(vocabulary: Mapping[str, int]) -> str:
    """What tells tokenizers apart: a hash of their tokens and numbers (`tokenizer.get_vocab()`)."""
    raise NotImplementedError


def save(index: Index, path: str | Path, tokenizer: str = "") -> None:
    """Write an index for the tokenizer with this fingerprint; "": for any."""
    raise NotImplementedError


def load(kind: type[I], path: str | Path, tokenizer: str = "", *, mapped: bool = False) -> I:
    """Read an index of this class; ValueError if the file is cut off, of another kind, or for another tokenizer.

    `mapped`: arrays stay on disk and are read as they are needed.
    """
    raise NotImplementedError


def header(path: str | Path) -> dict[str, Any]:
    """What a file says of itself: kind, version, tokenizer, facts, when and with what it was made, and its arrays."""
    raise NotImplementedError
