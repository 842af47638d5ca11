"""Latency-aware test-time scaling: one draft length for the batch, and rows that stay independent."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from types import SimpleNamespace

import pytest
import torch

from outpace.controllers.fixed import Fixed
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
from outpace.recipes.control.latency_aware_tts import IdleLength, latency_aware_tts
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


@dataclass
class Modelled:
    """Steps in which a forward of the target takes 10 ms up to 16 tokens, and more in proportion beyond."""

    per_forward: float = 0.0  # seconds of a forward of the draft model
    rate: float = 1.0  # probability that a draft token is accepted
    tokens: int = 0
    seconds: float = 0.0
    random: Random = field(default_factory=lambda: Random(0))

    def planned(self, controller: IdleLength, rows: int, steps: int) -> list[int]:
        """The lengths of so many steps."""
        chosen: list[int] = []
        for turn in range(steps):
            ctx = context(rows, turn=turn)
            plan = controller.plan(ctx)
            assert len(set(plan.depth)) == 1
            length = plan.depth[0]
            chosen.append(length)
            tokens, drafting = rows * (1 + length), length * self.per_forward
            accepted = [
                next((k for k in range(length) if self.random.random() >= self.rate), length)
                for _ in range(rows)
            ]
            score = 10e-3 * max(1, tokens / 16)
            done = step(ctx, plan.depth, accepted, draft=drafting, score=score, verify=1e-4)
            draft = replace(done.draft, forwards=length, seconds=drafting)
            controller.observe(replace(done, draft=draft, scores=Scores(0, None, computed=tokens)))
            self.tokens += rows + sum(accepted)
            self.seconds += drafting + score + 1e-4
        return chosen


def planned(controller: IdleLength, rows: int, steps: int, **model: float) -> list[int]:
    return Modelled(**model).planned(controller, rows, steps)


def test_drafts_are_shorter_the_more_rows_there_are() -> None:
    lengths = [planned(IdleLength(8, tolerance=0.1), rows, 160)[-1] for rows in (1, 2, 4, 8, 16, 32)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] == 8 and lengths[2] == 3 and lengths[-1] == 0


def test_as_rows_end_the_drafts_of_the_others_grow() -> None:
    controller = IdleLength(8, tolerance=0.1)
    many = planned(controller, 8, 160)[-1]
    assert planned(controller, 2, 80)[-1] > many


@pytest.mark.parametrize("rows", [1, 2])
def test_a_useless_draft_ends_in_plain_decoding_within_a_few_steps(rows: int) -> None:
    controller, modelled = IdleLength(5, tolerance=0.5), Modelled(per_forward=4e-3, rate=0.0)
    first = modelled.planned(controller, rows, 20)
    assert first[10:16] == [0] * 6
    begin = modelled.tokens, modelled.seconds
    assert set(modelled.planned(controller, rows, 400)) == {0, 1}  # 1: to see whether that has changed
    speed = (modelled.tokens - begin[0]) / (modelled.seconds - begin[1])
    assert speed > 0.95 * rows / 10.1e-3
    modelled.rate = 0.9
    assert modelled.planned(controller, rows, 800)[-1] == 5


@pytest.mark.parametrize("rows", [1, 2])
def test_a_good_draft_stays_as_long_as_verifying_it_is_free(rows: int) -> None:
    found = planned(IdleLength(5, tolerance=0.5), rows, 100, per_forward=1e-3, rate=0.9)
    assert found[-1] == 5 and found[10:].count(5) > 80


def test_costly_drafts_of_middling_acceptance_are_cut() -> None:
    """With half of the tokens accepted and 3 ms a forward, one token is best: 1.5 / 13, then 1.75 / 16."""
    found = planned(IdleLength(5, tolerance=0.5), 1, 300, per_forward=3e-3, rate=0.5)[100:]
    assert 0.8 < sum(found) / len(found) < 2


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
