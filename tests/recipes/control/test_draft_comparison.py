"""What draft models would have drafted, read after each step, against their own tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import NOTHING, Cache, Parts, Scores, Want
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import TokenTree
from outpace.decode import Session
from outpace.drafters.model.draft_model import DraftModel
from outpace.models.table import TableTarget
from outpace.recipes.control.hedge_spec.recipe import DraftComparison
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.sampling.warp import warp
from outpace.verifiers.rejection import Rejection

VOCAB, DEPTH = 6, 3
PROMPTS = ([1, 2, 3, 1, 2], [4], [0, 5])


class Counted(TableTarget):
    """Counts its forwards."""

    forwards = 0

    def score(
        self,
        tree: TokenTree,
        slots: Sequence[int],
        cache: Cache,
        want: Want = NOTHING,
        *,
        gap: Sequence[Tensor] | None = None,
    ) -> Scores:
        self.forwards += 1
        return super().score(tree, slots, cache, want, gap=gap)


def compared(by_token: bool, temperature: float, rows: int, **params: Any) -> tuple[int, int, int]:
    """Decode with the first of two draft models, and compare what is found in each step with tables. Returns
    the number of steps, those with a fully accepted draft, and the forwards that were not for drafts."""
    target = TableTarget(VOCAB, seed=1)
    models = [Counted(VOCAB, seed=2), Counted(VOCAB, seed=3, order=2)]
    models[0].logits = 0.7 * target.logits + 0.3 * models[0].logits  # often accepted
    drafters = [DraftModel(model, keeps_logits=True) for model in models]
    parts = Parts(target, drafters[0], Rejection(), Fixed(DEPTH))
    compare = DraftComparison(drafters, by_token=by_token)
    sampling = [SamplingParams(temperature, max_tokens=40, seed=row, **params) for row in range(rows)]
    prompts = [torch.tensor(prompt) for prompt in PROMPTS[:rows]]
    steps = full = drafted = 0
    for step in Session(parts, prompts, sampling, LazyTargetProbs).steps():
        found, forest = compare(step), step.draft.tree.forest
        drafted += step.draft.forwards
        if not found:
            continue
        steps += 1
        full += any(not forest.children[leaf] for leaf in step.verdict.leaf)
        for row, positions in found.items():
            text = step.ctx.tokens[row].tolist()
            assert len(positions) == len(step.generated[row])
            for token, accepted in zip(step.generated[row], positions, strict=True):
                p, *qs = (
                    warp(model.logits[model.state(text)][None], [step.ctx.sampling[row]])[0]
                    for model in (target, *models)
                )
                for q, rate in zip(qs, accepted, strict=True):
                    expected = (
                        min(1.0, float(q[token] / p[token])) if by_token else float(torch.minimum(p, q).sum())
                    )
                    assert rate == pytest.approx(expected, abs=1e-6)
                text.append(token)
        if len(step.finished):
            break
    return steps, full, sum(model.forwards for model in models) - drafted


@pytest.mark.parametrize("by_token", [False, True])
@pytest.mark.parametrize(("temperature", "rows"), [(0.0, 1), (1.0, 1), (0.8, 3)])
def test_acceptance_of_every_model_is_that_of_its_distribution(
    by_token: bool, temperature: float, rows: int
) -> None:
    assert compared(by_token, temperature, rows, top_k=4)[0] >= 5


def test_the_model_that_drafted_reads_again_only_after_a_fully_accepted_draft() -> None:
    steps, full, forwards = compared(False, 1.0, 1)
    assert 0 < full < steps and forwards == steps + full


def test_the_mean_over_tokens_is_the_overlap_of_the_distributions() -> None:
    generator = torch.Generator().manual_seed(0)
    p, q = torch.rand(2, 9, generator=generator, dtype=torch.float64).log().softmax(-1)
    assert float((p * (q / p).clamp(max=1)).sum()) == pytest.approx(float(1 - (p - q).abs().sum() / 2))


def test_drafts_after_a_comparison_are_those_without_it() -> None:
    """The comparison reads ahead in the models' caches."""
    target = TableTarget(VOCAB, seed=1)
    texts: list[list[list[int]]] = []
    for compares in (False, True):
        drafter = DraftModel(TableTarget(VOCAB, seed=2), keeps_logits=True)
        sampling = [SamplingParams(1.0, max_tokens=30, seed=row) for row in range(3)]
        session = Session(
            Parts(target, drafter, Rejection(), Fixed(DEPTH)),
            [*map(torch.tensor, PROMPTS)],
            sampling,
            LazyTargetProbs,
        )
        compare = DraftComparison([drafter])
        for step in session.steps():
            if compares:
                compare(step)
        texts.append([session.request(slot).output() for slot in range(3)])
    assert texts[0] == texts[1]
