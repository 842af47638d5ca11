"""Upper bounds of the acceptance length over whole trees, estimated from drafted trees.

The mean of these bounds over many drafted trees is an upper bound of the mean acceptance length of any exact
rule of the kind. A node x is accepted with probability p(x) at most, and only if it was drafted; so a tree
that contains x counts it with min(1, p(x) / Pr(x is drafted)), and the acceptance below x is bounded by the
dual bound there (outpace/bench/measure/best_coupling.py). A token drawn several times with replacement counts
as a different node for every number of repetitions, as more repetitions give more children below it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.verification_rules.inclusion import inclusion_probabilities
from outpace.bench.measure.best_coupling import acceptance_bounds
from outpace.bench.measure.first_token_bound import Siblings, siblings
from outpace.core.contracts import TargetProbs
from outpace.core.tree import TokenTree


def draw_probabilities(made: Siblings, tokens: Sequence[int]) -> list[tuple[float, float]]:
    """Per token the probability of being drawn exactly as often as it was, and of being drawn more often
    (0, a lower bound, with several distributions)."""
    same, more = [1.0] * len(tokens), [0.0] * len(tokens)
    for draws, drawn in zip(made.draws, made.drawn, strict=True):
        once = (draws.q[list(tokens)].double() / draws.q.double().sum()).tolist()
        if not draws.replace:
            once = inclusion_probabilities(draws, tokens)
        for index, (token, q) in enumerate(zip(tokens, once, strict=True)):
            count, times = draws.count if draws.replace else 1, drawn.count(token)
            distribution = [math.comb(count, n) * q**n * (1 - q) ** (count - n) for n in range(count + 1)]
            same[index] *= distribution[times]
            if len(made.draws) == 1:
                more[index] = sum(distribution[times + 1 :])
    return list(zip(same, more, strict=True))


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
            extended, draw_probabilities(made, extended) if extended else (), strict=True
        ):
            same, mass = max(same, 1e-300), float(p[token])
            # for the upper bound p is assigned to drafts with the most repetitions of the token first, as
            # these have the most children below it
            share = min(1.0, max(0.0, (mass - more) / same))
            levels.append((groups[token], bound * share, ratio * mass / same))
    return LengthBounds(first, node_by_node, any_rule)
