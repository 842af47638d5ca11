"""The configuration of S4C's heads: their number, and that of a Llama model with the layer of the first.
Folders have neither the embedding nor the LM head: both are the target's."""

from __future__ import annotations

from typing import Any

from transformers import LlamaConfig

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.formats.decoder_layer import read_layer, write_layer
from outpace.models.heads.formats.files import Config, HeadFileError
from outpace.models.heads.s4c.head import S4CHead

HEADS = "num_heads"


def made(config: Config, target: TargetWithLayers) -> S4CHead:
    """Heads with weights still to be set. HeadFileError if the configuration does not fit the target."""
    count = config.get(HEADS)
    if not isinstance(count, int) or count < 1:
        raise HeadFileError(f"its {HEADS} is {count!r}: restore its config.json")
    size = int(next(target.embed.parameters()).shape[1])
    return S4CHead(target, count, read_layer(config, size, target))


def sizes(head: S4CHead, target: TargetWithLayers) -> dict[str, Any]:
    """The configuration of heads."""
    assert head.prefix is not None and isinstance(head.prefix.config, LlamaConfig)
    return write_layer(head.prefix.config, target.vocab) | {HEADS: head.num_heads}
