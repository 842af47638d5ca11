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
from outpace.verifiers.traversal import NodeState, Traversal, _Drafted, _residuals_without


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
            residual = self._residual(p, q, p.new_tensor([weights[node] for node in above]))
            totals = zip(above, residual.sum(-1).tolist(), strict=True)
            probabilities = [
                self._acceptance_probability(weights[node], weights[node] * total) for node, total in totals
            ]
            probabilities.append(weights[path[-1]])
            depth = 0
            while (
                depth < len(above)
                and noise.flip([probabilities[depth + 1]], keys([path[depth + 1]], forest, ACCEPT))[0]
            ):
                depth += 1
            if depth == len(above):
                token = target_probs.choose([path[depth]], noise)[0]
            else:
                token = int(noise.choose(residual[depth : depth + 1], keys([path[depth]], forest, RESIDUAL)))
            ends[row] = path[depth], token
        return ends


class WeightAsProbability(Block):
    """Mutant: accepts an inner node with probability w, as if the nodes below it had not been tested
    before."""

    def _acceptance_probability(self, weight: float, residual_sum: float) -> float:
        return weight


class Unweighted(Block):
    """Mutant: computes the residual as p - q instead of p - q / w."""

    def _residual(self, p: Tensor, q: Tensor, weights: Tensor) -> Tensor:
        return (p - q).clamp_(min=0)


class FirstWeight(Traversal):
    """Mutant: does not update a parent's weight after a child was rejected."""

    def _weight(self, weight: float, residual_sum: float) -> float:
        return weight


class BonusFromTarget(Traversal):
    """Mutant: draws the bonus token from p instead of the residual that the rejected children leave."""

    def _distribution(self, state: NodeState, target_probs: TargetProbs) -> Tensor:
        return target_probs.probs([state.node])[0]


class LaterWeight(Traversal):
    """Mutant: computes the residual after a rejection with the parent's updated weight instead of its weight
    before the rejection."""

    def _reject(self, paths: Sequence[list[NodeState]], draft: _Drafted, target_probs: TargetProbs) -> None:
        before = [(path[-2], replace(path[-2], rejected=list(path[-2].rejected))) for path in paths]
        super()._reject(paths, draft, target_probs)
        for state, first in before:
            if state.weight == 0:  # no division by 0; the node is rejected whatever its residual
                continue
            first.weight = state.weight
            residual = _residuals_without([first], draft)[0]
            if float(residual.sum()) <= smallest_mass(residual.dtype):
                residual = target_probs.probs([state.node])[0]
            state.residual, state.residual_at_child, state.residual_sum = (
                residual,
                float(residual[draft.tokens[state.child]]),
                float(residual.sum()),
            )
