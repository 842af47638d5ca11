"""Known-wrong rules that walk up: what is easily mistaken in block verification and in its form for trees."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from outpace.core.claim import Drawn
from outpace.core.contracts import Law, Scores, Verdict
from outpace.core.noise import TARGET, Noise
from outpace.core.tree import TokenTree
from outpace.law.wrong_drafters import picked
from outpace.verifiers.block import Block, drafting_laws, node_weights
from outpace.verifiers.rejection import ACCEPT, RESIDUAL
from outpace.verifiers.rows import Ends, keys
from outpace.verifiers.traversal import Place, Traversal


class FirstRefusal(Block):
    """Goes down and stops at the first node that is not kept, as the rule for single tokens does."""

    def _ends(self, rows: Sequence[int], tree: TokenTree, law: Law, noise: Noise) -> Ends:
        forest, claim, ends = tree.forest, tree.claim, {}
        assert isinstance(claim, Drawn)
        for row in rows:
            path = forest.path(forest.nodes[row][-1])
            above, drafted = path[:-1], path[1:]
            p = law.probs(above)
            q = drafting_laws(drafted, tree, claim, p)
            weights = node_weights(drafted, above, tree, p, q)
            left = self._left(p, q, p.new_tensor([weights[node] for node in above]))
            totals = zip(above, left.sum(-1).tolist(), strict=True)
            chances = [self._chance(weights[node], weights[node] * total) for node, total in totals]
            chances.append(weights[path[-1]])
            depth = 0
            while depth < len(above) and noise.flip([chances[depth + 1]], keys([path[depth + 1]], forest, ACCEPT))[0]:
                depth += 1
            if depth == len(above):
                token = law.choose([path[depth]], noise)[0]
            else:
                token = int(noise.choose(left[depth : depth + 1], keys([path[depth]], forest, RESIDUAL)))
            ends[row] = path[depth], token
        return ends


class WeightAsChance(Block):
    """Keeps every node with its weight, as if the tokens below it had not been looked at."""

    def _chance(self, weight: float, left: float) -> float:
        return weight


class Unweighted(Block):
    """What is left of p is p - q, without the weight of the node."""

    def _left(self, p: Tensor, q: Tensor, weights: Tensor) -> Tensor:
        return (p - q).clamp_(min=0)


class FirstWeight(Traversal):
    """A parent keeps its first weight for all its children."""

    def _weight(self, weight: float, left: float) -> float:
        return weight


class WholeAgain(Traversal):
    """The bonus is drawn from p instead of what the refused children left of it."""

    def _law(self, place: Place, law: Law) -> Tensor:
        return law.probs([place.node])[0]


class Resorted(Traversal):
    """Siblings are tried in falling order of p."""

    def verify(self, tree: TokenTree, law: Law, scores: Scores, noise: Noise) -> Verdict:
        forest, tokens = tree.forest, tree.tokens.tolist()
        if not isinstance(tree.claim, Drawn):
            return super().verify(tree, law, scores, noise)
        p = law.probs(None)
        drafted = range(forest.num_rows, len(tree))
        order = list(range(forest.num_rows))
        order += sorted(drafted, key=lambda n: (forest.depths[n], -float(p[forest.parents[n], tokens[n]])))
        verdict = super().verify(picked(tree, tree.claim, order), _Moved(law, order), scores, noise)
        return Verdict([order[leaf] for leaf in verdict.leaf], verdict.bonus)


class _Moved:
    """The law of a tree whose nodes stand in this order."""

    def __init__(self, law: Law, order: Sequence[int]) -> None:
        self._law, self._order, self.seconds = law, order, 0.0

    def _back(self, nodes: Sequence[int] | None) -> list[int]:
        return list(self._order) if nodes is None else [self._order[node] for node in nodes]

    def choose(self, nodes: Sequence[int] | None, noise: Noise, use: str = TARGET) -> list[int]:
        return self._law.choose(self._back(nodes), noise, use)

    def probs(self, nodes: Sequence[int] | None) -> Tensor:
        return self._law.probs(self._back(nodes))
