"""How Judge Decoding's judge (Bachmann et al. 2025) learns to see errors: from the target's hidden states
after the tokens of right answers and of wrong ones up to the first error.

Letters: N tokens, D hidden size of the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from outpace.api.model import Model
from outpace.models.fingerprint import target_fingerprint
from outpace.models.hf.target import HFTarget
from outpace.models.predictors.judge.predictor import KIND, JudgePredictor
from outpace.models.predictors.predictor import Pair, hidden_size
from outpace.training.config import Optimizer, TrainConfig
from outpace.training.evaluation import ClassifierEvaluation
from outpace.training.features import Batch
from outpace.training.lessons.classifier import ClassifierLesson
from outpace.training.lessons.lesson import Lesson
from outpace.training.marked_answers import RIGHT, SKIPPED, WRONG
from outpace.training.method import NOTHING, Beside
from outpace.training.predictor_methods import Judged, PredictorMethod, seeded
from outpace.training.texts import DataError, Example


class JudgeLesson(ClassifierLesson):
    """A judge; the target is not trained."""

    def labelled(self, batch: Batch) -> tuple[Tensor, Tensor]:  # (N, D), (N,) bool
        assert batch.labels is not None, "the answers are not marked"
        at = batch.labels != SKIPPED
        return batch.hidden[-1][at], batch.labels[at] == RIGHT

    def quality(self, evaluation: ClassifierEvaluation) -> float:
        return evaluation.f1


@dataclass(frozen=True, kw_only=True)
class JudgeMethod(PredictorMethod):
    """Trains a judge of the target's draft tokens, whatever drafts them."""

    noun: ClassVar[str] = "a judge"
    reads_marks: ClassVar[bool] = True
    promise: ClassVar[str] = (
        "accepts draft tokens that the target would not have chosen: the output has another distribution"
    )

    def defaults(self) -> TrainConfig:
        config = TrainConfig(evaluate_every=50, optimizer=Optimizer(rate=1e-2))
        predictor = replace(config.predictor, rejection_weight=30.0)  # a wrong answer has one error
        return replace(config, answers=replace(config.answers, generate=False), predictor=predictor)

    def untrained(
        self, model: Model, config: TrainConfig, examples: Sequence[Example] = (), start: str | None = None
    ) -> Judged:
        target = model.target
        judge = seeded(config, lambda: JudgePredictor(hidden_size(target, "the judge", "target")))
        judge.trained_for = Pair(None, target_fingerprint(target))
        return Judged(judge.to(target.device), None)

    def check_texts(self, examples: Sequence[Example], config: TrainConfig) -> None:
        found = {label for example in examples for label in example.labels}
        if not {RIGHT, WRONG} <= found:
            lacking = "wrong" if RIGHT in found else "right"
            raise DataError(
                "a judge learns from right and wrong tokens, and the texts to learn from or those to "
                f"evaluate have no {lacking} ones: give more marked answers, and leave "
                "answers.generate=false as it is"
            )

    def lesson(
        self, drafter: Judged, target: HFTarget, config: TrainConfig, beside: Beside = NOTHING
    ) -> Lesson:
        return JudgeLesson(drafter.predictor, target.head, config.predictor.rejection_weight)

    def described(self, target: str, start: str | None) -> str:
        return f"judge of draft tokens for {target}"

    def uses(self, folder: str, target: str, start: str | None) -> list[str]:
        return [f"--target {target} --method {self.name} --draft DRAFT --judge {folder}"]


METHODS = (JudgeMethod(name=KIND.predictor.method, title=KIND.title, paper=KIND.paper),)
