"""What followed at places where the target's hidden state was alike (Gritta et al. 2025, DReSD)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray


class DenseIndex:
    """Hidden states by z-score, principal components and length 1, each with the tokens after it; read-only.

    Inner products: by faiss where it is installed, exact in numpy otherwise.
    """

    kind = "dense"

    @classmethod
    def build(
        cls,
        keys: ArrayLike,
        values: ArrayLike,
        *,
        dims: int = 64,
        fit: int = 1_000_000,
        tell: Callable[[int], None] | None = None,
    ) -> DenseIndex:
        """(n, d) hidden states and (n, L) next tokens, -1 after the end. `fit`: most states the projection is made from."""
        raise NotImplementedError

    @property
    def arrays(self) -> dict[str, NDArray[np.generic]]:
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        raise NotImplementedError

    def project(self, hidden: ArrayLike) -> NDArray[np.float32]:
        """(n, d) -> (n, dims), rows of length 1."""
        raise NotImplementedError

    def search(self, hidden: ArrayLike, num: int = 50) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """(d,) one state -> up to `num` nearest: (num, L) next tokens and (num,) similarity, by fall."""
        raise NotImplementedError

    def paths(
        self, hidden: ArrayLike, newest: int, *, num: int = 50, keep: int = 10, length: int = 9
    ) -> Sequence[list[int]]:
        """What followed the newest token at the nearest states whose next token it was: up to `keep`, most alike first."""
        raise NotImplementedError
