"""How heads of DSpark learn (Cheng et al. 2026): as heads of DFlash do, with the text's tokens in place of
those drafted before, and another loss, to which the error of the predicted acceptance is added.

The Markov head begins with biases of zero, so that training begins with a head of DFlash: our choice.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from outpace.models.heads.dflash.head import BLOCK_SIZE, NUM_LAYERS
from outpace.models.heads.dflash.lesson import OBJECTIVE, BlockHeadMethod, BlockLesson
from outpace.models.heads.draft_head import DraftHead
from outpace.models.heads.dspark.head import made
from outpace.models.heads.dspark.kind import KIND
from outpace.models.hf.target import HFTarget
from outpace.sampling.divergence import mean, selected
from outpace.training import losses
from outpace.training.config import Head, TrainConfig
from outpace.training.features import Batch
from outpace.training.head_methods import begun, check_layer_size, of_kind
from outpace.training.lessons.feature_heads import Compared
from outpace.training.unrolled import UnrolledStep

# of the cross-entropy, of the probability that a drawn token is rejected, and of the predicted acceptance
TOKEN_WEIGHT, REJECTION_WEIGHT, CONFIDENCE_WEIGHT = 0.1, 0.9, 1.0


def _loss(one: Compared, settings: Head) -> Tensor:
    """The loss of token probabilities. Where the authors take the text's token, the cross-entropy here is
    with the target's distribution."""
    rejected = losses.total_variation(one.logits, one.target_logits, one.mask, mass=one.mass)
    cross_entropy = losses.soft_cross_entropy(one.logits, one.target_logits, one.mask)
    return TOKEN_WEIGHT * cross_entropy + REJECTION_WEIGHT * rejected


class DSparkLesson(BlockLesson):
    """The loss of a head whose logits depend on the token before and which predicts acceptance."""

    objective = replace(OBJECTIVE, loss=_loss)

    def logits_at(self, outputs: UnrolledStep, batch: Batch) -> Tensor:
        return self.head.given_tokens(super().logits_at(outputs, batch), self.labels(batch, outputs.step - 1))

    def loss_at(self, outputs: UnrolledStep, compared: Compared, batch: Batch) -> Tensor:
        loss = super().loss_at(outputs, compared, batch)
        if not self.head.predicts_acceptance:
            return loss
        ids = self.draft_ids(compared.logits.device)
        target = compared.target_logits if ids is None else self.target_logits(batch, outputs.step)
        with torch.no_grad():
            accepted = losses.acceptance(compared.logits, target, compared.mask, ids)
        odds = self.head.acceptance(outputs.outputs, self.labels(batch, outputs.step - 1))
        wrong = binary_cross_entropy_with_logits(
            selected(odds, compared.mask), accepted.to(odds), reduction="none"
        )
        return loss + CONFIDENCE_WEIGHT * mean(wrong)


def _new(target: HFTarget, config: TrainConfig, ids: Tensor | None) -> DraftHead:
    check_layer_size(KIND.method, target)
    head = made(target, config.head.num_layers, config.head.num_heads, config.head.markov_rank)
    markov, confidence = head.markov_head, head.confidence_head
    assert confidence is not None
    own = head.fc, head.hidden_norm, head.layers, head.norm, markov, confidence
    begun(head, own, target, config.seed)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(config.seed)
        markov.markov_w1.weight.copy_(torch.randn(markov.markov_w1.weight.shape, generator=generator))
        markov.markov_w2.weight.zero_()
    return head


METHODS = (
    BlockHeadMethod(
        **of_kind(KIND),
        new=_new,
        lesson_type=DSparkLesson,
        sizes={"num_heads": BLOCK_SIZE - 1, "num_layers": NUM_LAYERS},
    ),
)
