"""What no rule can beat on a whole tree: bounds of the acceptance length, read from one tree that was
drafted.

The mean over many trees of what is computed from each is at least what any rule of that kind reaches on them.
A node x is kept at most with chance p(x), and at most as often as it is drafted; so a tree that holds x
counts it with the smaller of 1 and p(x) / (chance of drafting x), and what is below x with the dual bound
there. A token that independent draws repeat is another node for every number of repetitions: the more, the
better for any rule.

Letters: B rows, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from outpace.analysis.acceptance_bound import Draws, acceptance_bounds, drafted_chances
from outpace.core.claim import Drawn
from outpace.core.contracts import TargetProbs
from outpace.core.tree import TokenTree


@dataclass(frozen=True, slots=True)
class Siblings:
    """How the tokens below a node were made."""

    draws: tuple[Draws, ...]
    drawn: tuple[tuple[int, ...], ...]  # per distribution its tokens, as often as they came
    chosen: tuple[int, ...]

    def chances(self, tokens: Sequence[int]) -> list[tuple[float, float]]:
        """How likely each of these tokens is to come up just as often as it did, and more often (0: not
        told)."""
        same, more = [1.0] * len(tokens), [0.0] * len(tokens)
        for draws, drawn in zip(self.draws, self.drawn, strict=True):
            once = (draws.q[list(tokens)].double() / draws.q.double().sum()).tolist()
            if not draws.replace:
                once = drafted_chances(draws, tokens)
            for place, (token, q) in enumerate(zip(tokens, once, strict=True)):
                most, times = draws.count if draws.replace else 1, drawn.count(token)
                distribution = [math.comb(most, n) * q**n * (1 - q) ** (most - n) for n in range(most + 1)]
                same[place] *= distribution[times]
                if len(self.draws) == 1:
                    more[place] = sum(distribution[times + 1 :])
        return list(zip(same, more, strict=True))


def siblings(tree: TokenTree, level: Sequence[int], vocab: int) -> Siblings:
    """The tokens below these nodes: one node, or several that spell the same text."""
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
        for place, (other, before) in enumerate(found):
            # nodes that spell the same text have one distribution but for rounding: their draws are draws
            # from one
            if one.replace and other.replace and torch.allclose(one.q, other.q, rtol=1e-3, atol=1e-7):
                found[place] = Draws(other.q, other.count + one.count, True), (*before, *drawn)
                break
        else:
            found.append((one, tuple(drawn)))
    return Siblings(tuple(draws for draws, _ in found), tuple(drawn for _, drawn in found), chosen)


def first_token_bound(tree: TokenTree, target_probs: TargetProbs, root: int) -> float:
    """Largest chance that any of the tokens below this root is kept; 1 is certain, and 0 says nothing was
    drafted."""
    if not tree.forest.children[root]:
        return 0.0
    p = target_probs.probs([root])[0]
    made = siblings(tree, [root], len(p))
    return acceptance_bounds(p, made.draws, made.chosen, (1.0,))[0]


@dataclass(frozen=True, slots=True)
class LengthBounds:
    """Draft tokens that can be kept, the bonus not counted."""

    first_token: float  # chance that any of those below the root is
    node_by_node: float  # by rules that settle a node before they look at what was drafted below it
    any_rule: float  # by any exact rule, also one that weighs whole paths


def length_bounds(tree: TokenTree, target_probs: TargetProbs, root: int = 0) -> LengthBounds:
    """Both bounds from one row's tree; means over trees are what they are about."""
    tokens, children = tree.tokens.tolist(), tree.forest.children
    settled = free = first = 0.0
    # nodes of one spelling, the most that can be kept of them when settled one by one, and the paths' ratio
    # of chances
    levels: list[tuple[list[int], float, float]] = [([root], 1.0, 1.0)]
    while levels:
        level, kept, ratio = levels.pop()
        below = [child for node in level for child in children[node]]
        if not below:
            continue
        p = target_probs.probs([level[0]])[0]
        made = siblings(tree, level, len(p))
        once, weighted = acceptance_bounds(p, made.draws, made.chosen, (1.0, ratio))
        first = once if level == [root] else first
        settled += kept * once
        free += weighted
        groups: dict[int, list[int]] = {}
        for child in below:
            groups.setdefault(tokens[child], []).append(child)
        going = [
            token
            for token, same in groups.items()
            if float(p[token]) > 0 and any(children[each] for each in same)
        ]
        for token, (same, more) in zip(going, made.chances(going) if going else (), strict=True):
            same, mass = max(same, 1e-300), float(p[token])
            # p is spent where the token came most often, since there most can be kept below it
            share = min(1.0, max(0.0, (mass - more) / same))
            levels.append((groups[token], kept * share, ratio * mass / same))
    return LengthBounds(first, settled, free)
