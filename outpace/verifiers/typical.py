"""Typical acceptance (Cai et al. 2024): a draft token is accepted if it is not improbable for the target,
regardless of its draft probability.

Letters: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import exp, log

import torch
from torch import Tensor

from outpace.core.claim import Claim
from outpace.core.contracts import Guarantee, ReferenceRequest, Scores, TargetProbs, Verdict, Want
from outpace.core.noise import TARGET, Key, Noise
from outpace.core.tree import TokenTree

NEVER = 1e6  # from this `delta` on, delta · exp(-H) is at least 1 for vocabularies of up to a million tokens
Path = tuple[int, ...]
# (text, most tokens, request) -> the paths of the draft, each listed after its parent path
PlainDraft = Callable[[Path, int, ReferenceRequest], Sequence[Path]]


class Typical:
    """Implementation of core.contracts.Verifier: a token x passes after a text if p(x) > min(epsilon, delta ·
    exp(-H)), where p is the target's distribution with the request's sampling parameters and H its entropy in
    nats. The longest path of passing tokens is accepted; of several such paths the most probable one. The
    bonus token is drawn from p restricted to the tokens that pass after this path, or from p if none does.
    With epsilon 1 and a huge delta nothing passes, and the output is the target's."""

    want = Want()
    accepts: tuple[type[Claim], ...] = (Claim,)  # all kinds: the rule does not use claims

    def __init__(self, epsilon: float, delta: float) -> None:
        """ValueError for thresholds that are not above 0."""
        if epsilon <= 0 or delta <= 0:
            raise ValueError(f"epsilon is {epsilon} and delta {delta}: give numbers above 0")
        self._epsilon, self._delta = epsilon, delta
        self.guarantee = Guarantee.EXACT if epsilon >= 1 and delta >= NEVER else Guarantee.LOSSY

    def verify(self, tree: TokenTree, target_probs: TargetProbs, scores: Scores, noise: Noise) -> Verdict:
        forest, tokens = tree.forest, tree.token_list()
        # node that may end the accepted path -> the logarithm of its path's probability
        weights = dict.fromkeys(range(forest.num_rows), 0.0)
        best, level = list(range(forest.num_rows)), list(range(forest.num_rows))
        after: dict[int, Tensor] = {}  # node -> (V,) distribution of the bonus token after it
        while level:
            probs = target_probs.probs(level)
            passes = probs > self.thresholds(probs)[:, None]
            reached: list[int] = []
            for place, node in enumerate(level):
                after[node] = self.bonus_probs(probs[place], passes[place])
                for child in forest.children[node]:
                    if bool(passes[place, tokens[child]]):
                        weights[child] = weights[node] + log(float(probs[place, tokens[child]]))
                        reached.append(child)
            for node in reached:
                row = forest.rows[node]
                deeper = forest.depths[node] > forest.depths[best[row]]
                if deeper or weights[node] > weights[best[row]]:
                    best[row] = node
            level = reached
        best = self.kept(tree, best)
        key = Key(
            list(range(forest.num_rows)),
            [forest.local[node] for node in best],
            [forest.depths[node] for node in best],
            TARGET,
        )
        return Verdict(best, noise.choose(torch.stack([after[node] for node in best]), key).tolist())

    def kept(self, tree: TokenTree, leaves: Sequence[int]) -> list[int]:  # (B,) -> (B,)
        """What stays of the paths to these nodes: the last node of each."""
        return list(leaves)

    def thresholds(self, probs: Tensor) -> Tensor:  # (M, V) -> (M,)
        """The probability above which a token passes, by distribution."""
        entropy = torch.special.entr(probs).sum(-1)
        return (self._delta * (-entropy).exp()).clamp_max(self._epsilon)

    def bonus_probs(self, probs: Tensor, passes: Tensor) -> Tensor:  # (V,), (V,) bool -> (V,)
        """The distribution of the bonus token after a text."""
        chosen = torch.where(passes, probs, 0.0)
        return chosen / chosen.sum() if bool(passes.any()) else probs


class TypicalSteps:
    """Implementation of core.contracts.StepReference: what one step of typical acceptance adds to a text."""

    description = "typical acceptance, which takes draft tokens that are not improbable (Medusa)"

    def __init__(self, epsilon: float, delta: float, draft: PlainDraft) -> None:
        self._epsilon, self._delta, self._draft = epsilon, delta, draft

    def step(self, text: Path, limit: int, request: ReferenceRequest) -> Iterator[tuple[float, Path]]:
        reached: dict[Path, float] = {(): 0.0}
        for path in self._draft(text, limit - 1, request):
            before, token = path[:-1], path[-1]
            if before not in reached or set(before) & set(request.sampling.stop):
                continue
            probs = request.probs((*text, *before)).tolist()
            if probs[token] > self._threshold(probs):
                reached[path] = reached[before] + log(probs[token])
        accepted = self.kept(max(reached, key=lambda path: (len(path), reached[path])))
        probs = request.probs((*text, *accepted)).tolist()
        passing = [token for token, prob in enumerate(probs) if prob > self._threshold(probs)]
        passing = passing or [token for token, prob in enumerate(probs) if prob > 0]
        whole = sum(probs[token] for token in passing)
        for token in passing:
            yield probs[token] / whole, (*accepted, token)

    def kept(self, path: Path) -> Path:
        """What stays of an accepted path."""
        return path

    def _threshold(self, probs: Sequence[float]) -> float:
        entropy = -sum(prob * log(prob) for prob in probs if prob > 0)
        return min(self._epsilon, self._delta * exp(-entropy))
