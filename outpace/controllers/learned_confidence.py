"""Stop drafting after a token of low draft probability; what is low is learned from what is accepted."""

from __future__ import annotations

from collections.abc import Sequence

from outpace.controllers.roc_threshold import RocThreshold
from outpace.core.context import Context
from outpace.core.contracts import Frontier, Plan, Step, Want

ROUNDING = 1e-5  # relative; draft probabilities of verified tokens come back from logarithms in float32


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
