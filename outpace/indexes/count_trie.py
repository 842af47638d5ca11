"""The most frequent beginnings of many continuations, as a tree (He et al. 2024, REST)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from outpace.indexes.branches import Branches


def count_trie(continuations: NDArray[np.int32], num_nodes: int, matched: int = 0) -> Branches:
    """(num, length), -1 where a continuation has ended. Weights are counts; of equal counts the shorter is kept."""
    raise NotImplementedError
