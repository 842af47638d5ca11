"""The training losses of Jakiro and Jakiro* heads (Huang et al. 2025): EAGLE's loss on the next token and,
for Jakiro, the same loss on the token after it, which the head's second output predicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from outpace.api.model import Model
from outpace.models.heads.draft_head import DraftHead, head_config
from outpace.models.heads.jakiro.head import JakiroHead
from outpace.models.heads.jakiro.kind import KIND
from outpace.models.hf.target import HFTarget
from outpace.training.config import ConfigError, Optimizer, TrainConfig
from outpace.training.head_methods import FeatureHeadMethod, begun, of_kind
from outpace.training.lessons.feature_heads import Objective, features_and_tokens
from outpace.training.texts import Example
from outpace.training.with_tail import with_tail


@dataclass(frozen=True, kw_only=True)
class JakiroMethod(FeatureHeadMethod):
    """Trains a head of Jakiro, or with `head.contrast=false` one of Jakiro*, which predicts the next token
    alone."""

    def untrained(
        self, model: Model, config: TrainConfig, examples: Sequence[Example] = (), start: str | None = None
    ) -> DraftHead:
        head = super().untrained(model, config, examples, start)
        assert isinstance(head, JakiroHead)
        if head.has_contrast != config.head.contrast:
            own = str(head.has_contrast).lower()
            raise ConfigError(
                f"the head that is given has head.contrast={own}: add --set head.contrast={own}"
            )
        return head


def _new(target: HFTarget, config: TrainConfig, ids: Tensor | None) -> DraftHead:
    layer, contrast = head_config(target, target.vocab), config.head.contrast
    head = JakiroHead(layer, target.embed, target.head, bias=False, contrast=contrast)
    return begun(head, (head.fc, head.layers, head.norm), target, config.seed)


METHODS = (
    JakiroMethod(
        **of_kind(KIND),
        new=_new,
        objective=Objective(
            num_steps=lambda settings: 1 + settings.contrast,
            detached=False,
            noise=True,
            loss=features_and_tokens,
            weight=lambda step, settings: 0.5**step,
            run=with_tail,
        ),
        optimizer=Optimizer(clip_by="value", weight_decay=1e-3, decay="cosine"),
    ),
)
