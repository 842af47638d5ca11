"""How draft models learn from a target with the same vocabulary.

Letters: R texts, T tokens, C and M columns (see training.lessons.lesson), V vocabulary size.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from outpace.models.hf.target import HFTarget
from outpace.training import losses
from outpace.training.answers import sampled
from outpace.training.config import Distillation
from outpace.training.features import Batch, FeatureSource
from outpace.training.lessons.lesson import DrafterLesson, following
from outpace.training.packed import packed_logits
from outpace.training.texts import Example

JENSEN_SHANNON = "jensen_shannon"  # the only divergence with a parameter


class DraftModelLesson(DrafterLesson):
    """DistillSpec (Zhou et al. 2024): a divergence between the target's distribution and the draft's at every
    generated token. In a share of the batches the draft model generates the answers itself. The paper's
    lenience, which accepts more tokens than exact verification, is not implemented."""

    def __init__(
        self,
        draft: PreTrainedModel,
        target_head: nn.Module,
        settings: Distillation,
        end_tokens: tuple[int, ...] = (),
    ) -> None:
        """`end_tokens`: tokens that end an answer of the draft model."""
        super().__init__(dict(draft.named_parameters()), target_head)
        self.draft, self.settings, self._end_tokens = draft, settings, end_tokens
        # shares the weights, so it answers with the present ones; in a tuple, so that it is no submodule
        self._answering = (HFTarget(draft),)

    def batch(self, source: FeatureSource, indices: Sequence[int], seed: int) -> Batch:
        choice = random.Random(seed)
        if choice.random() >= self.settings.on_policy:
            return source.batch(indices)
        texts = [source.examples[index].tokens[: source.examples[index].first] for index in indices]
        answers = sampled(
            self._answering[0],
            texts,
            self.settings.on_policy_tokens,
            [self.settings.temperature] * len(texts),
            choice.getrandbits(31),
            stop=self._end_tokens,
        )
        pairs = zip(texts, answers, strict=True)
        return source.computed([Example((*text, *answer), len(text)) for text, answer in pairs])

    def forward(self, batch: Batch, noise: torch.Generator) -> Tensor:
        return self._divergence(*self._pair(batch), self.learned(batch, 0))

    def drafted(self, batch: Batch, num_steps: int) -> Iterator[Tensor]:
        logits = self._logits(batch)
        for step in range(num_steps):
            yield self.at_columns(following(logits, 1 + step), batch)

    def _logits(self, batch: Batch) -> Tensor:  # (R, T, V)
        return logits_of(self.draft, batch)

    def _pair(self, batch: Batch) -> tuple[Tensor, Tensor]:  # (M, V), (M, V)
        """The draft's and the target's logits, divided by the temperature."""
        own = self.at_columns(following(self._logits(batch), 1), batch)
        return own / self.settings.temperature, self.target_logits(batch, 0) / self.settings.temperature

    def _divergence(self, logits: Tensor, target_logits: Tensor, mask: Tensor) -> Tensor:
        if self.settings.divergence == JENSEN_SHANNON:
            return losses.jensen_shannon(logits, target_logits, mask, beta=self.settings.beta)
        return getattr(losses, self.settings.divergence)(logits, target_logits, mask)


class FilteredLesson(DraftModelLesson):
    """AdaSPEC (Hu et al. 2025): forward KL at the tokens where the draft's loss exceeds that of a reference
    most; the reference is the same draft after plain distillation. This leaves out tokens that are learned
    already or too hard to learn. The loss is the mean over the selected tokens; the authors' code divides
    their sum by the number of texts."""

    def __init__(
        self,
        draft: PreTrainedModel,
        reference: PreTrainedModel,
        target_head: nn.Module,
        settings: Distillation,
    ) -> None:
        # no answers of the draft itself: the gap to the reference is defined on the target's answers
        super().__init__(draft, target_head, replace(settings, divergence="forward_kl", on_policy=0.0))
        self._reference = (reference,)  # in a tuple, so that it is no submodule: it is not trained

    def forward(self, batch: Batch, noise: torch.Generator) -> Tensor:
        logits, target_logits = self._pair(batch)
        mask = self.learned(batch, 0)
        with torch.no_grad():
            reference = self.at_columns(following(logits_of(self._reference[0], batch), 1), batch)
            chosen = largest_gaps(
                losses.token_forward_kl(logits, target_logits, mask),
                losses.token_forward_kl(reference / self.settings.temperature, target_logits, mask),
                self.settings.keep,
            )
        kept = mask.clone()
        kept[mask] = chosen
        return losses.forward_kl(logits, target_logits, kept)


class MaskLesson(DraftModelLesson):
    """PARD (An et al. 2025): every token of an answer is also predicted from the text up to several tokens
    before it, with mask tokens in between. The authors leave out a part of the masks, to save memory; here
    all are learned, from the target's distributions."""

    def __init__(
        self, draft: PreTrainedModel, target_head: nn.Module, settings: Distillation, mask: int
    ) -> None:
        super().__init__(draft, target_head, replace(settings, divergence="forward_kl", on_policy=0.0))
        self.num_steps, self._mask = settings.num_masks + 1, mask
        self.max_depth = self.num_steps

    def forward(self, batch: Batch, noise: torch.Generator) -> Tensor:
        total = batch.hidden[-1].new_zeros((), dtype=torch.float32)
        for step, logits in enumerate(self.drafted(batch, self.num_steps)):
            target_logits = self.target_logits(batch, step)
            total = total + self._divergence(logits, target_logits, self.learned(batch, step))
        return total / self.num_steps

    def drafted(self, batch: Batch, num_steps: int) -> Iterator[Tensor]:
        yield from packed_logits(self.draft, batch.tokens, self.columns(batch), self._mask, num_steps)


class AlignmentLesson(DraftModelLesson):
    """Direct alignment (Goel et al. 2024): TVD++ on the target's answers, mixed with next-token prediction of
    the prompts, which stand for the text of pretraining."""

    def __init__(self, draft: PreTrainedModel, target_head: nn.Module, settings: Distillation) -> None:
        super().__init__(
            draft, target_head, replace(settings, divergence="total_variation_plus", on_policy=0.0)
        )

    def forward(self, batch: Batch, noise: torch.Generator) -> Tensor:
        logits = self._logits(batch)
        own = self.at_columns(following(logits, 1), batch) / self.settings.temperature
        target_logits = self.target_logits(batch, 0) / self.settings.temperature
        loss = self._divergence(own, target_logits, self.learned(batch, 0))
        is_text = (batch.is_token & ~batch.learns)[:, 1:]
        text = losses.cross_entropy(logits[:, :-1], batch.tokens[:, 1:], is_text)
        weight = self.settings.text_weight
        return (1 - weight) * loss + weight * text


class SequenceLesson(DraftModelLesson):
    """Next-token prediction of the target's answers."""

    def __init__(self, draft: PreTrainedModel, target_head: nn.Module, settings: Distillation) -> None:
        super().__init__(draft, target_head, replace(settings, on_policy=0.0))

    def forward(self, batch: Batch, noise: torch.Generator) -> Tensor:
        own = self.at_columns(following(self._logits(batch), 1), batch)
        return losses.cross_entropy(own, self.labels(batch, 0), self.learned(batch, 0))


class FastDraftLesson(SequenceLesson):
    """FastDraft (Zafrir et al. 2025): the alignment to the target's answers. Pretraining is an earlier run on
    other texts. Drafts are evaluated up to the paper's longest."""

    evaluated_depth = 8


def offline_lesson(
    draft: PreTrainedModel, target_head: nn.Module, settings: Distillation
) -> DraftModelLesson:
    """The lesson of a draft model for a domain on stored answers of the target (Hong et al. 2025): forward KL
    if the target's logits are available, else next-token prediction of the answers."""
    if settings.access == "text":
        return SequenceLesson(draft, target_head, settings)
    return DraftModelLesson(draft, target_head, replace(settings, divergence="forward_kl", on_policy=0.0))


def logits_of(model: PreTrainedModel, batch: Batch) -> Tensor:  # (R, T, V)
    """A model's logits at all tokens; padding is at the end, where causal attention needs no mask."""
    return model(input_ids=batch.tokens, use_cache=False, return_dict=True).logits


def largest_gaps(own: Tensor, reference: Tensor, share: float) -> Tensor:  # (M,), (M,) -> (M,) bool
    """The `share` of positions at which `own` exceeds `reference` most, at least one."""
    count = min(len(own), max(1, round(share * len(own))))
    chosen = torch.zeros(len(own), dtype=torch.bool, device=own.device)
    chosen[(own - reference).topk(count).indices] = True
    return chosen
