"""SPRINTER's predictor learns which draft tokens are at least as probable for the target as for the draft
model, on texts in which these tokens stay."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from outpace.core.contracts import Scores, TargetProbs, Verdict
from outpace.core.noise import Noise
from outpace.core.tree import TokenTree
from outpace.drafters.model.plain_drafts import hidden_after, logits_after
from outpace.models.hf.target import HFTarget
from outpace.models.predictors.trust import lesson as module
from outpace.models.predictors.trust.lesson import Labelling, TrustLesson
from outpace.models.predictors.trust.predictor import TrustPredictor
from outpace.proof.models import transformers_models
from outpace.training.answers import sampled
from outpace.training.config import Predictor, changed
from outpace.training.evaluation import ClassifierEvaluation
from outpace.training.features import FeatureSource
from outpace.training.methods import named
from outpace.training.predictions import auc
from outpace.training.texts import Example
from outpace.training.trainer import Trainer

VOCAB = 12


@cache
def models() -> tuple[HFTarget, HFTarget]:
    """A target, and a draft model that is its copy but drafts the tokens 0 and 1 too often."""
    target: Any = transformers_models(vocab=VOCAB).target
    draft = copy.deepcopy(target.model)
    head = nn.Linear(16, VOCAB, dtype=torch.float64)
    head.weight = draft.get_output_embeddings().weight
    head.bias.data = torch.where(torch.arange(VOCAB) < 2, 4.0, 0.0).double()
    draft.set_output_embeddings(head)
    return target, HFTarget(draft)


def source(*examples: Example) -> FeatureSource:
    return FeatureSource(models()[0], examples, (), Path("none"))


@cache
def texts() -> tuple[Example, ...]:
    prompts = [[first, second] for first in range(VOCAB) for second in (1, 4, 7, 9)]
    answers = sampled(models()[0], prompts, 12, [1.0] * len(prompts), 0)
    return tuple(Example((*p, *a), 2) for p, a in zip(prompts, answers, strict=True))


class Recorded(Labelling):
    """Notes the committed text and the draft token of every draft of the only row."""

    drafts: list[tuple[int, int]]  # (root, draft token)

    def verify(self, tree: TokenTree, target_probs: TargetProbs, scores: Scores, noise: Noise) -> Verdict:
        verdict = super().verify(tree, target_probs, scores, noise)
        if len(tree) > 1:
            self.drafts.append((int(tree.tokens[1]), verdict.bonus[0]))
        return verdict


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_labels_and_states_are_those_of_the_draft_tokens(
    temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    Recorded.drafts = []
    monkeypatch.setattr(module, "Labelling", Recorded)
    target, draft = models()
    settings = Predictor(depth=9, temperature=temperature)
    made = TrustLesson(TrustPredictor(16).double(), draft.model, target, settings)
    text = Example(tuple(range(VOCAB)), VOCAB - 1)  # one place only, before or after the last token
    states, stays = made.labelled(source(text).batch([0]))
    assert len(states) == len(stays) == len(Recorded.drafts) == 9
    starts = [list(text.tokens[: VOCAB - 1]), list(text.tokens)]
    first = Recorded.drafts[0][0]
    fits = [start for start in starts if torch.allclose(states[0], state(draft, start, first))]
    assert len(fits) == 1
    before = fits[0]
    for (token, added), found, stay in zip(Recorded.drafts, states, stays.tolist(), strict=True):
        assert torch.allclose(found, state(draft, before, token))
        p, q = (probs(model, before, temperature) for model in (target, draft))
        assert stay == bool(q[token] <= p[token] + 1e-12) and (not stay or added == token)
        if temperature == 0 and not stay:
            assert added == int(p.argmax())
        before = [*before, added]
    assert 0 < stays.sum() < 9


def state(draft: HFTarget, before: list[int], token: int) -> Tensor:
    return hidden_after(draft, (*before, token))


def probs(model: HFTarget, before: list[int], temperature: float) -> Tensor:
    logits = logits_after(model, tuple(before))
    if temperature == 0:
        return nn.functional.one_hot(logits.argmax(), VOCAB)
    return (logits / temperature).softmax(-1)


@pytest.mark.slow
def test_it_learns_and_the_best_weights_are_kept(tmp_path: Path) -> None:
    config = changed(
        named("sprinter").defaults(),
        "steps=60 batch=12 evaluate_every=15 optimizer.rate=3e-2 optimizer.warm_up=1 save_every=15".split(),
    )
    method: Any = named("sprinter")
    made = method.lesson(method.judging(models()[1].model, models()[0], config), models()[0], config)
    trainer = Trainer(made, source(*texts()[16:]), source(*texts()[:16]), config, tmp_path)
    before: Any = trainer.evaluate()
    trainer.run(lambda label, done: None)
    after: Any = trainer.evaluations[-1]
    assert after.auc > max(before.auc + 0.1, 0.8)
    assert after.auc == max(each.auc for each in trainer.evaluations)
    assert replace(trainer.evaluate(), step=after.step) == after
    # a run that goes on from its last checkpoint keeps the same weights
    again = Trainer(made, source(*texts()[16:]), source(*texts()[:16]), config, tmp_path)
    again.run(lambda label, done: None)
    assert again.evaluations == trainer.evaluations
    assert replace(again.evaluate(), step=after.step) == after


class Falling(TrustLesson):
    """Is best at its first evaluation."""

    def quality(self, evaluation: ClassifierEvaluation) -> float:
        return -evaluation.step


def test_weights_that_got_worse_are_not_kept(tmp_path: Path) -> None:
    config = changed(named("sprinter").defaults(), "steps=4 batch=4 evaluate_every=1 save_every=1".split())
    target, draft = models()
    made = Falling(TrustPredictor(16).double(), draft.model, target, Predictor(depth=4))
    trainer = Trainer(made, source(*texts()[:8]), source(*texts()[8:12]), config, tmp_path)
    trainer.run(lambda label, done: None)
    assert [each.step for each in trainer.evaluations] == [1, 2, 3, 4, 1]
    assert replace(trainer.evaluate(), step=1) == trainer.evaluations[0]


def test_measures_of_a_classifier() -> None:
    scores, accepted = torch.tensor([0.9, 0.8, 0.8, 0.1]), torch.tensor([True, True, False, False])
    assert auc(scores, accepted) == pytest.approx((1 + 1 + 0.5 + 1) / 4)
    assert auc(scores, torch.ones(4, dtype=torch.bool)) == 0.5
    found = ClassifierEvaluation(1, 0.75, 0.8, 0.4, 0.7)  # of 100: 60 and 15 to accept, 15 and 10 others
    assert found.accuracy == pytest.approx(0.75) and found.f1 == pytest.approx(2 * 15 / (25 + 15 + 15))
    assert ClassifierEvaluation(1, 1.0, 1.0, 0.0, 0.5).f1 == 0
