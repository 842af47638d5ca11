"""How heads of DART learn (Liu et al. 2026): from the target's distributions, in masks behind every token of
a text. Further tokens have less weight."""

from __future__ import annotations

from torch import Tensor

from outpace.models.heads.dart.head import NUM_MASKS, DartHead, draw_mask
from outpace.models.heads.dart.kind import KIND
from outpace.models.heads.draft_head import DraftHead, head_config
from outpace.models.heads.eagle3.head import default_taps
from outpace.models.hf.target import HFTarget
from outpace.models.slim.make import num_layers
from outpace.training.config import TrainConfig
from outpace.training.head_methods import FeatureHeadMethod, begun_as_eagle3, check_layer_size, of_kind
from outpace.training.lessons.feature_heads import TOKENS_IN_MASKS


def _new(target: HFTarget, config: TrainConfig, ids: Tensor | None) -> DraftHead:
    check_layer_size(KIND.method, target)
    head = DartHead(
        head_config(target, target.vocab if ids is None else len(ids)),
        target.embed,
        default_taps(target.num_layers),
        num_masks=config.head.num_heads - 1,  # the first token is drafted without one
        draft_ids=ids,
    )
    begun_as_eagle3(head, target, config.seed, ids)
    draw_mask(head, config.seed)
    return head


METHODS = (
    FeatureHeadMethod(
        **of_kind(KIND),
        new=_new,
        check=num_layers,  # refuses layers whose outputs cannot be read
        objective=TOKENS_IN_MASKS,
        sizes={"num_heads": 1 + NUM_MASKS},
    ),
)
