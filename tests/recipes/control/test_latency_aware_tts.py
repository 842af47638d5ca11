"""Latency-aware test-time scaling: one draft length for the batch, and rows that stay independent."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from outpace.controllers.fixed import Fixed
from outpace.controllers.idle_length import IdleLength
from outpace.core.contracts import Parts, Scores
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.drafters.lookup.ngram import NGram
from outpace.models.table import TableTarget
from outpace.proof.enumeration import BOUND, Case, enumerate_distributions, largest_error
from outpace.proof.joint import Group, enumerate_joint, largest_joint_error
from outpace.proof.mutants.joint import OneStream, joint_variants
from outpace.proof.per_row_controller import controllers_by_row
from outpace.proof.reference import table_logits
from outpace.recipes.control.latency_aware_tts import latency_aware_tts
from outpace.sampling.target_probs import LazyTargetProbs
from tests.controllers.test_bandits import context, step

TARGET, DRAFT = TableTarget(3, seed=1), TableTarget(3, seed=2, order=2)
LOGITS = table_logits(TARGET.logits, TARGET.state)
GROUPS = [Group((1, 1), (SamplingParams(1.0, top_k=2, max_tokens=3),) * 2)]


def parts() -> Parts:
    """Drafts whose length follows from the number of rows: 3 tokens for one row, 1 for two."""
    made = latency_aware_tts.build(TARGET, draft=DRAFT, depth=3)
    lengths = SimpleNamespace(num_tokens=lambda rows, context: 3 // rows, observe=lambda step: None)
    vars(made.controller)["_idle"] = lengths
    return made


def test_lengths_of_several_tokens_are_exact() -> None:
    cases = [
        Case((0, 1), SamplingParams(1.0, top_k=2, max_tokens=4)),
        Case((2,), SamplingParams(0.7, top_k=2, max_tokens=3)),
    ]
    found = enumerate_distributions(controllers_by_row(parts), cases)
    assert largest_error(found, LOGITS, cases) < BOUND
    assert found.counts.accepted and found.counts.deepest >= 2


def test_rows_of_one_prompt_are_independent() -> None:
    found = enumerate_joint(parts, GROUPS)
    assert largest_joint_error(found, LOGITS, GROUPS) < BOUND
    assert found.counts.accepted


@pytest.mark.slow
def test_shared_seeds_and_drafts_cut_to_a_budget_are_caught() -> None:
    shared = enumerate_joint(parts, GROUPS, noise=OneStream, batch=1, replays=0)
    assert largest_joint_error(shared, LOGITS, GROUPS) > 1e-4
    name = "branches: drafts cut to the budget of the batch"
    [wrong] = [each for each in joint_variants(TARGET) if each.name == name]
    found = enumerate_joint(wrong.build, GROUPS, batch=1, replays=0)
    assert largest_joint_error(found, LOGITS, GROUPS) > 1e-4


def planned(controller: IdleLength, rows: int, steps: int) -> list[int]:
    """The lengths of steps in which a forward takes 10 ms up to 16 tokens, and more in proportion beyond."""
    chosen: list[int] = []
    for _ in range(steps):
        ctx = context(rows)
        plan = controller.plan(ctx)
        assert len(set(plan.depth)) == 1
        chosen.append(plan.depth[0])
        tokens = rows * (1 + chosen[-1])
        done = step(ctx, plan.depth, [0] * rows, score=10e-3 * max(1, tokens / 16), verify=1e-4)
        controller.observe(replace(done, scores=Scores(0, None, computed=tokens)))
    return chosen


def test_drafts_are_shorter_the_more_rows_there_are() -> None:
    lengths = [planned(IdleLength(8, tolerance=0.1), rows, 160)[-1] for rows in (1, 2, 4, 8, 16, 32)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] == 8 and lengths[2] == 3 and lengths[-1] == 0


def test_as_rows_end_the_drafts_of_the_others_grow() -> None:
    controller = IdleLength(8, tolerance=0.1)
    many = planned(controller, 8, 160)[-1]
    assert planned(controller, 2, 80)[-1] > many


def test_no_drafts_are_planned_for_rows_that_read_or_end() -> None:
    controller = IdleLength(4, tolerance=0.1)
    assert controller.plan(context(2, unread=3)).depth == (0, 0)
    assert controller.plan(context(2, limit=0)).depth == (0, 0)


def test_without_measured_times_the_length_is_fixed() -> None:
    made = latency_aware_tts.build(TARGET, measured=False, depth=4)
    assert isinstance(made.controller, Fixed) and isinstance(made.drafter, NGram)
    greedy = [SamplingParams(max_tokens=30)] * 2
    prompts = [torch.tensor([0, 1, 2]), torch.tensor([2])]
    drafted = latency_aware_tts.build(TARGET, draft=DRAFT, measured=False, depth=4)
    depths = {
        max(step.draft.tree.forest.depths)
        for step in Session(drafted, prompts, greedy, LazyTargetProbs).steps()
        if min(step.ctx.max_draft_depth) > 4 and step.ctx.unread is None
    }
    assert depths == {4}


def test_unsuited_options_are_refused() -> None:
    with pytest.raises(ValueError, match="use 0 or more"):
        latency_aware_tts.build(TARGET, depth=-1)
    with pytest.raises(ValueError, match="use a share from 0"):
        latency_aware_tts.build(TARGET, tolerance=-1.0)
