"""Upper bounds of the acceptance length over whole trees, estimated from drafted trees.

The mean of these bounds over many drafted trees is an upper bound of the mean acceptance length of any exact
rule of the kind. A node x is accepted with probability p(x) at most, and only if it was drafted; so a tree
that contains x counts it with min(1, p(x) / Pr(x is drafted)), and the acceptance below x is bounded by the
dual bound there (acceptance_bound.py). A token drawn several times with replacement counts as a different
node for every number of repetitions, as more repetitions give more children below it.

Letters: B rows, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from outpace.analysis.acceptance_bound import Draws, acceptance_bounds, inclusion_probabilities
from outpace.core.claim import Drawn
from outpace.core.contracts import TargetProbs
from outpace.core.tree import TokenTree


@dataclass(frozen=True, slots=True)
class Siblings:
    """The drafted children of a node: the distributions they were drawn from, and their tokens."""

    draws: tuple[Draws, ...]  # one for each distribution
    drawn: tuple[tuple[int, ...], ...]  # per distribution its drawn tokens, with repetitions
    chosen: tuple[int, ...]  # tokens that were chosen, not drawn

    def draw_probabilities(self, tokens: Sequence[int]) -> list[tuple[float, float]]:
        """Per token the probability of being drawn exactly as often as it was, and of being drawn more often
        (0, a lower bound, with several distributions)."""
        same, more = [1.0] * len(tokens), [0.0] * len(tokens)
        for draws, drawn in zip(self.draws, self.drawn, strict=True):
            once = (draws.q[list(tokens)].double() / draws.q.double().sum()).tolist()
            if not draws.replace:
                once = inclusion_probabilities(draws, tokens)
            for index, (token, q) in enumerate(zip(tokens, once, strict=True)):
                count, times = draws.count if draws.replace else 1, drawn.count(token)
                distribution = [math.comb(count, n) * q**n * (1 - q) ** (count - n) for n in range(count + 1)]
                same[index] *= distribution[times]
                if len(self.draws) == 1:
                    more[index] = sum(distribution[times + 1 :])
        return list(zip(same, more, strict=True))


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
    return acceptance_bounds(p, made.draws, made.chosen, (1.0,))[0]


@dataclass(frozen=True, slots=True)
class LengthBounds:
    """Upper bounds of the acceptance length from one tree, the bonus token not counted."""

    first_token: float  # upper bound of the probability that a child of the root is accepted
    node_by_node: float  # over the exact rules that decide on a node independently of the draft below it
    any_rule: float  # over all exact rules, those that weigh whole paths included


def length_bounds(tree: TokenTree, target_probs: TargetProbs, root: int = 0) -> LengthBounds:
    """The bounds from the tree below `root`. They hold in the mean over drafted trees, not for each tree."""
    tokens, children = tree.token_list(), tree.forest.children
    node_by_node = any_rule = first = 0.0
    # (nodes with one path, upper bound of accepting it node by node given that it was drafted, the target's
    # probability of the path divided by the probability of drafting it)
    levels: list[tuple[list[int], float, float]] = [([root], 1.0, 1.0)]
    while levels:
        level, bound, ratio = levels.pop()
        below = [child for node in level for child in children[node]]
        if not below:
            continue
        p = target_probs.probs([level[0]])[0]
        made = siblings(tree, level, len(p))
        once, weighted = acceptance_bounds(p, made.draws, made.chosen, (1.0, ratio))
        first = once if level == [root] else first
        node_by_node += bound * once
        any_rule += weighted
        groups: dict[int, list[int]] = {}
        for child in below:
            groups.setdefault(tokens[child], []).append(child)
        extended = [
            token
            for token, same in groups.items()
            if float(p[token]) > 0 and any(children[each] for each in same)
        ]
        for token, (same, more) in zip(
            extended, made.draw_probabilities(extended) if extended else (), strict=True
        ):
            same, mass = max(same, 1e-300), float(p[token])
            # for the upper bound p is assigned to drafts with the most repetitions of the token first, as
            # these have the most children below it
            share = min(1.0, max(0.0, (mass - more) / same))
            levels.append((groups[token], bound * share, ratio * mass / same))
    return LengthBounds(first, node_by_node, any_rule)
