"""How AdaEAGLE's predictor (Zhang et al. 2024) learns how many tokens of a head's draft will be accepted.

At every position of texts that the target generated, the frozen head's most probable tokens are compared with
the text: a draft is accepted up to the first difference. Up to there its tokens are those of the text, so one
pass over the text, teacher-forced, gives the drafts of all positions.

Letters: R texts, C columns (see training.lessons.lesson), M columns whose whole draft is inside the text, D
hidden size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from outpace.models.heads.draft_head import DraftHead
from outpace.models.hf.target import HFTarget
from outpace.models.predictors.draft_length.predictor import KIND, DraftLengthPredictor
from outpace.training.config import Predictor, TrainConfig
from outpace.training.evaluation import LengthEvaluation
from outpace.training.features import Batch
from outpace.training.lessons.lesson import Lesson, following
from outpace.training.method import NOTHING, Beside
from outpace.training.predictor_methods import HeadPredictorMethod, Judged, frozen_head_of
from outpace.training.texts import DataError, Example
from outpace.training.unrolled import unrolled


class DraftLengthLesson(Lesson):
    """A predictor of draft lengths; the head is not trained."""

    evaluation_type = LengthEvaluation

    def __init__(
        self,
        predictor: DraftLengthPredictor,
        head: DraftHead,
        embed: nn.Module,  # the target's
        target_head: nn.Module,
        settings: Predictor,
    ) -> None:
        super().__init__(dict(predictor.named_parameters()), target_head)
        self.predictor = predictor
        self.layers = sorted({-1, *head.taps})
        self.num_steps = predictor.depth
        self._frozen = (head, embed)  # not as modules: they are not trained
        self._shortfall_weight = settings.shortfall_weight
        # text and where its answer begins -> accepted lengths at its columns; cached, as the head is frozen
        self._known: dict[tuple[int, ...], Tensor] = {}

    def columns(self, batch: Batch) -> Tensor:  # (R, C) bool
        """Columns after which the text has as many generated tokens as the longest draft: near the end of the
        text, accepted lengths would be underestimated."""
        return following(batch.learns, 2) & following(batch.learns, 1 + self.num_steps)

    def forward(self, batch: Batch, noise: torch.Generator) -> Tensor:
        """The mean distance of predicted and accepted lengths, weighted where too few are predicted."""
        distance = self.predicted(batch) - self.accepted(batch)
        weighted = torch.where(distance < 0, -self._shortfall_weight * distance, distance)
        return weighted.sum() / max(1, len(weighted))

    def predicted(self, batch: Batch) -> Tensor:  # (M,)
        """The predicted lengths, not rounded."""
        return self.predictor(*self._read(batch))

    @torch.no_grad()
    def accepted(self, batch: Batch) -> Tensor:  # (M,)
        """How many tokens of the head's greedy draft are the text's, at most `num_steps`. Drafts are made
        when a text is seen for the first time."""
        keys = [
            (int(learns.long().argmax()), *tokens[is_token].tolist())
            for tokens, is_token, learns in zip(batch.tokens, batch.is_token, batch.learns, strict=True)
        ]
        new = [row for row, key in enumerate(keys) if key not in self._known]
        if new:
            hidden = {layer: states[new] for layer, states in batch.hidden.items()}
            part = Batch(batch.tokens[new], batch.is_token[new], batch.learns[new], hidden)
            lengths = self._drafted(part).split(self.columns(part).sum(1).tolist())
            self._known.update(zip((keys[row] for row in new), lengths, strict=True))
        return torch.cat([self._known[key] for key in keys])

    def _drafted(self, batch: Batch) -> Tensor:  # (M,)
        columns, head = self.columns(batch), self._frozen[0]
        agrees = torch.ones(int(columns.sum()), dtype=torch.bool, device=columns.device)
        count = torch.zeros(len(agrees), device=columns.device)
        if not len(agrees):
            return count
        weight = next(head.layers.parameters())
        taps = torch.cat([batch.hidden[layer] for layer in head.taps], -1)
        features = head.fuse(taps.to(weight.dtype))[:, :-1]
        for unrolled_step in unrolled(head, batch.tokens, features, columns, self.num_steps):
            drafted = head.lm_head(head.norm(unrolled_step.states)).argmax(-1)
            agrees = agrees & (drafted == self.labels(batch, unrolled_step.step))
            count += agrees
        return count

    @torch.no_grad()
    def evaluation(self, step: int, batches: Iterable[Batch]) -> LengthEvaluation:
        pairs = [(self.predictor.lengths(*self._read(batch)), self.accepted(batch)) for batch in batches]
        planned, longest = (torch.cat(parts).float().cpu() for parts in zip(*pairs, strict=True))
        constants = torch.arange(self.num_steps + 1.0)[:, None]
        count = max(1, len(planned))

        def mean(values: Tensor) -> float:
            return float(values.sum()) / count

        return LengthEvaluation(
            step,
            longest=mean(longest),
            planned=mean(planned),
            accepted=mean(torch.minimum(planned, longest)),
            error=mean((planned - longest).abs()),
            constant_error=float((constants - longest).abs().sum(1).min()) / count,
        )

    def _read(self, batch: Batch) -> tuple[Tensor, Tensor]:  # (M, D), (M, D)
        """The predictor's inputs at each column: of the last token before the draft's root."""
        with torch.no_grad():
            embedded = self._frozen[1](self.at_columns(batch.tokens, batch))
        return embedded, self.at_columns(batch.hidden[-1], batch)


def _new(head: DraftHead, target: HFTarget, config: TrainConfig) -> DraftLengthPredictor:
    size, settings = int(next(target.embed.parameters()).shape[1]), config.predictor
    predictor = DraftLengthPredictor(size, settings.depth, max(1, settings.num_layers))
    for parameter in predictor.blocks.parameters():  # they begin as the identity
        nn.init.zeros_(parameter)
    return predictor


@dataclass(frozen=True, kw_only=True)
class DraftLengthMethod(HeadPredictorMethod):
    """Trains a predictor of how many tokens of a head's draft are accepted."""

    noun: ClassVar[str] = "a predictor for a head"
    needs: ClassVar[Mapping[str, str]] = {"head": "the head whose draft lengths it learns"}
    promise: ClassVar[str] = (
        "decides the length of drafts that the target verifies: the output's distribution stays that of the "
        "target"
    )

    def defaults(self) -> TrainConfig:
        config = TrainConfig()
        answers = replace(config.answers, temperatures=(0.0,))  # it learns what greedy decoding accepts
        return replace(config, answers=answers, predictor=replace(config.predictor, depth=10))

    def check_texts(self, examples: Sequence[Example], config: TrainConfig) -> None:
        depth = config.predictor.depth
        if max(len(example.tokens) - example.first for example in examples) < depth:
            raise DataError(
                f"no answer has the {depth} tokens of a longest draft: give more prompts, a larger "
                "answers.max_tokens or a smaller predictor.depth"
            )

    def lesson(
        self, drafter: Judged, target: HFTarget, config: TrainConfig, beside: Beside = NOTHING
    ) -> Lesson:
        target_head = frozen_head_of(drafter, target)
        return DraftLengthLesson(
            drafter.predictor, drafter.drafter, target.embed, target_head, config.predictor
        )

    def described(self, target: str, start: str | None) -> str:
        return f"predictor of how many tokens of the head {start} are accepted by {target}"


METHODS = (DraftLengthMethod(name=KIND.predictor.method, title=KIND.title, paper=KIND.paper, new=_new),)
