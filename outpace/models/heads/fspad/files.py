"""The configuration of FSPAD's heads: that of a Llama model of their layers. Folders have neither
the embedding nor the LM head: both are the target's."""

from __future__ import annotations

from typing import Any

from transformers import LlamaConfig

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.formats.decoder_layer import read_layer, write_layer
from outpace.models.heads.formats.files import Config
from outpace.models.heads.fspad.head import FspadHead


def made(config: Config, target: TargetWithLayers) -> FspadHead:
    """A head with weights still to be set. HeadFileError if the configuration does not fit the target."""
    layers = read_layer(config, target.vocab, target, max_layers=None)
    return FspadHead(layers, target.embed, target.head)


def sizes(head: FspadHead, target: TargetWithLayers) -> dict[str, Any]:
    """The configuration of a head."""
    assert isinstance(head.config, LlamaConfig)
    return write_layer(head.config, target.vocab)
