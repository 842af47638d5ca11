"""DISCO (Mamou et al. 2024): a chain that ends with the first token that is likely to be rejected.

New here: PredictedToken and DraftDistributionPredictor, a classifier of two layers on the probabilities of
the draft's ten most probable tokens, the entropy and the position in the draft; LearnedConfidence, the
variant without training. Reuses: DraftModel, Rejection. Exact at any temperature: the token with which a
draft ends stays in it, since dropping it would bias the output.

With `predictor`, from `outpace train disco --target TARGET --draft DRAFT --output FOLDER`, a draft ends with
the first token whose predicted probability of being accepted is below `threshold`. Its features are those of
the draft model's distribution before sampling parameters. The width of its layers is not published, and the
threshold is to be tuned on texts like yours.

Without it, as in transformers' assisted generation, a draft ends with the first token whose own draft
probability is below a threshold, which begins as given. After every step it becomes the value with the least
false positives plus three times the false negatives among the last 1,024 verified tokens. What is learned
lasts as long as these parts: one call of `outpace.generate` with all its prompts, or a server.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import numpy

from outpace.core.context import Context
from outpace.core.contracts import Frontier, Parts, Plan, Step, Target, Want, recipe
from outpace.drafters.model.draft_model import DraftModel
from outpace.models.predictors.draft_distribution.predictor import DraftDistributionPredictor
from outpace.verifiers.rejection import Rejection

REMEMBERED = 1024  # last verified draft tokens that the threshold is fitted to
FEWEST = 6  # verified draft tokens before it is fitted
MISSED = 3.0  # cost of stopping at an accepted token, relative to going on after a rejected one
ROUNDING = 1e-5  # relative; draft probabilities of verified tokens come back from logarithms in float32


@recipe(paper="arXiv:2405.04304", family="control and routing")
def disco(
    target: Target,
    *,
    draft: Target,
    predictor: DraftDistributionPredictor | None = None,
    depth: int = 20,
    threshold: float = 0.4,
) -> Parts:
    """A draft model's chain that ends with a token that is likely to be rejected, verified by rejection.

    Args:
        draft: model that drafts; it has the same vocabulary as the target
        predictor: folder with a predictor that was trained for both models; none: draft probabilities decide
        depth: most tokens drafted per step
        threshold: a token of a lower probability ends the draft; without a predictor only at first
    """
    if predictor is None:
        return Parts(target, DraftModel(draft), Rejection(), LearnedConfidence(depth, threshold))
    predictor.prepare(draft, target)
    return Parts(target, DraftModel(draft), Rejection(), PredictedToken(predictor, depth, threshold))


class PredictedToken:
    """Implementation of core.contracts.Controller with DISCO's classifier (Mamou et al. 2024): chains of at
    most `depth` tokens that end with the first token whose predicted probability of being accepted is below
    `threshold`. That token stays in the draft.

    The prediction is made from the draft model's distribution before sampling parameters and the token's
    position, and so is the same for every token that might have been drawn.
    """

    want = Want()
    plans_across_rows = False

    def __init__(self, predictor: DraftDistributionPredictor, depth: int, threshold: float) -> None:
        if not 0 <= threshold <= 1:
            raise ValueError(f"threshold is {threshold}; give a probability from 0 to 1")
        self._predictor, self._depth, self._threshold = predictor, depth, threshold

    def plan(self, ctx: Context) -> Plan:
        return Plan((self._depth,) * len(ctx.slots), stop=self._stopped)

    def _stopped(self, frontier: Frontier) -> list[bool]:
        assert frontier.logits is not None, "the drafter has no logits"
        accepted = self._predictor.acceptance(frontier.logits, [len(path) for path in frontier.paths])
        return [each < self._threshold for each in accepted]

    def observe(self, step: Step) -> None:
        """Does nothing: the predictor does not learn while decoding."""

    def release(self, slots: Sequence[int]) -> None:
        """Does nothing: no state is kept per request."""


class RocThreshold:
    """A threshold that begins at a given value and is fitted again after every step to the last tokens that
    were verified, as in transformers' assisted generation."""

    def __init__(self, value: float) -> None:
        self.value = value
        self._tokens: deque[tuple[float, bool]] = deque(maxlen=REMEMBERED)

    def learn(self, tokens: Iterable[tuple[float, bool]]) -> None:
        """Add verified tokens, (draft probability, whether accepted), and fit the threshold if there are
        enough of both kinds."""
        self._tokens.extend(tokens)
        probs, accepted = zip(*self._tokens, strict=True) if self._tokens else ((), ())
        if len(probs) >= FEWEST and 0 < sum(accepted) < len(accepted):
            self.value = roc_threshold(probs, accepted)


def roc_threshold(probs: Sequence[float], accepted: Sequence[bool]) -> float:  # (N,), (N,)
    """The draft probability t for which the share of rejected tokens of probability t or more plus `MISSED`
    times the share of accepted tokens below t is smallest; the largest of several. Both kinds must occur."""
    order = numpy.argsort(-numpy.array(probs), kind="stable")
    sorted_probs, is_accepted = numpy.array(probs)[order], numpy.array(accepted, dtype=bool)[order]
    false_positives = (~is_accepted).cumsum() / (~is_accepted).sum()
    false_negatives = 1 - is_accepted.cumsum() / is_accepted.sum()
    costs = false_positives + MISSED * false_negatives
    # tokens of equal probability are on one side
    costs[:-1][sorted_probs[1:] == sorted_probs[:-1]] = numpy.inf
    return float(sorted_probs[costs.argmin()])


class LearnedConfidence:
    """Implementation of core.contracts.Controller with the rule of DISCO (Mamou et al. 2024) that needs no
    training: chains of at most `depth` tokens that end with the first token whose draft probability is below
    a threshold. That token stays in the draft.

    After every step the threshold follows from the draft probabilities of the tokens verified so far and
    from which of them were accepted (`RocThreshold`). Tokens after the first rejected one were not tested.
    Rows at temperature 0 have a threshold of their own, since the most probable token of a distribution is
    accepted less often than a token of the same probability that was drawn. Both are shared by all requests
    and kept after their end.
    """

    want = Want()
    plans_across_rows = True

    def __init__(self, depth: int, threshold: float) -> None:
        """`threshold`: its value before enough tokens were verified."""
        if not 0 <= threshold <= 1:
            raise ValueError(f"threshold is {threshold}; give a probability from 0 to 1")
        self._depth = depth
        self.thresholds = {greedy: RocThreshold(threshold) for greedy in (False, True)}
        self._greedy: list[bool] = []  # by row of the step that is planned
        self._asked: set[int] = set()  # its rows in which the draft model drafts

    def plan(self, ctx: Context) -> Plan:
        self._greedy, self._asked = [params.greedy for params in ctx.sampling], set()
        return Plan((self._depth,) * len(ctx.slots), stop=self._stopped)

    def _stopped(self, frontier: Frontier) -> list[bool]:
        self._asked.update(frontier.rows)
        least = [self.thresholds[self._greedy[row]].value * (1 - ROUNDING) for row in frontier.rows]
        return [path[-1] < each for path, each in zip(frontier.paths, least, strict=True)]

    def observe(self, step: Step) -> None:
        tree, forest = step.draft.tree, step.draft.tree.forest
        if tree.confidence is None:
            return
        draft_probs: list[float] = tree.confidence.exp().tolist()
        tested: dict[bool, list[tuple[float, bool]]] = {False: [], True: []}
        for row, leaf in enumerate(step.verdict.leaf):
            if row in self._asked and step.generated[row]:
                path = forest.path(leaf)[1:]
                tokens = [(draft_probs[node], True) for node in path]
                tokens += [(draft_probs[child], False) for child in forest.children[leaf]]
                tested[step.ctx.sampling[row].greedy] += tokens
        for greedy, tokens in tested.items():
            if tokens:
                self.thresholds[greedy].learn(tokens)

    def release(self, slots: Sequence[int]) -> None:
        """Does nothing: what was learned is kept."""
