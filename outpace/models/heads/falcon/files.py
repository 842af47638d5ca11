"""The configuration of Falcon's heads: that of a Llama model of their layer. Folders have neither the
embedding nor the LM head: both are the target's."""

from __future__ import annotations

from typing import Any

from transformers import LlamaConfig

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.falcon.head import FalconHead
from outpace.models.heads.formats.decoder_layer import read_layer, write_layer
from outpace.models.heads.formats.files import Config


def made(config: Config, target: TargetWithLayers) -> FalconHead:
    """A head with weights still to be set. HeadFileError if the configuration does not fit the target."""
    return FalconHead(read_layer(config, target.vocab, target), target.embed, target.head)


def sizes(head: FalconHead, target: TargetWithLayers) -> dict[str, Any]:
    """The configuration of a head."""
    assert isinstance(head.config, LlamaConfig)
    return write_layer(head.config, target.vocab)
