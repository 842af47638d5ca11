"""A drafter that fails for one request goes on drafting for the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from outpace.core.context import Context
from outpace.core.contracts import Draft, Plan, SamplingParams
from outpace.decode import Session
from outpace.drafters.compose.guarded import GuardedDrafter
from outpace.models.heads.head_model import HeadModel, untrained_eagle
from outpace.proof.models import tables, transformers_models
from outpace.recipes import get
from outpace.sampling.target_probs import LazyTargetProbs

BROKEN = 1  # the slot for which the drafter fails


class Failing:
    """Another drafter, except for one slot."""

    def __init__(self, drafter: Any) -> None:
        self._drafter = drafter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        if BROKEN in ctx.slots:
            raise RuntimeError("broken")
        return self._drafter.propose(ctx, plan)


def adaptive_trees() -> Any:
    models = transformers_models(vocab=12)
    head = HeadModel(untrained_eagle(models.target))
    return get("eagle2").build(models.target, head=head, adaptive=True, depth=2, num_nodes=4)


def lookups_or_chains() -> Any:
    models = tables(vocab=12)
    return get("lookup-or-draft").build(models.target, draft=models.drafts[0], depth=3)


@pytest.mark.parametrize("build", [adaptive_trees, lookups_or_chains])
def test_other_requests_keep_their_drafts(build: Any) -> None:
    parts, failed = build(), list[int | None]()
    failing: Any = Failing(parts.drafter)
    guarded = GuardedDrafter(failing, lambda slot, error: failed.append(slot))
    prompts = [torch.tensor([3, 4, 5, 3, 4]), torch.tensor([6, 7]), torch.tensor([8, 9, 8])]
    params = [SamplingParams(max_tokens=12, seed=seed) for seed in range(3)]
    drafted = dict.fromkeys(range(3), 0)
    for step in Session(replace(parts, drafter=guarded), prompts, params, LazyTargetProbs).steps():
        for row, slot in enumerate(step.ctx.slots):
            drafted[slot] += len(step.draft.tree.forest.nodes[row]) - 1
    assert failed == [BROKEN]
    assert drafted[BROKEN] == 0 and drafted[0] > 0 and drafted[2] > 0
