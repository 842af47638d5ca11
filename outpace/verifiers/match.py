"""Match: let the target choose its own token at a node, and follow the draft while it agrees.

Needs no claim and is exact for any draft whatsoever; with noise keyed by position its text is that of plain
decoding under the same seed. Optimal for chosen (top-k, retrieved) tokens, less generous than rejection for
drawn ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from outpace.core.claim import Claim
from outpace.core.contracts import Guarantee, Scores, TargetProbs, Verdict, Want
from outpace.core.noise import Noise
from outpace.core.tree import Forest, TokenTree


class Match:
    """core.contracts.Verifier by matching."""

    want = Want()
    accepts: tuple[type[Claim], ...] = (Claim,)  # it never reads them
    guarantee = Guarantee.EXACT

    def verify(self, tree: TokenTree, target_probs: TargetProbs, scores: Scores, noise: Noise) -> Verdict:
        return follow(tree, target_probs, noise, range(tree.forest.num_rows))


def follow(tree: TokenTree, target_probs: TargetProbs, noise: Noise, rows: Sequence[int]) -> Verdict:
    """The verdict on these rows of the tree: the path that the target's own choices spell.

    The target is asked for its choices at the roots, then a level further, then twice as far each time: most
    drafts end early, and to choose at every node of a wide tree costs more than a small model's forward at a
    large vocabulary.
    """
    forest, tokens = tree.forest, tree.tokens.tolist()
    levels = {root: [root] for root in rows}  # several nodes where independent draws repeated a token
    bonus: dict[int, int] = {}
    reach = 1
    while len(bonus) < len(levels):
        asked = [
            node
            for root, level in levels.items()
            if root not in bonus
            for node in _within(level, forest, reach)
        ]
        asked = range(len(tree)) if len(asked) == len(tree) else asked
        chosen = dict(
            zip(asked, target_probs.choose(asked if len(asked) < len(tree) else None, noise), strict=True)
        )
        for root, level in levels.items():
            while root not in bonus and level[0] in chosen:
                token = chosen[level[0]]
                if below := [
                    child for node in level for child in forest.children[node] if tokens[child] == token
                ]:
                    level = levels[root] = below
                else:
                    bonus[root] = token
        reach *= 2
    return Verdict([levels[root][0] for root in rows], [bonus[root] for root in rows])


def _within(level: Sequence[int], forest: Forest, reach: int) -> list[int]:
    """The first of these nodes, and what stands less than `reach` levels below any of them."""
    found, below = [level[0]], list(level)
    for _ in range(reach - 1):
        below = [child for node in below for child in forest.children[node]]
        found += below
    return found
