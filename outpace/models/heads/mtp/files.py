"""The configuration of heads that are trained here for `mtp`: that of a Llama model of their layer. Folders
have neither the embedding nor the LM head: both are the target's."""

from __future__ import annotations

from typing import Any

from transformers import LlamaConfig
from transformers.modeling_layers import MtpLayer
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.formats.decoder_layer import read_layer, write_layer
from outpace.models.heads.formats.files import Config
from outpace.models.heads.mtp.head import MtpHead


def made(config: Config, target: TargetWithLayers) -> MtpHead:
    """A head with weights still to be set. HeadFileError if the configuration does not fit the target."""
    own = read_layer(config, target.vocab, target)
    return MtpHead(own, target.embed, target.head, MtpLayer(own, LlamaDecoderLayer, LlamaRMSNorm, 0))


def sizes(head: MtpHead, target: TargetWithLayers) -> dict[str, Any]:
    """The configuration of a head."""
    assert isinstance(head.config, LlamaConfig)
    return write_layer(head.config, target.vocab)
