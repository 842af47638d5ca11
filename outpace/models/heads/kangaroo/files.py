"""The configuration of Kangaroo's adapters: that of a Llama model with one layer, and the number of the
target's layers before it. Folders have neither the embedding nor the LM head, which are the target's."""

from __future__ import annotations

from typing import Any

from transformers import LlamaConfig

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.formats.decoder_layer import read_layer, write_layer
from outpace.models.heads.formats.files import CONFIG, Config, HeadFileError
from outpace.models.heads.kangaroo.head import KangarooHead

EARLY_LAYERS = "num_early_layers"


def made(config: Config, target: TargetWithLayers) -> KangarooHead:
    """A head with weights still to be set. HeadFileError if the configuration does not fit the target."""
    layer, early = read_layer(config, target.vocab, target), config.get(EARLY_LAYERS)
    if type(early) is not int or not 0 < early < target.num_layers:
        raise HeadFileError(
            f"{EARLY_LAYERS} in its {CONFIG} is {early}, and a target of {target.num_layers} layers has 1 to "
            f"{target.num_layers - 1} before an exit: give the model it was trained for"
        )
    return KangarooHead(layer, target.embed, target.head, early)


def sizes(head: KangarooHead, target: TargetWithLayers) -> dict[str, Any]:
    """The configuration of a head."""
    assert isinstance(head.config, LlamaConfig)
    return {**write_layer(head.config, target.vocab), EARLY_LAYERS: head.num_early_layers}
