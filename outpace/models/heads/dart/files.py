"""The layout of DART's authors: EAGLE-3's flat one with the mask beside the weights of the layer.

Their config.json does not say which of the target's layers the head reads. EAGLE-3's key for that
(`eagle_aux_hidden_state_layer_ids`) is honoured if present; otherwise the layers are EAGLE-3's default ones.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.dart.head import DartHead
from outpace.models.heads.draft_head import DraftHead
from outpace.models.heads.eagle3 import raw
from outpace.models.heads.eagle3.parts import Variant
from outpace.models.heads.formats.files import Config, HeadFileError, Tensors

NUM_MASKS = "draft_length"


def recognises(config: Config, names: Collection[str]) -> bool:
    """Whether a configuration is of this layout."""
    return "speculators_model_type" not in config and NUM_MASKS in config


def read(config: Config, tensors: Tensors, target: TargetWithLayers) -> tuple[DraftHead, Tensors]:
    """A head with weights still to be set, and the tensors to set them to."""
    masks = config[NUM_MASKS]
    if type(masks) is not int or masks < 0:
        raise HeadFileError(f"its {NUM_MASKS} is {masks!r}, the number of its masks: correct it")
    head_type = partial(DartHead, num_masks=masks)
    return raw.read(config, tensors, target, Variant("dart", "LlamaForCausalLMDart", head_type, 1))


def write(head: DraftHead, target: TargetWithLayers, name: str) -> tuple[Config, Tensors]:
    """The configuration and tensors of a head."""
    config, tensors = raw.write(head, target, name)
    return config | {"architectures": ["LlamaForCausalLMDart"], NUM_MASKS: head.num_masks}, tensors
