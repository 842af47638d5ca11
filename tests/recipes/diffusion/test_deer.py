"""DEER: a window with a token behind its masks, and the two stages of training."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from outpace.core.claim import Drawn
from outpace.models.mask_token import WINDOW_END
from outpace.recipes.diffusion.deer import deer
from outpace.training.config import changed
from outpace.training.lessons.windows import RefinedWindowLesson, WindowLesson
from outpace.training.methods import named
from tests.recipes.diffusion.test_specdiff import END, MASK, VOCAB, alone, batch_of, drafted, models


def test_one_forward_reads_the_token_behind_the_masks() -> None:
    """Also behind those of shorter drafts, at the end of a text."""
    target, draft = models()
    parts = deer.build(target, draft=draft.fitted(VOCAB), depth=4, mask=MASK, end=END)
    sizes, differs = set[int](), 0.0
    for step, _, text, nodes in drafted(parts, temperature=1.0):
        claim = step.draft.tree.claim
        assert isinstance(claim, Drawn) and step.draft.forwards == 1
        q, window = claim.q[[claim.row[node] for node in nodes]], [MASK] * len(nodes)
        assert (q - alone(text, [*window, END]).softmax(-1)[: len(nodes)]).abs().max() < 1e-5
        differs = max(differs, float((q - alone(text, window).softmax(-1)).abs().max()))
        sizes.add(len(nodes))
    assert sizes >= {1, 4} and differs > 1e-3


def test_the_stages_learn_windows_with_a_token_behind_them() -> None:
    """The first masks a random part of a window, the second all of it, and weighs the first tokens most."""
    target, draft = models()
    made = type(draft.model)(copy.deepcopy(draft.model.config)).float()
    made.load_state_dict(draft.model.state_dict())
    method: Any = named("deer")
    first, second = (
        method.lesson(made, target, changed(method.defaults(), ["distillation.num_masks=3", stage]))
        for stage in ("distillation.refinement=0", "distillation.refinement=2")
    )
    assert type(first) is WindowLesson and isinstance(second, RefinedWindowLesson)
    assert second.weights(torch.zeros(2, 3), torch.ones(2, 1)).tolist() == [[4, 2, 1]] * 2
    masked = [
        lesson.masked(torch.Size((50, 3)), torch.Generator().manual_seed(0))[1] for lesson in (first, second)
    ]
    assert 0.3 < masked[0].float().mean() < 0.95 and masked[1].all()
    batch = batch_of(torch.tensor([[1, 2, 3, 4, 5, 6, 7]]))
    with torch.no_grad():
        found = torch.stack(list(second.drafted(batch, 3)), 1)
    column = batch.tokens[0, :3]  # the second column's text
    assert (found[1] - alone(column, [MASK] * 3 + [END])[:3]).abs().max() < 1e-4


def test_a_draft_model_that_knows_no_token_behind_is_warned_of() -> None:
    target, draft = models()
    with pytest.warns(UserWarning, match=f"no {WINDOW_END}, so few of its drafts may be accepted: train it"):
        deer.build(target, draft=draft, mask=0)
