"""Predictors of acceptance learn what the target would accept, and are measured by F1 and calibration."""

from __future__ import annotations

import copy
import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from outpace.models.hf.target import HFTarget
from outpace.models.predictors.draft_distribution.lesson import DraftDistributionLesson, draft_positions
from outpace.models.predictors.draft_distribution.predictor import DraftDistributionPredictor, features
from outpace.models.predictors.hidden_state.lesson import HiddenStateLesson
from outpace.models.predictors.hidden_state.predictor import HiddenStatePredictor
from outpace.proof.models import transformers_models
from outpace.training.answers import sampled
from outpace.training.config import Predictor, TrainConfig, changed
from outpace.training.evaluation import PredictorEvaluation
from outpace.training.features import Batch, FeatureSource
from outpace.training.methods import named
from outpace.training.predictions import best_f1, calibration_error
from outpace.training.predictor_methods import Judged
from outpace.training.texts import Example
from outpace.training.trainer import Trainer

VOCAB = 12


@cache
def models() -> tuple[HFTarget, HFTarget]:
    """A target, and a draft model that is its copy but drafts the tokens 0 and 1 too often: those are the
    ones that are rejected."""
    target = transformers_models(vocab=VOCAB).target
    assert isinstance(target, HFTarget)
    draft = copy.deepcopy(target.model)
    head = nn.Linear(16, VOCAB, dtype=torch.float64)
    head.weight = draft.get_output_embeddings().weight
    head.bias.data = torch.where(torch.arange(VOCAB) < 2, 4.0, 0.0).double()
    draft.set_output_embeddings(head)
    return target, HFTarget(draft)


def overconfident() -> HFTarget:
    """A draft model that ranks tokens as the target does, with logits that are too large: what it drafts is
    rejected where its distribution is neither flat nor all on one token."""
    draft = copy.deepcopy(models()[0].model)
    with torch.no_grad():
        draft.get_output_embeddings().weight *= 4
    return HFTarget(draft)


@cache
def texts() -> tuple[Example, ...]:
    prompts = [[first, second] for first in range(VOCAB) for second in (1, 4, 7, 9)]
    answers = sampled(models()[0], prompts, 20, [1.0] * len(prompts), 0)
    return tuple(Example((*p, *a), 2) for p, a in zip(prompts, answers, strict=True))


def source(*examples: Example) -> FeatureSource:
    return FeatureSource(models()[0], examples, [-1], Path("none"))


def untrained(method: str, draft: HFTarget, config: TrainConfig) -> Judged:
    return named(method).judging(draft.model, models()[0], config)


def noise(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def logits_after(model: HFTarget, tokens: list[int]) -> Tensor:
    with torch.no_grad():
        return model.model(torch.tensor([tokens]), use_cache=False).logits[0, -1].double()


class Recorded(HiddenStatePredictor):
    """Records the states that it is given."""

    states: Tensor

    def forward(self, hidden: Tensor) -> Tensor:
        self.states = hidden
        return super().forward(hidden)


def recorded(settings: Predictor) -> tuple[HiddenStateLesson, Recorded]:
    target, draft = models()
    predictor = Recorded(16).double()
    return HiddenStateLesson(predictor, draft.model, target.head, settings), predictor


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_draft_tokens_are_accepted_as_in_verification(temperature: float) -> None:
    target, draft = models()
    made, _ = recorded(Predictor(temperature=temperature))
    text = texts()[3]
    found = made.verified(source(text).batch([0]), noise())
    # the token of index 2 is the first that was generated, and so the first that is drafted
    assert len(found.tokens) == len(text.tokens) - 2
    for index, token in enumerate(found.tokens.tolist(), 2):
        before = list(text.tokens[:index])
        own, others = logits_after(draft, before), logits_after(target, before)
        if temperature == 0:
            assert token == int(own.argmax())
            expected = float(token == int(others.argmax()))
        else:
            q, p = ((each / temperature).softmax(-1) for each in (own, others))
            expected = min(1.0, float(p[token] / q[token]))
        assert float(found.acceptance[index - 2]) == pytest.approx(expected, abs=1e-5)
        assert float(found.draft_probs[index - 2]) == pytest.approx(float(own.softmax(-1)[token]), abs=1e-5)


def test_draft_tokens_are_drawn_from_the_draft_model() -> None:
    made, _ = recorded(Predictor())
    text = texts()[0]
    batch = source(*[text] * 400).batch(list(range(400)))
    first = made.verified(batch, noise()).tokens.view(400, -1)[:, 0]
    expected = logits_after(models()[1], list(text.tokens[:2])).softmax(-1)
    assert (first.bincount(minlength=VOCAB) / 400 - expected).abs().max() < 0.08


def test_a_token_is_judged_by_the_state_after_it_among_drafted_tokens() -> None:
    _, draft = models()
    text = texts()[3]
    batch = source(text).batch([0])
    made, predictor = recorded(Predictor(mix=0.0))
    tokens = made.verified(batch, noise()).tokens.tolist()
    made.predicted(batch, noise())
    read = [*text.tokens[:2], *tokens]
    with torch.no_grad():
        states = draft.model.model(torch.tensor([read]), use_cache=False).last_hidden_state[0]
    assert torch.allclose(predictor.states, states[2:], atol=1e-6)


def test_the_targets_tokens_among_those_read_are_not_learned() -> None:
    made, predictor = recorded(Predictor(mix=0.25))
    batch = source(*texts()).batch(list(range(len(texts()))))
    log_odds, accepted, draft_probs = made.predicted(batch, noise())
    total = int(made.columns(batch).sum())
    assert 0.68 < len(log_odds) / total < 0.82
    assert len(accepted) == len(draft_probs) == len(predictor.states) == len(log_odds)


def test_the_loss_weighs_rejections() -> None:
    class Given(HiddenStateLesson):
        def predicted(self, batch: Batch, noise: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
            return torch.tensor([0.0, math.log(3)]), torch.tensor([1.0, 0.5]), torch.ones(2)

    made, batch = recorded(Predictor())[0], source(texts()[0]).batch([0])
    given = Given(made.predictor, models()[1].model, models()[0].head, Predictor(rejection_weight=6))
    expected = (math.log(2) + 0.5 * math.log(4 / 3) + 6 * 0.5 * math.log(4)) / 2
    assert given(batch, noise()).item() == pytest.approx(expected, rel=1e-5)


def trained(
    method: str, draft: HFTarget, folder: Path, *changes: str
) -> tuple[PredictorEvaluation, PredictorEvaluation]:
    """Evaluations before and after a run, on other texts than it learned from."""
    given = "steps=60 batch=12 optimizer.rate=1e-2 optimizer.warm_up=1 save_every=100"
    config = changed(named(method).defaults(), [*given.split(), *changes])
    made = named(method).lesson(untrained(method, draft, config), models()[0], config)
    trainer = Trainer(made, source(*texts()[16:]), source(*texts()[:16]), config, folder)
    before: Any = trainer.evaluate()
    trainer.run(lambda label, done: None, evaluate=False)
    after: Any = trainer.evaluate()
    return before, after


@pytest.mark.slow
def test_specdec_pp_learns_to_foresee_rejections(tmp_path: Path) -> None:
    before, after = trained("specdec-pp", models()[1], tmp_path)
    assert before.acceptance == after.acceptance and before.probability_f1 == after.probability_f1
    assert after.calibration_error < 0.1 < before.calibration_error
    assert after.f1 > max(before.f1 + 0.03, after.probability_f1)


def test_drafts_follow_one_another_along_a_text() -> None:
    accepted = [True, True, False, True, True, True, True, True, False, False]
    # two accepted and a rejected one, in whose place the target's token stands; a whole draft of three and
    # the target's token after it; one accepted and one rejected; one rejected
    assert draft_positions(accepted, 3) == [1, 2, 3, 1, 2, 3, 0, 1, 2, 1]
    assert draft_positions([True] * 5, 1) == [1, 0, 1, 0, 1]
    assert draft_positions([], 3) == []


def test_disco_learns_whether_tokens_are_accepted_from_their_distributions() -> None:
    target, draft = models()

    class Recording(DraftDistributionPredictor):
        given: Tensor

        def forward(self, features: Tensor) -> Tensor:
            self.given = features
            return super().forward(features)

    predictor = Recording()
    made = DraftDistributionLesson(predictor, draft.model, target.head, Predictor(depth=3, temperature=0.0))
    text = texts()[3]
    batch = source(text).batch([0])
    _, accepted, draft_probs = made.predicted(batch, noise())
    count, index = 0, 2
    while index < len(text.tokens):  # greedy drafts of three tokens along the text, one after the other
        for position in (1, 2, 3):
            if index == len(text.tokens):
                break
            before = list(text.tokens[:index])
            logits = logits_after(draft, before)
            right = int(logits.argmax()) == int(logits_after(target, before).argmax())
            expected = features(logits[None], torch.tensor([position]))[0]
            assert torch.allclose(predictor.given[count], expected, atol=1e-5)
            assert accepted[count] == right
            assert float(draft_probs[count]) == pytest.approx(float(logits.softmax(-1).max()), abs=1e-5)
            count, index = count + 1, index + 1
            if not right:
                break
        else:
            index += 1
    assert count == len(accepted) and 0 < accepted.sum() < count


@pytest.mark.slow
def test_disco_learns_to_foresee_rejections(tmp_path: Path) -> None:
    before, after = trained("disco", overconfident(), tmp_path, "steps=150")
    assert after.calibration_error < 0.1 < before.calibration_error
    assert after.f1 > before.f1 + 0.05


def test_f1_at_the_best_threshold() -> None:
    accepted = torch.tensor([1.0, 0.0, 1.0, 0.0])
    # called rejected: 0.1 and 0.3 (F1 1); with an accepted token between them 2 * 2 / (2 * 2 + 1)
    assert best_f1(torch.tensor([0.9, 0.1, 0.8, 0.3]), accepted) == 1
    assert best_f1(torch.tensor([0.9, 0.1, 0.2, 0.3]), accepted) == pytest.approx(4 / 5)
    # equal scores are on one side of every threshold: all four are called rejected
    assert best_f1(torch.tensor([0.5] * 4), accepted) == pytest.approx(4 / 6)
    # expected numbers: half of a rejection is found by calling the first token rejected
    assert best_f1(torch.tensor([0.1, 0.9]), torch.tensor([0.5, 1.0])) == pytest.approx(1 / 1.5)
    assert best_f1(torch.tensor([0.1]), torch.tensor([1.0])) == 0


def test_the_calibration_error_is_a_mean_distance_by_bins() -> None:
    predicted, accepted = torch.tensor([0.62, 0.68, 0.15]), torch.tensor([1.0, 0.0, 0.0])
    # bin of 0.6 to 0.7: mean prediction 0.65, half accepted; bin of 0.1 to 0.2: 0.15 and none
    expected = (2 * abs(0.65 - 0.5) + abs(0.15 - 0)) / 3
    assert calibration_error(predicted, accepted) == pytest.approx(expected)
    # with rejections counted twice: (0.62 + 2 * 0.68 - 1 + 2 * 0.15) / 5
    assert calibration_error(predicted, accepted, 2.0) == pytest.approx((0.98 + 0.3) / 5)
    weighted = torch.full((1000,), 0.75 / (0.75 + 6 * 0.25))
    assert calibration_error(weighted, torch.full((1000,), 0.75), 6.0) < 1e-6
