"""The training loop, with a lesson of one weight whose gradient is 1: which texts it learns, how fast, and
what is kept."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from outpace.training.config import Optimizer, TrainConfig
from outpace.training.features import Batch, FeatureSource
from outpace.training.lessons.lesson import Lesson
from outpace.training.texts import Example
from outpace.training.trainer import Trainer, rate_factor

pytest.importorskip("accelerate")
TEXTS = [Example((index, 1, 2, 3), 1) for index in range(8)]
CONFIG = TrainConfig(
    steps=12, batch=2, accumulate=2, save_every=5, keep=2, optimizer=Optimizer(rate=0.1, warm_up=4)
)


class Texts(FeatureSource):
    """Batches without hidden states."""

    def __init__(self, texts: Sequence[Example]) -> None:
        no_target: Any = None
        super().__init__(no_target, texts, (), Path("none"))

    def batch(self, indices: Sequence[int]) -> Batch:
        tokens = torch.tensor([self.examples[index].tokens for index in indices])
        everywhere = torch.ones_like(tokens, dtype=torch.bool)
        return Batch(tokens, everywhere, everywhere, {})


class OneWeight(Lesson):
    """Its loss is its weight plus the first token of each text; it notes what it is given."""

    def __init__(self, stop_at: int | None = None) -> None:
        super().__init__({"weight": nn.Parameter(torch.zeros(1))}, nn.Identity())
        self.weight = self.trained["weight"]
        self.texts: list[int] = []
        self.noise: list[int] = []
        self.weights: list[float] = []
        self._stop_at = stop_at  # number of batches before an exception

    def batch(self, source: FeatureSource, indices: Sequence[int], seed: int) -> Batch:
        if len(self.noise) == self._stop_at:
            raise KeyboardInterrupt
        self.texts += indices
        self.noise.append(seed)
        return super().batch(source, indices, seed)

    def forward(self, batch: Batch, noise: torch.Generator) -> Tensor:
        self.weights.append(float(self.weight.detach()))
        return self.weight.sum() + batch.tokens[:, 0].float().mean()


def trained(lesson: OneWeight, folder: Path, config: TrainConfig = CONFIG) -> Trainer:
    trainer = Trainer(lesson, Texts(TEXTS), Texts(TEXTS), config, folder)
    trainer.run(lambda label, number: None, evaluate=False)
    return trainer


def test_every_text_is_learned_once_an_epoch_in_another_order(tmp_path: Path) -> None:
    lesson = OneWeight()
    trained(lesson, tmp_path)
    epochs = [lesson.texts[start : start + 8] for start in range(0, 48, 8)]  # 12 steps of 2 batches of 2
    assert all(sorted(epoch) == list(range(8)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 6 and list(range(8)) not in epochs
    assert len(set(lesson.noise)) == 24
    other = OneWeight()
    trained(other, tmp_path / "other", replace(CONFIG, seed=1))
    assert other.texts != lesson.texts and not set(other.noise) & set(lesson.noise)


def test_the_learning_rate_rises_and_falls_to_zero(tmp_path: Path) -> None:
    lesson = OneWeight()
    trained(lesson, tmp_path)
    # where the gradient is always the same, a step of AdamW is the learning rate
    weights = [*lesson.weights[::2], float(lesson.weight.detach())]
    steps = [before - after for before, after in zip(weights, weights[1:], strict=False)]
    assert lesson.weights[::2] == lesson.weights[1::2]  # the batches of a step have the same weights
    factors = [0.25, 0.5, 0.75, 9 / 12, 8 / 12, 7 / 12, 6 / 12, 5 / 12, 4 / 12, 3 / 12, 2 / 12, 1 / 12]
    assert steps == pytest.approx([0.1 * factor for factor in factors], rel=1e-3)


def test_the_learning_rate_falls_along_a_cosine_to_the_share_that_is_asked_for() -> None:
    config = replace(CONFIG, steps=8, optimizer=Optimizer(warm_up=0, decay="cosine", last=0.2))
    factors = [rate_factor(step, config) for step in range(9)]
    assert factors == pytest.approx([0.2 + 0.4 * (1 + math.cos(math.pi * step / 8)) for step in range(9)])
    assert factors[0] == 1 and factors[4] == pytest.approx(0.6) and factors[8] == pytest.approx(0.2)
    linear = replace(config, optimizer=replace(config.optimizer, decay="linear"))
    assert [rate_factor(step, linear) for step in (0, 4, 8)] == pytest.approx([1.0, 0.6, 0.2])


@pytest.mark.parametrize(
    ("clip_by", "expected"), [("norm", [0.3, 0.4]), ("value", [0.5, 0.5]), ("none", [3.0, 4.0])]
)
def test_gradients_are_clipped_by_their_norm_or_each_number(
    clip_by: str, expected: list[float], tmp_path: Path
) -> None:
    class TwoWeights(OneWeight):
        def forward(self, batch: Batch, noise: torch.Generator) -> Tensor:
            return (self.trained["weight"] * torch.tensor([3.0, 4.0])).sum()

    lesson, given = TwoWeights(), list[list[float]]()
    lesson.trained["weight"].data = torch.zeros(2)
    none = clip_by == "none"
    settings = Optimizer(clip=1e9 if none else 0.5, clip_by="norm" if none else clip_by)
    config = replace(CONFIG, steps=1, accumulate=1, optimizer=settings)
    trainer = Trainer(lesson, Texts(TEXTS), Texts(TEXTS), config, tmp_path)

    def noted(optimizer: torch.optim.Optimizer, *_: object) -> None:
        given.extend(each.grad.tolist() for group in optimizer.param_groups for each in group["params"])

    trainer._optimizer.optimizer.register_step_pre_hook(noted)
    trainer.run(lambda label, number: None, evaluate=False)
    assert given == [pytest.approx(expected)]


def test_the_logged_loss_is_the_mean_of_the_batches_of_a_step(tmp_path: Path) -> None:
    lesson = OneWeight()
    trained(lesson, tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 13))
    for step, line in enumerate(lines):
        texts = lesson.texts[4 * step : 4 * step + 4]
        assert line["loss"] == pytest.approx(lesson.weights[2 * step] + sum(texts) / 4, abs=1e-5)


def test_a_run_that_is_stopped_goes_on_after_the_last_checkpoint(tmp_path: Path) -> None:
    whole = OneWeight()
    trained(whole, tmp_path / "whole")
    first, second = OneWeight(stop_at=2 * 10 + 1), OneWeight()
    with pytest.raises(KeyboardInterrupt):
        trained(first, tmp_path / "part")  # in step 11, after the checkpoints of steps 5 and 10
    trained(second, tmp_path / "part")
    assert [*first.texts[: 10 * 4], *second.texts] == whole.texts
    assert [*first.noise[: 10 * 2], *second.noise] == whole.noise
    assert float(second.weight.detach()) == float(whole.weight.detach())
    logs = [(tmp_path / name / "log.jsonl").read_text() for name in ("whole", "part")]
    assert logs[0] == logs[1]
    assert sorted(path.name for path in (tmp_path / "part").glob("step-*")) == [
        "step-0000010",
        "step-0000012",
    ]


def test_all_held_out_texts_are_evaluated_once(tmp_path: Path) -> None:
    trainer = Trainer(OneWeight(), Texts(TEXTS), Texts(TEXTS[:7]), CONFIG, tmp_path)
    firsts = Counter(int(token) for batch in trainer.held_out() for token in batch.tokens[:, 0])
    assert firsts == Counter(range(7))
