"""Mutants of greedy-last: drafts of the most probable tokens and one drawn from the rest."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from outpace.core.claim import Drawn
from outpace.core.context import Context
from outpace.core.contracts import Scores, TargetProbs, Verdict
from outpace.core.grower import Grower
from outpace.core.noise import Key, Noise
from outpace.core.tree import TokenTree
from outpace.drafters.model.greedy_last import greedy_last
from outpace.proof.mutants.drafters import CorrectDrafter
from outpace.verifiers.rejection import ACCEPT, RESIDUAL, Rejection, residual


class GreedyLast(CorrectDrafter):
    """The correct drafter: the `width` - 1 most probable tokens, then one draw from the rest of q."""

    def children(self, grower: Grower, at: list[int], q: Tensor, ctx: Context) -> list[int]:
        first = len(grower)
        greedy_last(grower, at, [self.width] * len(at), q, ctx.noise)
        return list(range(first, len(grower)))


class WholeDistribution(CorrectDrafter):
    """Mutant: draws the last token from q without the chosen token, but records the whole q."""

    def children(self, grower: Grower, at: list[int], q: Tensor, ctx: Context) -> list[int]:
        top = q.argmax(-1)
        chosen = grower.add_chosen(at, top)
        return chosen + grower.add_drawn(at, q, 1, _Without(ctx.noise, top))


class ChosenFirst(Rejection):
    """Mutant: tests the chosen tokens first, by a sample of p; if it matches none, the drawn token is tested
    against the full p, as if no sample had been taken."""

    def verify(self, tree: TokenTree, target_probs: TargetProbs, scores: Scores, noise: Noise) -> Verdict:
        claim, forest, tokens = tree.claim, tree.forest, tree.tokens.tolist()
        if not isinstance(claim, Drawn):
            return super().verify(tree, target_probs, scores, noise)
        leaf, bonus = [], []
        for root in range(forest.num_rows):
            chosen = {tokens[child]: child for child in forest.children[root] if claim.row[child] < 0}
            drawn = [child for child in forest.children[root] if claim.row[child] >= 0]
            token = target_probs.choose([root], noise)[0]
            kept = chosen.get(token, root)
            for child in drawn if kept == root else []:
                p, q = target_probs.probs([root]), claim.q[claim.row[child]][None]
                token = tokens[child]
                if noise.flip([float(p[0, token] / q[0, token])], _key(child, tree, ACCEPT))[0]:
                    kept = child
                else:
                    token = int(noise.choose(residual(p, q, p), _key(root, tree, RESIDUAL)))
                    kept = chosen.get(token, root)
            leaf.append(kept)
            bonus.append(token if kept == root else target_probs.choose([kept], noise)[0])
        return Verdict(leaf, bonus)


class _Without:
    """Noise in which row m never draws the token `tokens[m]`."""

    def __init__(self, noise: Noise, tokens: Tensor) -> None:
        self._noise, self._tokens = noise, tokens

    def _left(self, probs: Tensor) -> Tensor:
        return probs.scatter(1, self._tokens[:, None], 0)

    def choose(self, probs: Tensor, key: Key) -> Tensor:
        return self._noise.choose(self._left(probs), key)

    def draw(self, probs: Tensor, k: int, key: Key, *, replace: bool) -> Tensor:
        return self._noise.draw(self._left(probs), k, key, replace=replace)

    def flip(self, accept: Sequence[float], key: Key) -> list[bool]:
        return self._noise.flip(accept, key)


def _key(node: int, tree: TokenTree, use: str) -> Key:
    forest = tree.forest
    return Key([forest.rows[node]], [forest.local[node]], [forest.depths[node]], use)
