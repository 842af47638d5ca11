"""How heads of Falcon learn (Gao et al. 2025): as those of EAGLE, where some blocks read the two tokens that
they shall predict (coupled sequential glancing distillation)."""

from __future__ import annotations

import torch
from torch import Tensor

from outpace.models.heads.draft_head import DraftHead, head_config
from outpace.models.heads.falcon.head import BLOCK, FalconHead, draw_reducer
from outpace.models.heads.falcon.kind import KIND
from outpace.models.hf.target import HFTarget
from outpace.training.config import Optimizer, TrainConfig
from outpace.training.head_methods import FeatureHeadMethod, begun, of_kind
from outpace.training.in_blocks import in_blocks
from outpace.training.lessons.feature_heads import Objective, features_and_tokens
from outpace.training.lessons.lesson import following

# Blocks that read the answer, as a share of the wrong predictions. The paper lowers it from 0.4 to 0 during
# the run; here it is the mean of these
GLANCED = 0.2


def glanced(
    head: DraftHead,
    tokens: Tensor,  # (R, T) int64
    features: Tensor,  # (R, C, F)
    columns: Tensor,  # (R, C) bool
    noise: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Tokens and features in which blocks at some of the columns are those two places behind: the more, the
    more of the head's predictions are wrong."""
    wrong = 0
    with torch.no_grad():
        for each in in_blocks(head, tokens, features, columns, BLOCK):
            predicted = head.lm_head(each.outputs).argmax(-1)
            wrong += int((predicted != following(tokens, 2 + each.step)[columns]).sum())
    rows, begin = columns.nonzero().unbind(1)
    count = int(GLANCED * wrong / BLOCK)
    chosen = torch.randperm(len(rows), generator=noise)[:count].to(rows.device)
    rows, begin = rows[chosen], begin[chosen]
    inside = (begin >= 1) & (begin + 3 < tokens.shape[1])
    rows, begin = rows[inside], begin[inside]
    read, given = tokens.clone(), features.clone()
    for place in range(BLOCK):
        read[rows, begin + place] = tokens[rows, begin + place + BLOCK]
        given[rows, begin + place - 1] = features[rows, begin + place - 1 + BLOCK]
    return read, given


def _new(target: HFTarget, config: TrainConfig, ids: Tensor | None) -> DraftHead:
    head = FalconHead(head_config(target, target.vocab), target.embed, target.head)
    head.reducer.to(target.device, torch.float32)
    draw_reducer(head, config.seed)
    return begun(head, (head.layers,), target, config.seed)


METHODS = (
    FeatureHeadMethod(
        **of_kind(KIND),
        new=_new,
        objective=Objective(
            num_steps=lambda settings: BLOCK,
            detached=False,
            noise=True,
            loss=features_and_tokens,
            weight=lambda step, settings: 1.0,
            run=in_blocks,
            max_depth=BLOCK,
            inputs=glanced,
        ),
        optimizer=Optimizer(clip_by="value"),
    ),
)
