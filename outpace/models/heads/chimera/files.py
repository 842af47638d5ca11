"""The configuration of Chimera's heads: that of a Llama model of their layer. Folders lack the embedding,
which is the target's."""

from __future__ import annotations

from typing import Any

from transformers import LlamaConfig

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.chimera.head import ChimeraHead
from outpace.models.heads.formats.decoder_layer import read_layer, write_layer
from outpace.models.heads.formats.files import Config


def made(config: Config, target: TargetWithLayers) -> ChimeraHead:
    """A head with weights still to be set. HeadFileError if the configuration does not fit the target."""
    return ChimeraHead(read_layer(config, target.vocab, target), target.embed)


def sizes(head: ChimeraHead, target: TargetWithLayers) -> dict[str, Any]:
    """The configuration of a head."""
    assert isinstance(head.config, LlamaConfig)
    return write_layer(head.config, target.vocab)
