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
from outpace.models.table import TableTarget
from outpace.proof.per_row_controller import ControllersApart
from outpace.recipes import RecipeError, configure
from outpace.recipes._option_kinds import FunctionOpener
from outpace.recipes.base.lookup_or_draft import lookup_or_draft
from outpace.sampling.target_probs import LazyTargetProbs
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
    steps = run([[0]], counting(VOCAB))
    assert [depths(step) for step in steps[: len(FIRST_DEPTHS)]] == [[6], [3], [2]]
    for step in steps[len(FIRST_DEPTHS) : -1]:
        assert depths(step) == [DEPTH] and step.draft.forwards == DEPTH
        assert len(step.generated[0]) == DEPTH + 1


def test_a_long_match_is_drafted_in_place_of_the_models_tokens() -> None:
    steps = run([[*range(VOCAB), *range(VOCAB)]], counting(VOCAB))[1 + len(FIRST_DEPTHS) :]
    assert steps and all(step.draft.forwards == 0 for step in steps)
    assert depths(steps[0]) == [LOOKUP_DEPTH] and len(steps[0].generated[0]) == LOOKUP_DEPTH + 1


def test_each_row_has_a_source_of_its_own() -> None:
    steps = run([[0], [*range(VOCAB), *range(VOCAB)]], counting(VOCAB))[1 + len(FIRST_DEPTHS) :]
    assert depths(steps[0]) == [DEPTH, LOOKUP_DEPTH]


def test_a_model_that_is_never_right_ends_up_unused() -> None:
    wrong = counting(VOCAB)
    wrong.logits = wrong.logits.roll(1, -1)
    steps = run([[0]], wrong)
    assert sum(depths(step)[0] for step in steps[-20:]) <= 20
    assert all(len(step.generated[0]) == 1 for step in steps)


def test_unsuited_options_are_refused() -> None:
    for options in ({"depth": 0}, {"lookup_depth": 0}):
        with pytest.raises(ValueError, match="use 1 or more"):
            lookup_or_draft(counting(VOCAB), draft=counting(VOCAB), **options)
    with pytest.raises(RecipeError, match="draft"):
        configure(lookup_or_draft, counting(VOCAB), {}, FunctionOpener(lambda value: counting(VOCAB)))
