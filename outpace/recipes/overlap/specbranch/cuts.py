"""SpecBranch's rule for how much of a draft the target reads (Shen et al. 2025)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outpace.core.claim import Drawn
from outpace.core.context import Context
from outpace.core.contracts import Plan, Step, TargetWithLayers, Want
from outpace.core.tree import TokenTree
from outpace.models.predictors.rollback.predictor import ALL, NONE, RollbackPredictor


class RollbackAware:
    """The controller of SpecBranch (core.contracts.Controller), which plans drafts of one length. Called by
    the schedule (schedules.run_ahead.Kept), it says how many levels of each pending draft the target reads.

    The predictor looks at what is committed: the target's hidden states at the last token that it has read,
    and the token after it, below which the draft begins. It foresees that the target rejects the first token
    (then nothing of the draft is read), that it accepts all (all is read), or neither: then the draft is cut
    before the first token that was drawn or chosen from a distribution q without a probability above `eps`.

    Which tokens are read depends on q and on tokens before them, never on themselves: a token that was drawn
    and is left out because its own probability is small would bias the output."""

    plans_across_rows = False

    def __init__(
        self, predictor: RollbackPredictor, target: TargetWithLayers, depth: int, eps: float
    ) -> None:
        """ValueError for a depth below 1, or `eps` outside of 0 to 1."""
        if depth < 1:
            raise ValueError(f"depth is {depth}: a branch has 1 token or more")
        if not 0 <= eps <= 1:
            raise ValueError(f"eps is {eps}: give a probability from 0 to 1")
        self._predictor, self._embed, self._depth, self._eps = predictor, target.embed, depth, eps
        self._layers = predictor.layers(target)
        # at draft trees alone, so that prompts are read as without
        self.want = Want(hidden=frozenset(self._layers), at_prompt=False)
        self._hidden: dict[int, Tensor] = {}  # slot -> (K * D,) at the last token that the target has read

    def plan(self, ctx: Context) -> Plan:
        return Plan((self._depth,) * len(ctx.slots))

    def kept(self, ctx: Context, drafts: Sequence[TokenTree]) -> list[int]:
        """How many tokens of each row's draft, a chain, the target reads."""
        lengths = [len(tree) - 1 for tree in drafts]
        asked = [row for row, slot in enumerate(ctx.slots) if lengths[row] and slot in self._hidden]
        if not asked:
            return lengths
        hidden = torch.stack([self._hidden[ctx.slots[row]] for row in asked])
        roots = ctx.roots[asked].to(next(self._embed.parameters()).device)
        foreseen = self._predictor.classes(torch.cat((hidden, self._embed(roots).to(hidden)), -1))
        for row, each in zip(asked, foreseen, strict=True):
            if each == NONE:
                lengths[row] = 0
            elif each != ALL:
                sure = [prob > self._eps for prob in largest_probs(drafts[row])]
                lengths[row] = [*sure, False].index(False)
        return lengths

    def observe(self, step: Step) -> None:
        at = [node - step.scores.first for node in step.kept]
        found = torch.cat([step.scores.hidden[layer][at] for layer in self._layers], -1)
        self._hidden |= zip(step.ctx.slots, found, strict=True)

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._hidden.pop(slot, None)


def largest_probs(chain: TokenTree) -> list[float]:
    """The largest probability of the distribution of each draft token of a row: its own, if it was chosen as
    the most probable one. 1 where it is not known, as of a predicted output."""
    claim, confidence = chain.claim, chain.confidence
    found = list[float]()
    for node in range(1, len(chain)):
        if isinstance(claim, Drawn) and claim.row[node] >= 0:
            found.append(float(claim.q[claim.row[node]].max()))
        else:
            found.append(1.0 if confidence is None else float(confidence[node].exp()))
    return found
