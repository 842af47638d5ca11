"""SpecBranch's predictor learns whether none, some or all tokens of a draft are the target's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from outpace.models.predictors.rollback.lesson import RollbackLesson
from outpace.models.predictors.rollback.predictor import ALL, NONE, SOME
from outpace.proof.models import transformers_models
from outpace.training.answers import sampled
from outpace.training.config import ConfigError, changed
from outpace.training.features import FeatureSource
from outpace.training.methods import named
from outpace.training.texts import DataError, Example

DEPTH, TOKENS, PROMPT = 3, 14, 2


@pytest.mark.slow
def test_the_classes_are_those_of_greedy_drafts() -> None:
    models, method = transformers_models(vocab=8), named("specbranch")
    target, draft = models.target, transformers_models(vocab=8).target
    noise = torch.Generator().manual_seed(0)
    for parameter in draft.model.parameters():  # a draft model that is often right
        parameter.data += 0.15 * torch.randn(parameter.shape, generator=noise).to(parameter)
    prompts = [[first, second] for first in range(8) for second in range(3)]
    answers = sampled(target, prompts, TOKENS, [0.0] * len(prompts), 0)
    texts = [[*prompt, *answer] for prompt, answer in zip(prompts, answers, strict=True)]
    config = changed(method.defaults(), [f"predictor.depth={DEPTH}"])
    lesson = method.lesson(method.judging(draft.model, target, config), target, config)
    assert isinstance(lesson, RollbackLesson)
    layers = list(lesson.layers)
    examples = tuple(Example(tuple(text), PROMPT) for text in texts)
    batch = FeatureSource(target, examples, layers, Path("none")).batch(range(len(texts)))
    expected = list[int]()
    for text in texts:
        for root in range(PROMPT - 1, len(text) - DEPTH + 1):
            drafted = [*text[: root + 1]]
            for _ in range(DEPTH - 1):
                drafted.append(int(draft.model(torch.tensor([drafted])).logits[0, -1].argmax()))
            agrees = [own == other for own, other in zip(drafted[root + 1 :], text[root + 1 :], strict=False)]
            expected.append(ALL if all(agrees) else SOME if agrees[0] else NONE)
    found = lesson.classes(batch)
    assert found.argmax(-1).tolist() == expected and set(expected) == {NONE, SOME, ALL}
    assert lesson.features(batch).shape == (len(expected), 3 * 16)
    # the features of a draft are those at its root: the state of the token before, and its embedding
    own = target.embed(torch.tensor(texts[0][1:3]))
    assert torch.allclose(lesson.features(batch)[:2, -16:].to(own), own)
    evaluated = lesson.evaluation(0, [batch])
    assert evaluated.shares == pytest.approx([expected.count(each) / len(expected) for each in range(3)])
    warm = RollbackLesson(
        lesson.predictor, draft.model, target, target.head, replace(config.predictor, temperature=1.0)
    )
    probs = warm.classes(batch)
    assert torch.allclose(probs.sum(-1), torch.ones(len(probs))) and probs.min() >= 0
    assert lesson(batch, torch.Generator().manual_seed(0)) > 0


def test_what_cannot_be_trained_is_said() -> None:
    method = named("specbranch")
    config = changed(method.defaults(), ["predictor.depth=4"])
    with pytest.raises(DataError, match="no answer has the 3 tokens of a draft: give more prompts"):
        method.check_texts([Example((1, 2, 3, 4), 2)], config)
    with pytest.raises(ConfigError, match="predictor.depth is 1: give 2 or more"):
        method.check_texts([], changed(config, ["predictor.depth=1"]))
