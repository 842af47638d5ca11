"""AdaEAGLE's predictor learns how many tokens of a head's drafts are those of the target's text."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from torch import Tensor

from outpace.models.heads.draft_head import DraftHead
from outpace.models.heads.eagle.head import untrained_eagle
from outpace.models.hf.target import HFTarget
from outpace.models.predictors.draft_length.lesson import DraftLengthLesson
from outpace.models.predictors.draft_length.predictor import DraftLengthPredictor
from outpace.proof.models import transformers_models
from outpace.training.answers import sampled
from outpace.training.config import ConfigError, Predictor, TrainConfig, changed
from outpace.training.evaluation import LengthEvaluation
from outpace.training.features import Batch, FeatureSource
from outpace.training.methods import named
from outpace.training.texts import DataError, Example
from outpace.training.trainer import Trainer

VOCAB, DEPTH, TOKENS = 12, 4, 24


@cache
def target() -> HFTarget:
    made = transformers_models(vocab=VOCAB).target
    assert isinstance(made, HFTarget)
    return made


@cache
def texts() -> tuple[Example, ...]:
    """Greedy texts, which begin in many ways."""
    prompts = [[first, second] for first in range(VOCAB) for second in range(VOCAB)]
    answers = sampled(target(), prompts, TOKENS, [0.0] * len(prompts), 0)
    return tuple(Example((*p, *a), 2) for p, a in zip(prompts, answers, strict=True))


def source(*examples: Example) -> FeatureSource:
    return FeatureSource(target(), examples, [-1], Path("none"))


@cache
def head() -> DraftHead:
    """A head that has learned a little: some of its drafts are accepted."""
    made = untrained_eagle(target(), seed=2)
    for parameter in made.own.values():  # as `_head_in` gives it
        parameter.data = parameter.data.float()
    settings = changed(
        named("eagle").defaults(), "steps=60 batch=16 optimizer.rate=1e-2 optimizer.warm_up=1".split()
    )
    with TemporaryDirectory() as folder:
        trainer = Trainer(
            named("eagle").lesson(made, target(), settings),
            source(*texts()[::2]),
            source(*texts()[:2]),
            settings,
            Path(folder),
        )
        trainer.run(lambda label, done: None, evaluate=False)
    return made


def made(config: TrainConfig) -> DraftLengthLesson:
    found = named("adaeagle").lesson(named("adaeagle").judging(head(), target(), config), target(), config)
    assert isinstance(found, DraftLengthLesson)
    return found


def config(*changes: str) -> TrainConfig:
    given = (
        f"steps=80 batch=16 optimizer.rate=1e-2 optimizer.warm_up=1 save_every=100 predictor.depth={DEPTH}"
    )
    return changed(named("adaeagle").defaults(), [*given.split(), *changes])


def trained(folder: Path, *changes: str) -> LengthEvaluation:
    """The evaluation after a run, on other texts than it learned from."""
    settings = config(*changes)
    order = torch.randperm(len(texts()), generator=torch.Generator().manual_seed(0)).tolist()
    mixed = [texts()[index] for index in order]
    trainer = Trainer(made(settings), source(*mixed[48:]), source(*mixed[:48]), settings, folder)
    trainer.run(lambda label, done: None, evaluate=False)
    found = trainer.evaluate()
    assert isinstance(found, LengthEvaluation)
    return found


@pytest.mark.slow
def test_lengths_are_learned_better_than_a_constant_and_a_larger_weight_makes_them_longer(
    tmp_path: Path,
) -> None:
    found = {
        weight: trained(tmp_path / weight, f"predictor.shortfall_weight={weight}")
        for weight in ("0.5", "2", "8")
    }
    assert all(each.longest == found["2"].longest > 0.3 for each in found.values())
    assert found["2"].error < 0.8 * found["2"].constant_error
    assert found["0.5"].planned < found["2"].planned < found["8"].planned
    assert found["0.5"].accepted < found["8"].accepted


class Given(DraftLengthLesson):
    """A lesson with given predictions and labels."""

    values: tuple[Tensor, Tensor]

    def predicted(self, batch: Batch) -> Tensor:
        return self.values[0]

    def accepted(self, batch: Batch) -> Tensor:
        return self.values[1]


def given(predicted: list[float], accepted: list[float], weight: float) -> Given:
    predictor, settings = DraftLengthPredictor(16, DEPTH), Predictor(shortfall_weight=weight)
    found = Given(predictor, head(), target().embed, target().head, settings)
    found.values = torch.tensor(predicted), torch.tensor(accepted)
    return found


@pytest.mark.slow
def test_the_loss_is_a_distance_in_which_predictions_that_are_too_low_weigh_more() -> None:
    batch, noise = source(texts()[0]).batch([0]), torch.Generator()
    assert given([1.5, 4.0, 2.0], [3.0, 1.0, 2.0], 3.0)(batch, noise).item() == pytest.approx(
        (3 * 1.5 + 3.0) / 3
    )
    assert given([], [], 2.0)(batch, noise).item() == 0


@pytest.mark.slow
def test_the_evaluation_compares_rounded_lengths_with_the_best_constant() -> None:
    class Constant(DraftLengthPredictor):
        def forward(self, embedded: Tensor, hidden: Tensor) -> Tensor:
            return torch.tensor([0.2, 3.7, 9.0, 1.5])

    found = given([], [0.0, 3.0, 3.0, 4.0], 2.0)
    found.predictor = Constant(16, DEPTH)
    measured = found.evaluation(7, [source(texts()[0]).batch([0])])
    # planned 0, 4, 4 (the most) and 2; the best constant is 3
    assert measured == LengthEvaluation(
        7, longest=2.5, planned=2.5, accepted=2.0, error=1.0, constant_error=1.0
    )


@pytest.mark.slow
def test_only_positions_with_a_whole_draft_inside_the_answer_count() -> None:
    found, text = made(config()), texts()[5].tokens
    # drafts of DEPTH tokens that begin with the answer's token of index 6, 7, ... and end within the text
    batch = source(Example(text[: 6 + DEPTH + 2], 6), Example(text[:7], 4)).batch([0, 1])
    assert found.columns(batch).nonzero().tolist() == [[0, 4], [0, 5], [0, 6]]
    assert len(found.predicted(batch)) == len(found.accepted(batch)) == 3
    alone = found.accepted(source(Example(text, 6)).batch([0]))
    assert found.accepted(batch).tolist() == alone[:3].tolist()  # whatever the other text
    nothing = source(Example(text[:7], 4)).batch([0])
    assert not len(found.accepted(nothing)) and found(nothing, torch.Generator()).item() == 0


def test_what_cannot_be_trained_is_said() -> None:
    for start, message in (
        ({"draft": None, "head": None}, "adaeagle needs head: the head whose draft lengths it learns"),
        ({"draft": "d", "head": "h"}, "adaeagle trains a predictor for a head: leave out draft"),
    ):
        with pytest.raises(ConfigError, match=message):
            named("adaeagle").check_start(**start)
    with pytest.raises(ConfigError, match="predictor.shortfall_weight is above 0"):
        config("predictor.shortfall_weight=0")
    with pytest.raises(DataError, match="no answer has the 4 tokens of a longest draft: give more prompts"):
        named("adaeagle").check_texts([Example((1, 2, 3, 4, 5), 2)], config())
    named("adaeagle").check_texts([Example((1, 2, 3, 4, 5, 6), 2)], config())
    named("specdec-pp").check_texts([Example((1, 2, 3), 2)], config())
