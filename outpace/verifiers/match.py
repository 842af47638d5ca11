"""Match: sample the target's token at each node and accept the draft token that is equal to it.

Needs no claim and is exact for any draft. As the target's samples are keyed by seed and position, its output
equals plain decoding's with the same seed. No exact rule accepts more for deterministic draft
tokens (top-k, retrieved); for tokens drawn from a known distribution rejection accepts more.
"""

from __future__ import annotations

from collections.abc import Sequence

from outpace.core.claim import Claim
from outpace.core.contracts import Guarantee, Scores, TargetProbs, Verdict, Want
from outpace.core.noise import Noise
from outpace.core.tree import Forest, TokenTree


class Match:
    """Implementation of core.contracts.Verifier: accepts the draft tokens equal to the target's samples."""

    want = Want()
    accepts: tuple[type[Claim], ...] = (Claim,)  # all kinds: matching does not use claims
    guarantee = Guarantee.EXACT

    def verify(self, tree: TokenTree, target_probs: TargetProbs, scores: Scores, noise: Noise) -> Verdict:
        return follow(tree, target_probs, noise, range(tree.forest.num_rows))


def follow(tree: TokenTree, target_probs: TargetProbs, noise: Noise, rows: Sequence[int]) -> Verdict:
    """The verdict on these rows, in their order: the longest path whose tokens are sampled from the target.

    Tokens are sampled at the roots first, then on 2, 4, 8, ... levels from the end of the accepted prefix:
    most prefixes are short, and with a large vocabulary sampling at every node of a wide tree costs more than
    a forward of a small model.
    """
    forest, tokens = tree.forest, tree.token_list()
    # root -> nodes at the end of its accepted prefix; several if equal tokens were drawn
    levels = {root: [root] for root in rows}
    bonus: dict[int, int] = {}
    num_levels = 1
    while len(bonus) < len(levels):
        nodes = [
            node
            for root, level in levels.items()
            if root not in bonus
            for node in _within(level, forest, num_levels)
        ]
        nodes = range(len(tree)) if len(nodes) == len(tree) else nodes
        chosen = dict(
            zip(nodes, target_probs.choose(nodes if len(nodes) < len(tree) else None, noise), strict=True)
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
        num_levels *= 2
    return Verdict([levels[root][0] for root in rows], [bonus[root] for root in rows])


def _within(level: Sequence[int], forest: Forest, num_levels: int) -> list[int]:
    """The first node of `level`, and the descendants of `level` fewer than `num_levels` levels below it."""
    nodes, below = [level[0]], list(level)
    for _ in range(num_levels - 1):
        below = [child for node in below for child in forest.children[node]]
        nodes += below
    return nodes
