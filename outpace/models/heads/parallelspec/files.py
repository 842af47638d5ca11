"""The configuration of ParallelSpec's heads: that of a Llama model of their layers, and their masks. Folders
have neither the embedding nor the LM head: both are the target's."""

from __future__ import annotations

from typing import Any

from transformers import LlamaConfig

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.formats.decoder_layer import read_layer, write_layer
from outpace.models.heads.formats.files import Config
from outpace.models.heads.parallelspec.head import ParallelSpecHead


def made(config: Config, target: TargetWithLayers) -> ParallelSpecHead:
    """A head with weights still to be set. HeadFileError if the configuration does not fit the target."""
    layers = read_layer(config, target.vocab, target, max_layers=None)
    masks, bias = int(config["num_masks"]), bool(config["bias"])
    return ParallelSpecHead(layers, target.embed, target.head, num_masks=masks, bias=bias)


def sizes(head: ParallelSpecHead, target: TargetWithLayers) -> dict[str, Any]:
    """The configuration of a head."""
    assert isinstance(head.config, LlamaConfig)
    layers = write_layer(head.config, target.vocab)
    return {**layers, "num_masks": head.num_masks, "bias": head.fc.bias is not None}
