"""How often draft tokens are accepted, by their draft probability."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy

from outpace.core.contracts import Step

NUM_BINS = 10  # of draft probabilities, equally wide
PRIOR_TOKENS = 8.0  # weight of the acceptance rate of all tokens beside what was measured, in tokens
KEEP = 0.998  # share of the evidence that is kept per step


class TokenAcceptance:
    """Probability that a draft token is accepted if those before it were, by its draft probability.

    Tokens of rows at temperature 0 are counted apart: a token of draft probability 0.3 that was drawn is
    accepted more often than one that is only the most probable of many.
    """

    def __init__(self) -> None:
        self._accepted, self._tested = numpy.zeros((2, NUM_BINS)), numpy.zeros((2, NUM_BINS))

    def path(self, draft_probs: Sequence[float], rate: float, *, greedy: bool) -> float:
        """Probability that all tokens of a path are accepted. `rate`: how often tokens of its row are."""
        accepted, tested = self._accepted[int(greedy)], self._tested[int(greedy)]
        bins = map(_bin, draft_probs)
        return prod((accepted[b] + PRIOR_TOKENS * rate) / (tested[b] + PRIOR_TOKENS) for b in bins)

    def learn(self, step: Step) -> None:
        """Count the draft tokens that a step tested: the children of accepted nodes."""
        tree, forest = step.draft.tree, step.draft.tree.forest
        if tree.confidence is None:
            return
        draft_probs: list[float] = tree.confidence.exp().tolist()
        self._accepted *= KEEP
        self._tested *= KEEP
        for row, leaf in enumerate(step.verdict.leaf):
            if step.generated[row]:
                greedy, path = int(step.ctx.sampling[row].greedy), set(forest.path(leaf))
                for node in path:
                    for child in forest.children[node]:
                        self._tested[greedy, _bin(draft_probs[child])] += 1
                        self._accepted[greedy, _bin(draft_probs[child])] += child in path


def _bin(draft_prob: float) -> int:
    # confidence is a logarithm in float32: 0.2 may come back as a little less
    return min(NUM_BINS - 1, int(draft_prob * NUM_BINS + 1e-4))
