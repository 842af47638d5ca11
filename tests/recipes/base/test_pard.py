"""PARD: a draft model's chain in one forward, and its training with masks behind all tokens at once."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from outpace.core.contracts import Parts
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.models.hf.target import HFTarget
from outpace.proof.decode_all import texts
from outpace.proof.models import transformers_models
from outpace.recipes.base.autoregressive import autoregressive
from outpace.recipes.base.pard import pard
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.training.draft_methods import MaskMethod
from outpace.training.features import Batch
from outpace.training.lessons.draft_models import MaskLesson
from outpace.training.methods import named
from outpace.training.packed import packed_logits

VOCAB, MASK = 12, 11
PROMPTS = ((1, 2, 3, 4, 5, 6, 7), (3, 1, 4))


@cache
def models() -> tuple[HFTarget, HFTarget]:
    """A target and a draft model."""
    made = transformers_models(vocab=VOCAB)
    draft = made.drafts[0]
    assert isinstance(made.target, HFTarget) and isinstance(draft, HFTarget)
    return made.target, draft


def parts_of(**options: Any) -> Parts:
    target, draft = models()
    return pard.build(target, draft=draft, mask=MASK, **options)


def steps_of(parts: Parts) -> list[Any]:
    params = [SamplingParams(0.0, max_tokens=20)] * len(PROMPTS)
    session = Session(parts, [torch.tensor(each) for each in PROMPTS], params, LazyTargetProbs)
    return [step for step in session.steps() if any(step.generated)]


def read_alone(text: Tensor, num_masks: int) -> Tensor:  # (1 + k, V)
    """The draft model's logits after a text and in masks behind it, without a cache."""
    tokens = torch.cat((text, torch.full((num_masks,), MASK)))
    with torch.no_grad():
        return models()[1].model(tokens[None], use_cache=False).logits[0, -num_masks - 1 :]


def test_a_chain_is_that_of_one_forward_over_text_and_masks() -> None:
    """Nothing but the text stays in the KV cache."""
    drafted = 0
    for step in steps_of(parts_of(depth=4, sampled=False)):
        forest = step.draft.tree.forest
        if len(forest) == forest.num_rows:
            continue
        assert step.draft.forwards == 1
        for row in range(len(step.ctx.slots)):
            text = step.ctx.tokens[row][: step.ctx.committed[row]]
            chain = step.draft.tree.tokens[list(forest.nodes[row][1:])]
            assert read_alone(text, 3).argmax(-1)[: len(chain)].tolist() == chain.tolist()
            drafted += len(chain)
    assert drafted > 20


def test_texts_are_the_target_s() -> None:
    params = [SamplingParams(0.0, max_tokens=20)] * 2
    assert texts(parts_of(), PROMPTS, params) == texts(autoregressive.build(models()[0]), PROMPTS, params)


def test_packed_masks_are_the_columns_one_at_a_time() -> None:
    tokens = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8], [5, 3, 1, 9, 11, 2, 0, 4]])
    columns = torch.zeros(2, 7, dtype=torch.bool)
    columns[0, [1, 4, 6]], columns[1, [0, 3]] = True, True
    with torch.no_grad():
        found = torch.stack(packed_logits(models()[1].model, tokens, columns, MASK, 4), 1)
    for of_group, (row, column) in zip(found, columns.nonzero().tolist(), strict=True):
        assert (of_group - read_alone(tokens[row, : column + 2], 3)).abs().max() < 1e-5


def test_the_lesson_learns_what_masks_are_for() -> None:
    """The divergence falls, and the first draft token is learned as by a draft model without masks."""
    target, draft = models()
    method: Any = named("pard")
    assert isinstance(method, MaskMethod)
    made = type(draft.model)(copy.deepcopy(draft.model.config)).float()
    made.load_state_dict(draft.model.state_dict())
    lesson: Any = method.lesson(made, target, method.defaults())
    assert isinstance(lesson, MaskLesson) and made.config.pard_token == VOCAB - 1 and lesson.num_steps == 8
    tokens = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 3]])
    with torch.no_grad():
        hidden = target.model.model(tokens, use_cache=False).last_hidden_state
    learns = torch.ones_like(tokens, dtype=torch.bool)
    batch = Batch(tokens, learns, learns, {-1: hidden})
    optimizer, losses = torch.optim.Adam(made.parameters(), lr=1e-2), list[float]()
    for _ in range(30):
        loss = lesson(batch, torch.Generator())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]


def test_a_mask_that_is_not_named_is_warned_of_and_one_that_is_no_token_refused() -> None:
    target, draft = models()
    with pytest.warns(UserWarning, match="no pard_token, so few of its drafts may be accepted: train it"):
        pard.build(target, draft=draft)
    with pytest.raises(ValueError, match="mask is 12, but the tokens are 0 to 11: give one of these"):
        pard.build(target, draft=draft, mask=12)
