"""The layout of Kangaroo's adapters: the configuration of a Llama model with one layer, and the number of the
target's layers before it. It contains neither the embedding nor the LM head, which are the target's."""

from __future__ import annotations

from collections.abc import Collection

from transformers import LlamaConfig

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.draft_head import DraftHead
from outpace.models.heads.formats.decoder_layer import read_layer, write_layer
from outpace.models.heads.formats.files import CONFIG, Config, HeadFileError, Tensors
from outpace.models.heads.kangaroo import KangarooHead

EARLY_LAYERS = "num_early_layers"


def recognises(config: Config, names: Collection[str]) -> bool:
    """Whether a configuration belongs to this layout."""
    return EARLY_LAYERS in config


def read(config: Config, tensors: Tensors, target: TargetWithLayers) -> tuple[DraftHead, Tensors]:
    """A head with weights still to be set, and the tensors that they are set to."""
    layer, early = read_layer(config, target.vocab, target), config[EARLY_LAYERS]
    if type(early) is not int or not 0 < early < target.num_layers:
        raise HeadFileError(
            f"{EARLY_LAYERS} in its {CONFIG} is {early}, and a target of {target.num_layers} layers has 1 to "
            f"{target.num_layers - 1} before an exit: give the model it was trained for"
        )
    return KangarooHead(layer, target.embed, target.head, early), tensors


def write(head: DraftHead, target: TargetWithLayers, name: str) -> tuple[Config, Tensors]:
    """The configuration and tensors of a head."""
    assert isinstance(head, KangarooHead) and isinstance(head.config, LlamaConfig)
    config = {"architectures": ["KangarooAdapter"], **write_layer(head.config, target.vocab)}
    return config | {EARLY_LAYERS: head.num_early_layers}, dict(head.own)
