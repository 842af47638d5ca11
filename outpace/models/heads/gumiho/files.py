"""The configuration of Gumiho's heads: that of a Llama model of their layers, and the number of their MLPs.
Folders have neither the embedding nor the LM head: both are the target's."""

from __future__ import annotations

from typing import Any

from transformers import LlamaConfig

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.formats.decoder_layer import read_layer, write_layer
from outpace.models.heads.formats.files import Config
from outpace.models.heads.gumiho.head import GumihoHead


def made(config: Config, target: TargetWithLayers) -> GumihoHead:
    """A head with weights still to be set. HeadFileError if the configuration does not fit the target."""
    layers = read_layer(config, target.vocab, target, max_layers=None)
    mlps, bias = int(config["num_mlps"]), bool(config["bias"])
    return GumihoHead(layers, target.embed, target.head, num_mlps=mlps, bias=bias)


def sizes(head: GumihoHead, target: TargetWithLayers) -> dict[str, Any]:
    """The configuration of a head."""
    assert isinstance(head.config, LlamaConfig)
    layers = write_layer(head.config, target.vocab)
    return {**layers, "num_mlps": head.tail_levels, "bias": head.fc.bias is not None}
