"""How Kangaroo's adapter learns (Liu et al. 2024).

Letters: R texts, T tokens, M columns (see training.lessons.lesson), D hidden size, V vocabulary size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from outpace.models.eager.captures import OutputCapture
from outpace.models.eager.skipped_modules import check_attention
from outpace.models.heads.draft_head import DraftHead, head_config
from outpace.models.heads.kangaroo.head import KangarooHead, default_early_layers
from outpace.models.heads.kangaroo.kind import KIND
from outpace.models.hf.target import HFTarget
from outpace.models.slim.make import num_layers
from outpace.training import losses
from outpace.training.config import TrainConfig
from outpace.training.exit_methods import check_exit
from outpace.training.features import Batch
from outpace.training.head_methods import HeadMethod, begun, check_layer_size, learning_head, of_kind
from outpace.training.lessons.lesson import DrafterLesson, Lesson, following
from outpace.training.method import NOTHING, Beside
from outpace.training.unrolled import over_text


class AdapterLesson(DrafterLesson):
    """Cross entropy between the adapter's distribution and the target's after each token. The adapter reads
    the output of the target's last layer before the exit, in drafting too, so no steps are unrolled."""

    def __init__(self, head: KangarooHead, target_head: nn.Module, num_early_parameters: int) -> None:
        """`num_early_parameters`: number of parameters of the target's first layers, which run in every
        draft."""
        super().__init__(head.own, target_head)
        self.head = head
        self.layers = sorted({-1, *head.taps})
        self._num_early_parameters = num_early_parameters

    @property
    def num_draft_parameters(self) -> int:
        """Number of parameters that run in a draft: of the adapter and of the target's layers before it."""
        return super().num_draft_parameters + self._num_early_parameters

    def forward(self, batch: Batch, noise: torch.Generator) -> Tensor:
        (logits,) = self.drafted(batch, 1)
        return losses.soft_cross_entropy(logits, self.target_logits(batch, 0), self.learned(batch, 0))

    def drafted(self, batch: Batch, num_steps: int) -> Iterator[Tensor]:
        weight = next(self.head.layers.parameters())
        states = batch.hidden[self.head.taps[0]].to(weight.dtype)
        outputs = over_text(self.head, batch.tokens, states)  # (R, T, D)
        for step in range(num_steps):
            yield self.head.lm_head(self.at_columns(following(outputs, 1 + step), batch))


def _check(target: HFTarget) -> None:
    num_layers(target)  # refuses layers whose outputs cannot be read
    check_attention(target.forward)


def _new(target: HFTarget, config: TrainConfig, ids: Tensor | None) -> DraftHead:
    check_layer_size(KIND.method, target)
    early = config.exits.layer or default_early_layers(target.num_layers)
    check_exit(early, target)
    head = KangarooHead(head_config(target, target.vocab), target.embed, target.head, early)
    return begun(head, (head.layers, head.norm), target, config.seed)


def _num_parameters(target: HFTarget, count: int) -> int:
    """Those of the target's first layers."""
    layers = OutputCapture(target.model, target.num_layers).layers
    assert layers is not None
    return sum(parameter.numel() for layer in layers[:count] for parameter in layer.parameters())


@dataclass(frozen=True, kw_only=True)
class AdapterMethod(HeadMethod):
    """Trains a head behind the target's first layers."""

    settings: ClassVar[tuple[str, ...]] = ("exits",)
    reads_texts: ClassVar[bool] = False
    counted: ClassVar[str] = " with these layers"

    def lesson(
        self, drafter: KangarooHead, target: HFTarget, config: TrainConfig, beside: Beside = NOTHING
    ) -> Lesson:
        num_parameters = _num_parameters(target, drafter.num_early_layers)
        return AdapterLesson(drafter, learning_head(drafter, target), num_parameters)

    def described(self, target: str, start: str | None) -> str:
        return f"{super().described(target, start)}, behind its first layers"


METHODS = (AdapterMethod(**of_kind(KIND), new=_new, check=_check),)
