"""The configuration of Jakiro's heads: that of a Llama model of their layer. Folders have neither the
embedding nor the LM head: both are the target's."""

from __future__ import annotations

from typing import Any

from transformers import LlamaConfig

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.formats.decoder_layer import read_layer, write_layer
from outpace.models.heads.formats.files import Config
from outpace.models.heads.jakiro.head import JakiroHead


def made(config: Config, target: TargetWithLayers) -> JakiroHead:
    """A head with weights still to be set. HeadFileError if the configuration does not fit the target."""
    layer = read_layer(config, target.vocab, target)
    contrast = bool(config.get("contrast", True))  # folders from before Jakiro* do not say
    return JakiroHead(layer, target.embed, target.head, bias=bool(config["bias"]), contrast=contrast)


def sizes(head: JakiroHead, target: TargetWithLayers) -> dict[str, Any]:
    """The configuration of a head."""
    assert isinstance(head.config, LlamaConfig)
    own = {"bias": head.fc.bias is not None, "contrast": head.has_contrast}
    return {**write_layer(head.config, target.vocab), **own}
