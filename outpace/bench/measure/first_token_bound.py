"""The largest probability with which an exact rule accepts one of the first draft tokens of a tree.

Letters: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from outpace.bench.measure.best_coupling import Draws, acceptance_bound
from outpace.core.claim import Drawn
from outpace.core.contracts import TargetProbs
from outpace.core.tree import TokenTree


@dataclass(frozen=True, slots=True)
class Siblings:
    """The drafted children of a node: the distributions they were drawn from, and their tokens."""

    draws: tuple[Draws, ...]  # one for each distribution
    drawn: tuple[tuple[int, ...], ...]  # per distribution its drawn tokens, with repetitions
    chosen: tuple[int, ...]  # tokens that were chosen, not drawn


def siblings(tree: TokenTree, level: Sequence[int], vocab: int) -> Siblings:
    """The children of the nodes in `level`, which all have equal paths, merged as those of one node; `vocab`
    is the size of the target's vocabulary."""
    below = [child for node in level for child in tree.forest.children[node]]
    tokens, claim = tree.tokens[below].tolist(), tree.claim
    if not isinstance(claim, Drawn):
        return Siblings((), (), tuple(tokens))
    rows: dict[int, list[int]] = {}
    for child, token in zip(below, tokens, strict=True):
        rows.setdefault(claim.row[child], []).append(token)
    chosen = tuple(rows.pop(-1, ()))
    found: list[tuple[Draws, tuple[int, ...]]] = []
    for row, drawn in rows.items():
        q = claim.q[row]
        if claim.ids is not None:
            q = q.new_zeros(vocab).index_add_(0, claim.ids[row], q)
        one = Draws(q, len(drawn), claim.replace[row])
        for index, (other, before) in enumerate(found):
            # nodes with equal paths have the same draft distribution up to rounding, so their draws are draws
            # from a single distribution
            if one.replace and other.replace and torch.allclose(one.q, other.q, rtol=1e-3, atol=1e-7):
                found[index] = Draws(other.q, other.count + one.count, True), (*before, *drawn)
                break
        else:
            found.append((one, tuple(drawn)))
    return Siblings(tuple(draws for draws, _ in found), tuple(drawn for _, drawn in found), chosen)


def first_token_bound(tree: TokenTree, target_probs: TargetProbs, root: int) -> float:
    """Upper bound of the probability that an exact rule accepts a child of `root`; 0 if it has none."""
    if not tree.forest.children[root]:
        return 0.0
    p = target_probs.probs([root])[0]
    made = siblings(tree, [root], len(p))
    return acceptance_bound(p, made.draws, made.chosen)
