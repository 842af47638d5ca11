"""Match: let the target choose its own token at every node, and follow the draft while it agrees.

Needs no claim and is exact for any draft whatsoever; with noise keyed by position its text is that of plain decoding
under the same seed. Optimal for chosen (top-k, retrieved) tokens, less generous than rejection for drawn ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from outpace.core.claim import Claim
from outpace.core.contracts import Guarantee, Law, Scores, Verdict, Want
from outpace.core.noise import Noise
from outpace.core.tree import TokenTree


class Match:
    """core.contracts.Verifier by matching."""

    want = Want()
    accepts: tuple[type[Claim], ...] = (Claim,)  # it never reads them
    guarantee = Guarantee.EXACT

    def verify(self, tree: TokenTree, law: Law, scores: Scores, noise: Noise) -> Verdict:
        return follow(tree, law, noise, range(tree.forest.num_rows))


def follow(tree: TokenTree, law: Law, noise: Noise, rows: Sequence[int]) -> Verdict:
    """The verdict on these rows of the tree: the path that the target's own choices spell."""
    forest, tokens = tree.forest, tree.tokens.tolist()
    asked = None if len(rows) == forest.num_rows else [node for row in rows for node in forest.nodes[row]]
    choices = law.choose(asked, noise)
    chosen = choices if asked is None else dict(zip(asked, choices, strict=True))
    leaf, bonus = [], []
    for root in rows:
        level = [root]
        while below := [c for node in level for c in forest.children[node] if tokens[c] == chosen[level[0]]]:
            level = below  # several where independent draws repeated a token; their subtrees count as one
        leaf.append(level[0])
        bonus.append(chosen[level[0]])
    return Verdict(leaf, bonus)
