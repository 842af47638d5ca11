"""Speculative sampling: what the papers promise beyond the distribution."""

from __future__ import annotations

import pytest
import torch

from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.models.table import TableTarget
from outpace.proof.expected_acceptance import expected_accepted
from outpace.recipes.base.speculative_sampling import speculative_sampling
from outpace.sampling.target_probs import LazyTargetProbs

TARGET, DRAFT = TableTarget(5, seed=1), TableTarget(5, seed=2, order=2)


def overlap(text: tuple[int, ...]) -> float:
    p = TARGET.logits[TARGET.state(text)].softmax(-1)
    q = DRAFT.logits[DRAFT.state(text)].softmax(-1)
    return float(torch.minimum(p, q).sum())


@pytest.mark.parametrize("prompt", [(0,), (3, 1, 4), (2, 2)])
def test_one_draft_token_is_accepted_with_the_overlap_of_the_distributions(prompt: tuple[int, ...]) -> None:
    found = expected_accepted(lambda: speculative_sampling.build(TARGET, draft=DRAFT), 1, prompt)
    assert found == pytest.approx(overlap(prompt), abs=1e-12)


@pytest.mark.slow
def test_measured_acceptance_is_the_mean_overlap() -> None:
    parts = speculative_sampling.build(TARGET, draft=DRAFT, depth=3)
    session = Session(
        parts, [torch.tensor([0])], [SamplingParams(1.0, max_tokens=1_500, seed=3)], LazyTargetProbs
    )
    expected, kept, tested = 0.0, 0, 0
    for step in session.steps():
        text = tuple(step.ctx.tokens[0].tolist())
        drafted = step.draft.tree.tokens[1:].tolist()
        accepted = len(step.generated[0]) - 1
        for index in range(min(accepted + 1, len(drafted))):
            expected += overlap((*text, *drafted[:index]))
            tested += 1
        kept += accepted
    error = 3 * (0.25 / tested) ** 0.5
    assert kept / tested == pytest.approx(expected / tested, abs=error)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_tokens_per_step_are_a_geometric_series_where_tokens_do_not_depend_on_the_text(depth: int) -> None:
    target, draft = TableTarget(3, order=1), TableTarget(3, order=1)
    p, q = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.3, 0.5]], dtype=torch.float64)
    target.logits[:], draft.logits[:] = p.log(), q.log()
    rate = float(torch.minimum(p, q).sum())
    parts = speculative_sampling.build(target, draft=draft, depth=depth)
    found = 1 + expected_accepted(lambda: parts, depth)
    assert found == pytest.approx((1 - rate ** (depth + 1)) / (1 - rate), abs=1e-12)


def test_a_greedy_draft_carries_no_claim() -> None:
    assert speculative_sampling.build(TARGET, draft=DRAFT, sampled=False).drafter.claims == ()


def test_confidence_stops_after_the_unsure_token() -> None:
    parts = speculative_sampling.build(TARGET, draft=DRAFT, depth=4, confidence_threshold=0.5)
    session = Session(
        parts, [torch.tensor([0])], [SamplingParams(1.0, max_tokens=400, seed=3)], LazyTargetProbs
    )
    lengths = set()
    for step in session.steps():
        text, drafted = tuple(step.ctx.tokens[0].tolist()), step.draft.tree.tokens[1:].tolist()
        for index, token in enumerate(drafted):
            q = DRAFT.logits[DRAFT.state((*text, *drafted[:index]))].softmax(-1)
            unsure = float(q[token]) < 0.5
            longest = min(4, step.ctx.max_draft_depth[0])
            stopped = index + 1 == len(drafted) < longest
            assert unsure == stopped or index + 1 == longest
        lengths.add(len(drafted))
    assert {1, 2, 4} <= lengths
