"""How heads of FSPAD learn (Gui et al. 2024): as those of EAGLE.

The distance between features is measured before the adapter of the outputs and so does not change it; the
token probabilities are those after it."""

from __future__ import annotations

import torch
from torch import Tensor

from outpace.models.heads.draft_head import DraftHead, head_config
from outpace.models.heads.fspad.head import FspadHead, OutputAdapter
from outpace.models.heads.fspad.kind import KIND
from outpace.models.hf.target import HFTarget
from outpace.training.config import Optimizer, TrainConfig
from outpace.training.head_methods import FeatureHeadMethod, begun, of_kind
from outpace.training.lessons.feature_heads import EAGLE


def _new(target: HFTarget, config: TrainConfig, ids: Tensor | None) -> DraftHead:
    """A head that begins as one of EAGLE: the gated features and the adapter's change are 0 at first."""
    layers = head_config(target, target.vocab, config.head.num_layers)
    head = FspadHead(layers, target.embed, target.head)
    adapter = head.norm
    assert isinstance(adapter, OutputAdapter)
    begun(head, (head.fc, head.layers, head.sampling, adapter), target, config.seed)
    with torch.no_grad():
        for added in (head.sampling.down, adapter.change):
            added.weight.zero_()
    return head


METHODS = (
    FeatureHeadMethod(**of_kind(KIND), new=_new, objective=EAGLE, optimizer=Optimizer(clip_by="value")),
)
