"""How well each of several draft models would have drafted what was generated, whichever of them drafted.

Letters: N models, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outpace.core.contracts import Context, Step
from outpace.drafters.compose.rows import context_of_rows
from outpace.drafters.model.draft_model import DraftModel
from outpace.sampling.adjust import Adjuster
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.sampling.warp import warp


class DraftComparison:
    """After each step, for every generated token and model: the probability that a draft token of the model
    would have been accepted there.

    That is 1 - TV(p, q), or, for tokens x that the target generates, min(1, q(x) / p(x)) with `by_token`,
    whose mean over x is the same. Both distributions are those after all sampling parameters.

    Each model reads the generated tokens for this in one forward more per step, as far as it has not read
    them while it drafted; its next draft then needs not read them.
    """

    def __init__(self, drafters: Sequence[DraftModel], *, by_token: bool = False) -> None:
        """`drafters`: with `keeps_logits`, for one target."""
        self._drafters, self._by_token = tuple(drafters), by_token

    def __call__(self, step: Step) -> dict[int, list[list[float]]]:
        """Row -> (T, N), T the number of tokens that it generated; without the rows that generated none or
        whose requests have ended."""
        rows = [row for row, generated in enumerate(step.generated) if generated and row not in step.finished]
        if not rows or step.scores.logits is None:
            return {}
        ctx, texts = context_of_rows(step.ctx, rows), [step.generated[row] for row in rows]
        paths = [step.draft.tree.forest.path(step.kept[row]) for row in rows]
        target_probs = LazyTargetProbs(step.scores, step.draft.tree, step.ctx)
        p = target_probs.probs([node for path in paths for node in path])
        tokens = torch.tensor([token for text in texts for token in text], device=p.device)[:, None]
        accepted: list[Tensor] = []
        for drafter in self._drafters:
            q = self._draft_probs(drafter, ctx, texts, p)
            if self._by_token:
                tiny = torch.finfo(p.dtype).tiny
                ratios = q.gather(1, tokens) / p.gather(1, tokens).clamp(min=tiny)
                accepted.append(ratios[:, 0].clamp(max=1.0))
            else:
                accepted.append(torch.minimum(p, q).sum(-1).clamp(max=1.0))
        by_position = iter(torch.stack(accepted, 1).tolist())
        return {row: [next(by_position) for _ in text] for row, text in zip(rows, texts, strict=True)}

    def _draft_probs(
        self, drafter: DraftModel, ctx: Context, texts: Sequence[Sequence[int]], p: Tensor
    ) -> Tensor:  # (T, V)
        """`draft_probs` of a model; 0 in rows whose texts are longer than it reads."""
        lengths = zip(ctx.committed, texts, strict=True)
        rows = [
            row
            for row, (committed, text) in enumerate(lengths)
            if drafter.longest_draft(committed + len(text) - 1)
        ]
        if len(rows) == len(texts):
            return draft_probs(ctx, texts, drafter.read(ctx, [text[:-1] for text in texts])).to(p)
        found = [p.new_zeros(len(text), p.shape[1]) for text in texts]
        if rows:
            own, after = context_of_rows(ctx, rows), [texts[row] for row in rows]
            q = draft_probs(own, after, drafter.read(own, [text[:-1] for text in after])).to(p)
            for row, part in zip(rows, q.split([len(text) for text in after]), strict=True):
                found[row] = part
        return torch.cat(found)


def draft_probs(ctx: Context, texts: Sequence[Sequence[int]], logits: Sequence[Tensor]) -> Tensor:
    """q before each token of `texts`, which follow the roots of `ctx`, from each row's logits, (T, V). 0
    where a model excludes all tokens that the sampling parameters allow."""
    rows = [row for row, text in enumerate(texts) for _ in text]
    paths = [text[:length] for text in texts for length in range(len(text))]
    adjusted = Adjuster(ctx)(torch.cat(list(logits)), rows, paths)
    return warp(adjusted, [ctx.sampling[row] for row in rows]).nan_to_num(0.0)
