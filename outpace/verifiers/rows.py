"""What rules for drawn tokens share: the rows they leave to matching, and the keys of their choices."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outpace.core.claim import Claim, Drawn
from outpace.core.contracts import Law, Verdict
from outpace.core.noise import Key, Noise
from outpace.core.tree import Forest, TokenTree
from outpace.verifiers.match import follow

Ends = dict[int, tuple[int, int]]  # row -> (leaf, bonus)


def drawn_rows(tree: TokenTree, claim: Claim | None) -> list[int]:
    """The rows in which at least one token was drawn; in the others nothing is claimed."""
    if claim is None:
        return []
    assert isinstance(claim, Drawn)
    rows = tree.forest.rows
    return sorted({rows[node] for node, row in enumerate(claim.row) if row >= 0})


def with_matched(ends: Ends, tree: TokenTree, law: Law, noise: Noise) -> Verdict:
    """The verdict on all rows: these ends, and the target's own choices in the rows that are missing."""
    missing = [row for row in range(tree.forest.num_rows) if row not in ends]
    if missing:
        matched = follow(tree, law, noise, missing)
        ends = ends | dict(zip(missing, zip(matched.leaf, matched.bonus, strict=True), strict=True))
    pairs = [ends[row] for row in range(tree.forest.num_rows)]
    return Verdict([leaf for leaf, _ in pairs], [bonus for _, bonus in pairs])


def keys(nodes: Sequence[int], forest: Forest, use: str) -> Key:
    """One choice of this use at each of these nodes."""
    rows, local, depths = forest.rows, forest.local, forest.depths
    return Key([rows[n] for n in nodes], [local[n] for n in nodes], [depths[n] for n in nodes], use)


def smallest_mass(dtype: torch.dtype) -> float:
    """Less than this is rounding of a sum over the vocabulary, not something a law has left."""
    return 1e-14 if dtype == torch.float64 else 1e-7
