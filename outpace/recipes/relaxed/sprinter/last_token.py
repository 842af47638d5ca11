"""Verification of the last token of each draft only, as SPRINTER does (Zhong et al. 2025).

Letters: B rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outpace.core.claim import Claim, Drawn
from outpace.core.contracts import Guarantee, Scores, TargetProbs, Verdict, Want
from outpace.core.noise import Noise
from outpace.core.tree import TokenTree
from outpace.verifiers.rejection import ACCEPT, RESIDUAL, residual
from outpace.verifiers.rows import Drafted, keys


class LastToken:
    """Implementation of core.contracts.Verifier for chains: all tokens before the last stay, and the last one
    is accepted with probability min(1, p / q). After an accepted one, and in rows without a draft, the
    bonus token is drawn from p, after a rejected one from the residual of p. A last token without a draft
    distribution, as at temperature 0, is accepted if it is the token drawn from p."""

    want = Want()
    accepts: tuple[type[Claim], ...] = (Drawn,)

    def __init__(self, depth: int) -> None:
        """`depth`: tokens of the longest chain; with 1 the output has the target's distribution."""
        self.guarantee = Guarantee.EXACT if depth == 1 else Guarantee.LOSSY

    def verify(self, tree: TokenTree, target_probs: TargetProbs, scores: Scores, noise: Noise) -> Verdict:
        forest, claim = tree.forest, tree.claim
        assert claim is None or isinstance(claim, Drawn)
        last = self.tested(tree)
        drafted = [node for node in last if forest.parents[node] >= 0]
        drawn = [node for node in drafted if claim is not None and claim.row[node] >= 0]
        chosen = [node for node in drafted if node not in set(drawn)]
        # rejected node -> the token in its place
        instead = dict[int, int]()
        if drawn:
            instead |= self._rejected(drawn, tree, target_probs, noise)
        if chosen:
            tokens = target_probs.choose([forest.parents[node] for node in chosen], noise)
            matched = zip(chosen, tokens, strict=True)
            instead |= {node: token for node, token in matched if token != tree.token_list()[node]}
        passed = [node for node in last if node not in instead]
        bonus = dict(zip(passed, target_probs.choose(passed, noise), strict=True)) if passed else {}
        leaf = [forest.parents[node] if node in instead else node for node in last]
        return Verdict(leaf, [(instead if node in instead else bonus)[node] for node in last])

    def tested(self, tree: TokenTree) -> list[int]:  # (B,)
        """The last node of each row; the root in a row without a draft."""
        return [nodes[-1] for nodes in tree.forest.nodes]

    def _rejected(
        self, drawn: Sequence[int], tree: TokenTree, target_probs: TargetProbs, noise: Noise
    ) -> dict[int, int]:
        """Those of these drawn nodes that are rejected, with the tokens in their place."""
        claim, forest = tree.claim, tree.forest
        assert isinstance(claim, Drawn)
        draft, before = Drafted(tree, claim), [forest.parents[node] for node in drawn]
        p = target_probs.probs(before)
        at = torch.tensor([draft.tokens[node] for node in drawn], device=p.device)[:, None]
        pairs = zip(p.gather(1, at)[:, 0].tolist(), drawn, strict=True)
        ratios = [p_token / draft.draft_prob((node, claim.row[node])) for p_token, node in pairs]
        kept = noise.flip(ratios, keys(drawn, forest, ACCEPT))
        places = [place for place, each in enumerate(kept) if not each]
        if not places:
            return {}
        rejected = [drawn[place] for place in places]
        q = torch.stack([draft.distribution(claim.row[node], p.shape[-1]) for node in rejected])
        left = residual(p[places], q, p[places])
        tokens = noise.choose(left, keys([forest.parents[node] for node in rejected], forest, RESIDUAL))
        return dict(zip(rejected, tokens.tolist(), strict=True))
