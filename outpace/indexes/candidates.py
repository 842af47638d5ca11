"""What an index drafts: a tree of tokens below the last token of a context."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from outpace.core.tree import Shape


class Candidates(NamedTuple):
    """A tree whose nodes come after their parents; siblings stand by falling weight."""

    tokens: list[int]
    parents: list[int]  # index of the parent's token in `tokens`; -1: the last token of the context
    weights: list[
        float
    ]  # of the path down to the node, by count or estimated probability; never rises along a path
    matched: int  # how many tokens at the end of the context were found

    @property
    def score(self) -> float:
        """How many of the tokens will be kept, where the weights estimate probabilities."""
        return sum(self.weights)


NOTHING = Candidates([], [], [], 0)


@lru_cache
def template(shape: Shape) -> NDArray[np.int32]:
    """(S, 2) parent, the root being 0, and rank among its siblings."""
    rank = {child: place for siblings in shape.children for place, child in enumerate(siblings)}
    return np.array([(parent, rank[node]) for node, parent in enumerate(shape.parents, 1)], np.int32).reshape(
        -1, 2
    )
