"""Lookup or draft: what a step drafts follows from the text, in steps whose times follow from their nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from outpace.controllers.source_choice import FIRST_DEPTHS, SourceChoice
from outpace.core.contracts import Step
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.models.heads.eagle.head import untrained_eagle
from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.medusa.head import untrained_medusa
from outpace.models.heads.position_model import PositionModel
from outpace.models.table import TableTarget
from outpace.proof.per_row_controller import ControllersApart
from outpace.recipes import RecipeError, configure
from outpace.recipes._option_kinds import FunctionOpener
from outpace.recipes.base.lookup_or_draft import lookup_or_draft
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.serving.routed import routed
from tests.recipes.counting_model import counting

VOCAB, DEPTH, LOOKUP_DEPTH = 120, 6, 30


def run(prompts: Sequence[Sequence[int]], draft: TableTarget, tokens: int = 90) -> list[Step]:
    """The steps that generate; times follow from numbers of nodes, and drafting takes none."""
    parts = lookup_or_draft(counting(VOCAB), draft=draft, depth=DEPTH, lookup_depth=LOOKUP_DEPTH)
    parts = replace(parts, controller=ControllersApart(lambda: SourceChoice(LOOKUP_DEPTH, DEPTH)))
    sampling = [SamplingParams(max_tokens=tokens)] * len(prompts)
    session = Session(parts, [torch.tensor(each) for each in prompts], sampling, LazyTargetProbs)
    return [step for step in session.steps() if any(step.generated)]


def depths(step: Step) -> list[int]:
    forest = step.draft.tree.forest
    return [len(forest.nodes[row]) - 1 for row in range(forest.num_rows)]


def test_the_model_drafts_where_nothing_repeats() -> None:
    steps = run([[0]], counting(VOCAB), tokens=120)
    assert [depths(step) for step in steps[: len(FIRST_DEPTHS)]] == [[depth] for depth in FIRST_DEPTHS]
    assert len(steps) > len(FIRST_DEPTHS) + 5
    for step in steps[len(FIRST_DEPTHS) : -1]:
        assert depths(step) == [DEPTH] and step.draft.forwards == DEPTH
        assert len(step.generated[0]) == DEPTH + 1


def test_a_long_match_is_drafted_in_place_of_the_models_tokens() -> None:
    steps = run([[*range(VOCAB), *range(VOCAB)]], counting(VOCAB))[len(FIRST_DEPTHS) :]
    assert steps and all(step.draft.forwards == 0 for step in steps)
    assert depths(steps[0]) == [LOOKUP_DEPTH] and len(steps[0].generated[0]) == LOOKUP_DEPTH + 1


def test_each_row_has_a_source_of_its_own() -> None:
    steps = run([[0], [*range(VOCAB), *range(VOCAB)]], counting(VOCAB))[len(FIRST_DEPTHS) :]
    assert depths(steps[0]) == [DEPTH, LOOKUP_DEPTH]


def test_a_model_that_is_never_right_ends_up_unused() -> None:
    wrong = counting(VOCAB)
    wrong.logits = wrong.logits.roll(1, -1)
    steps = run([[0]], wrong)
    assert sum(depths(step)[0] for step in steps[-20:]) <= 20
    assert all(len(step.generated[0]) == 1 for step in steps)


def test_a_step_for_which_nothing_was_planned_teaches_nothing() -> None:
    """A server's drafter does not ask for a plan where only the last token of a text is left."""
    parts, _ = routed({"only": lookup_or_draft(counting(VOCAB), draft=counting(VOCAB))})
    prompts = [torch.tensor([0]), torch.tensor([50])]
    sampling = [SamplingParams(max_tokens=tokens) for tokens in (1, 20)]
    session = Session(parts, prompts, sampling, LazyTargetProbs)
    for _ in session.steps():
        pass
    alone = Session(parts, prompts[:1], sampling[:1], LazyTargetProbs)
    assert [step.generated for step in alone.steps()] == [([1],)]
    assert session.request(1).output() == [*range(51, 71)]


def test_a_row_that_is_drafted_elsewhere_gets_no_tokens_of_the_model() -> None:
    """As where its output is predicted: the plan of that row has depth 0."""
    controller = SourceChoice(LOOKUP_DEPTH, DEPTH)
    parts = lookup_or_draft(counting(VOCAB), draft=counting(VOCAB))
    session = Session(
        replace(parts, controller=controller), [torch.tensor([0])], [SamplingParams()], LazyTargetProbs
    )
    for _ in range(len(FIRST_DEPTHS) + 2):
        plan = controller.plan(session.context())
        assert plan.choice is not None and plan.choice([0], lambda: [(9, [1, 2, 3])]) == [(0, 0)]


def test_unsuited_options_are_refused() -> None:
    for options in ({"depth": 0}, {"lookup_depth": 0}):
        with pytest.raises(ValueError, match="use 1 or more"):
            lookup_or_draft(counting(VOCAB), draft=counting(VOCAB), **options)
    with pytest.raises(RecipeError, match="draft"):
        configure(lookup_or_draft, counting(VOCAB), {}, FunctionOpener(lambda value: counting(VOCAB)))


@pytest.mark.parametrize("sampled", [True, False])
@pytest.mark.parametrize(
    "made",
    [
        lambda target: HeadModel(untrained_eagle(target)),
        lambda target: PositionModel(untrained_medusa(target)),
    ],
)
def test_a_head_draws_tokens_or_chooses_them(made, sampled: bool) -> None:
    target = TableTarget(40, seed=1, order=2)
    parts = lookup_or_draft(target, head=made(target), sampled=sampled)
    session = Session(parts, [torch.tensor([3])], [SamplingParams(1.0, max_tokens=30)], LazyTargetProbs)
    claims = [step.draft.tree.claim for step in session.steps() if step.draft.forwards]
    assert claims and all((each is not None) == sampled for each in claims)
