"""How SpecEE's predictor of early exits (Xu et al. 2025) learns after which layers the most probable token is
already the last layer's.

Letters: M columns (see training.lessons.lesson), L layers, C candidates, V vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from transformers import PreTrainedModel

from outpace.models.heads.draft_head import DraftHead
from outpace.models.hf.target import HFTarget
from outpace.models.predictors.exits.predictor import KIND, NUM_CANDIDATES, ExitPredictor, features
from outpace.models.slim.exit_head import ExitHead
from outpace.models.slim.make import num_layers
from outpace.models.slim.partial_forward import PartialForward
from outpace.training.config import TrainConfig
from outpace.training.evaluation import ExitEvaluation
from outpace.training.features import Batch
from outpace.training.lessons.lesson import Lesson, following
from outpace.training.method import NOTHING, Beside
from outpace.training.predictor_methods import HeadPredictorMethod, Judged, frozen_head_of
from outpace.training.unrolled import unrolled

THRESHOLD = 0.5  # of the predicted probability, in the evaluation
OFTEN = 4  # one in OFTEN layers is checked for every token: those after which tokens exit most often


@dataclass(frozen=True)
class Exit:
    """Features and labels after one layer, at each column."""

    layer: int  # counted from 1
    given: Tensor  # (M, 3 C) the predictor's features
    is_final: Tensor  # (M,) bool: the most probable token is the last layer's
    is_candidate: Tensor  # (M,) bool: the most probable token is one of the candidates


class ExitLesson(Lesson):
    """A predictor of early exits; target and head are not trained."""

    evaluation_type = ExitEvaluation

    def __init__(
        self, predictor: ExitPredictor, head: DraftHead, model: PreTrainedModel, target_head: nn.Module
    ) -> None:
        super().__init__(dict(predictor.named_parameters()), target_head)
        self.predictor = predictor
        self.layers = (*range(predictor.num_exits), -1)
        # in tuples, so that they are no submodules: they are not trained
        self._head, self._exit_head = (head,), (ExitHead(model),)
        self._dtype = model.dtype

    def forward(self, batch: Batch, noise: torch.Generator) -> Tensor:
        """Binary cross entropy, averaged over the layers."""
        losses = [
            binary_cross_entropy_with_logits(
                self.predictor.log_odds(exit.given, exit.layer), exit.is_final.to(self.predictor.inner)
            )
            for exit in self._exits(batch)
            if len(exit.given)
        ]
        return torch.stack(losses).mean() if losses else self.predictor.inner.sum() * 0

    @torch.no_grad()
    def _exits(self, batch: Batch) -> Iterator[Exit]:
        ids, probs = self._candidates(batch), None
        final = self.target_logits(batch, 0).argmax(-1)
        for index in range(self.predictor.num_exits):
            states = self.at_columns(following(batch.hidden[index], 1), batch)
            logits = self._exit_head[0](states[None].to(self._dtype))[0]
            best = logits.argmax(-1)
            given, probs = features(logits.gather(1, ids), probs)
            yield Exit(index + 1, given, best == final, (best[:, None] == ids).any(-1))

    def _candidates(self, batch: Batch) -> Tensor:  # (M, C)
        """The head's most probable tokens at each column."""
        head = self._head[0]
        taps = torch.cat([batch.hidden[layer] for layer in head.taps], -1)
        read = head.fuse(taps.to(next(head.layers.parameters()).dtype))[:, :-1]
        step = next(iter(unrolled(head, batch.tokens, read, self.columns(batch), 1)))
        logits = head.lm_head(head.norm(step.states))
        return logits.topk(min(NUM_CANDIDATES, logits.shape[-1])).indices

    def evaluation(self, step: int, batches: Iterable[Batch]) -> ExitEvaluation:
        depths, agreed = self._left(batches)
        count, num_layers = max(1, depths.total()), self.predictor.num_exits + 1
        mean = sum(layer * num for layer, num in depths.items()) / count
        return ExitEvaluation(step, agreed / count, mean, num_layers)

    def finish(self, held_out: Iterable[Batch]) -> None:
        """Choose the layers that are checked for every token, by held-out texts."""
        depths, _ = self._left(held_out)
        num_layers = self.predictor.num_exits + 1
        often = [layer for layer, num in depths.most_common() if num and layer < num_layers]
        self.predictor.layers = frozenset(often[: max(1, num_layers // OFTEN)])

    @torch.no_grad()
    def _left(self, batches: Iterable[Batch]) -> tuple[Counter[int], int]:
        """Layer -> number of tokens that exit after it; and the number of all tokens whose prediction at
        their exit is the last layer's."""
        depths, agreed = Counter[int](), 0
        for batch in batches:
            left: Tensor | None = None
            for exit in self._exits(batch):
                if left is None:
                    left = torch.zeros_like(exit.is_final)
                sure = self.predictor.probability(exit.given, exit.layer) > THRESHOLD
                leaves = sure & exit.is_candidate & ~left
                left |= leaves
                depths[exit.layer] += int(leaves.sum())
                agreed += int((leaves & exit.is_final).sum())
            if left is not None:
                stayed = int((~left).sum())
                depths[self.predictor.num_exits + 1] += stayed
                agreed += stayed
        return depths, agreed


def _new(head: DraftHead, target: HFTarget, config: TrainConfig) -> ExitPredictor:
    predictor = ExitPredictor(target.num_layers - 1, config.predictor.width)
    generator = torch.Generator().manual_seed(config.seed)
    with torch.no_grad():
        for weight in (predictor.inner, predictor.output):
            size = predictor.inner.shape[1] if weight is predictor.inner else weight.shape[1]
            weight.copy_(torch.randn(weight.shape, generator=generator) * size**-0.5)
    return predictor


@dataclass(frozen=True, kw_only=True)
class ExitPredictorMethod(HeadPredictorMethod):
    """Trains a predictor of early exits of the target."""

    needs: ClassVar[Mapping[str, str]] = {
        "head": "a folder with a head of EAGLE for the target, which names the candidates"
    }
    promise: ClassVar[str] = (
        "lets tokens leave early, to texts that do not have the target's distribution, unless the whole "
        "target verifies (role drafter)"
    )

    def defaults(self) -> TrainConfig:
        config = TrainConfig()
        return replace(config, predictor=replace(config.predictor, width=512))

    def check_target(self, target: HFTarget) -> None:
        num_layers(target)  # refuses layers whose outputs cannot be read
        PartialForward(target.forward, target.model)  # refuses models without early exits

    def lesson(
        self, drafter: Judged, target: HFTarget, config: TrainConfig, beside: Beside = NOTHING
    ) -> Lesson:
        target_head = frozen_head_of(drafter, target)
        return ExitLesson(drafter.predictor, drafter.drafter, target.model, target_head)

    def described(self, target: str, start: str | None) -> str:
        return f"predictor of early exits of {target}"


METHODS = (ExitPredictorMethod(name=KIND.predictor.method, title=KIND.title, paper=KIND.paper, new=_new),)
