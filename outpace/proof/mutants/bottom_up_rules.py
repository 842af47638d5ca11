"""Mutants of the bottom-up rules, block verification and traversal verification."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from outpace.core.claim import Drawn
from outpace.core.contracts import TargetProbs
from outpace.core.noise import Noise
from outpace.core.tree import TokenTree
from outpace.verifiers.block import Block, draft_distributions, node_weights
from outpace.verifiers.rejection import ACCEPT, RESIDUAL
from outpace.verifiers.rows import Ends, keys, smallest_mass
from outpace.verifiers.traversal import Place, Traversal, _Drafted, _without


class FirstRefusal(Block):
    """Mutant: tests nodes from the root down and stops at the first rejection, as token-level rejection
    does."""

    def _ends(self, rows: Sequence[int], tree: TokenTree, target_probs: TargetProbs, noise: Noise) -> Ends:
        forest, claim, ends = tree.forest, tree.claim, {}
        assert isinstance(claim, Drawn)
        for row in rows:
            path = forest.path(forest.nodes[row][-1])
            above, drafted = path[:-1], path[1:]
            p = target_probs.probs(above)
            q = draft_distributions(drafted, tree, claim, p)
            weights = node_weights(drafted, above, tree, p, q)
            left = self._left(p, q, p.new_tensor([weights[node] for node in above]))
            totals = zip(above, left.sum(-1).tolist(), strict=True)
            chances = [self._chance(weights[node], weights[node] * total) for node, total in totals]
            chances.append(weights[path[-1]])
            depth = 0
            while (
                depth < len(above)
                and noise.flip([chances[depth + 1]], keys([path[depth + 1]], forest, ACCEPT))[0]
            ):
                depth += 1
            if depth == len(above):
                token = target_probs.choose([path[depth]], noise)[0]
            else:
                token = int(noise.choose(left[depth : depth + 1], keys([path[depth]], forest, RESIDUAL)))
            ends[row] = path[depth], token
        return ends


class WeightAsChance(Block):
    """Mutant: accepts an inner node with probability w, as if the nodes below it had not been tested
    before."""

    def _chance(self, weight: float, left: float) -> float:
        return weight


class Unweighted(Block):
    """Mutant: computes the residual as p - q instead of p - q / w."""

    def _left(self, p: Tensor, q: Tensor, weights: Tensor) -> Tensor:
        return (p - q).clamp_(min=0)


class FirstWeight(Traversal):
    """Mutant: does not update a parent's weight after a child was rejected."""

    def _weight(self, weight: float, left: float) -> float:
        return weight


class WholeAgain(Traversal):
    """Mutant: draws the bonus token from p instead of the residual that the rejected children leave."""

    def _distribution(self, place: Place, target_probs: TargetProbs) -> Tensor:
        return target_probs.probs([place.node])[0]


class LaterWeight(Traversal):
    """Mutant: computes the residual after a rejection with the parent's weight after it instead of the one
    before."""

    def _refuse(self, paths: Sequence[list[Place]], draft: _Drafted, target_probs: TargetProbs) -> None:
        before = [(path[-2], replace(path[-2], refused=list(path[-2].refused))) for path in paths]
        super()._refuse(paths, draft, target_probs)
        for place, first in before:
            if place.weight == 0:  # no division by 0; the node is rejected whatever its residual
                continue
            first.weight = place.weight
            left = _without([first], draft)[0]
            if float(left.sum()) <= smallest_mass(left.dtype):
                left = target_probs.probs([place.node])[0]
            place.left, place.value, place.total = (
                left,
                float(left[draft.tokens[place.child]]),
                float(left.sum()),
            )
