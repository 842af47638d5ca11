"""SpecDiff-2: drafts of one window merged into a tree, and the loss of streaks."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from outpace.core.claim import Drawn
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.recipes.diffusion.specdiff2 import specdiff2
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.training.lessons.windows import StreakLesson
from outpace.training.methods import named
from tests.recipes.diffusion.test_specdiff import MASK, VOCAB, alone, batch_of, drafted, models


@pytest.mark.parametrize("verification", ["rejection", "match"])
def test_drafts_of_one_forward_are_merged(verification: str) -> None:
    """Each drawn token has the distribution of its place in the window, at the drafts' own temperature."""
    target, draft = models()
    options: dict[str, Any] = {"depth": 3, "num_drafts": 4, "mask": MASK, "verification": verification}
    parts = specdiff2.build(target, draft=draft.fitted(VOCAB), draft_temperature=2.0, **options)
    merged = 0
    for step, row, text, nodes in drafted(parts, temperature=0.5):
        tree, forest = step.draft.tree, step.draft.tree.forest
        size = min(3, step.ctx.max_draft_depth[row])
        assert step.draft.forwards == 1 and max(forest.depths[node] for node in nodes) == size
        for parent in (forest.nodes[row][0], *nodes):
            tokens = tree.tokens[list(forest.children[parent])].tolist()
            assert len(set(tokens)) == len(tokens)
        merged += len(nodes) < 4 * size
        if verification == "match":
            assert tree.claim is None
            continue
        assert isinstance(tree.claim, Drawn)
        probs = alone(text, [MASK] * size).softmax(-1)
        for node in nodes:
            q = tree.claim.q[tree.claim.row[node]]
            assert (q - probs[forest.depths[node] - 1]).abs().max() < 1e-5
    assert merged


@pytest.mark.slow
def test_one_draft_is_accepted_as_far_as_the_streak_that_training_maximises() -> None:
    """A draft that is matched does not depend on what the target samples: so the tokens accepted of it are in
    the mean as many as the streak, sum_j prod_(i <= j) q_i(y_i), on the texts y that the target samples."""
    target, draft = models()
    options: dict[str, Any] = {"depth": 3, "mask": MASK, "verification": "match"}
    parts = specdiff2.build(target, draft=draft.fitted(VOCAB), num_drafts=1, draft_temperature=1.0, **options)
    prompts = [torch.tensor([1, 2, 3, 4]) for _ in range(60)]
    params = [SamplingParams(1.0, max_tokens=16, seed=seed) for seed in range(len(prompts))]
    session = Session(parts, prompts, params, LazyTargetProbs)
    seen = [
        (slot, step.ctx.committed[row], max(step.draft.tree.forest.depths), len(step.generated[row]) - 1)
        for step in session.steps()
        for row, slot in enumerate(step.ctx.slots)
        if len(step.draft.tree.forest.nodes[row]) == 4
    ]
    differences = list[float]()
    for slot, length, depth, accepted in seen:
        text = session.request(slot).text()
        after = text[length : length + depth]
        probs = alone(text[:length], [MASK] * depth).softmax(-1).gather(1, after[:, None])[:, 0]
        differences.append(accepted - float(probs.cumprod(0).sum()))
    found = torch.tensor(differences)
    assert len(found) > 300 and found.std() > 0.1
    assert abs(found.mean()) < 3.5 * found.std() / len(found) ** 0.5


def test_a_token_weighs_as_much_as_those_before_it_are_drafted() -> None:
    log_probs = torch.tensor([[0.5, 0.25, 0.5], [1.0, 0.1, 0.9]]).log()
    target, draft = models()
    made = type(draft.model)(copy.deepcopy(draft.model.config)).float()
    method: Any = named("specdiff2")
    lesson = method.lesson(made, target, method.defaults())
    assert isinstance(lesson, StreakLesson) and lesson.max_depth == 16
    found = lesson.weights(log_probs, torch.ones(2, 1))
    assert torch.allclose(found, torch.tensor([[1.0, 0.5, 0.125], [1.0, 1.0, 0.1]]))
    assert lesson.masked(torch.Size((4, 5)), torch.Generator())[1].all()
    assert float(lesson(batch_of(torch.tensor([[1, 2, 3, 4]])), torch.Generator()).detach()) > 0
    assert method.defaults().answers.temperatures == (1.0,)


def test_options_without_a_draft_are_refused() -> None:
    target, draft = models()
    for option, value in (("num_drafts", 0), ("draft_temperature", 0.0)):
        with pytest.raises(ValueError, match=f"{option} is {value}: use"):
            specdiff2.build(target, draft=draft, mask=0, **{option: value})
