"""Fingerprints of models, by which a draft head recognises the target that it was trained for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from outpace.core.contracts import TargetWithLayers
from outpace.models.layer_config import last_layer

# sizes and kinds only: other entries of a configuration change with the version of transformers
CONFIG = (
    "model_type vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads "
    "num_key_value_heads"
).split()
SAMPLE = 16  # number of weights of each parameter that are hashed
KEY = "outpace_target"  # of the target's fingerprint in the configuration of a head


def target_fingerprint(target: TargetWithLayers) -> str:
    """SHA-256 of the target's sizes and of a few weights of each parameter, as bfloat16.

    It is the same in float32 and bfloat16, and after outpace has compressed the weights. It may differ in
    float16 if the checkpoint is float32, as weights are then rounded twice, and differs for weights that were
    quantised by other tools."""
    compressed = getattr(target, "compressed_weights", None)
    if compressed is not None:
        return compressed.fingerprint
    model = getattr(target, "model", None)  # of transformers; table models have none
    if isinstance(model, PreTrainedModel):
        return model_fingerprint(model)
    return fingerprint_of([*target.embed.parameters(), *target.head.parameters()], target)


def model_fingerprint(model: PreTrainedModel) -> str:
    """The fingerprint of a target with this model."""
    return fingerprint_of(model.parameters(), model.config.get_text_config())


def fingerprint_of(parameters: Iterable[Tensor], sizes_of: Any) -> str:
    """SHA-256 of the sizes in a configuration and of a few weights of each parameter."""
    parameters = [parameter for parameter in parameters if parameter.is_floating_point()]
    sample = torch.cat(
        [part.detach().flatten()[:: max(1, part.numel() // SAMPLE)][:SAMPLE].cpu() for part in parameters]
    )
    layer = last_layer(sizes_of)
    sizes = {name: getattr(layer, name, None) for name in CONFIG}
    digest = hashlib.sha256(json.dumps(sizes).encode())
    digest.update(sample.bfloat16().view(torch.int16).numpy().tobytes())
    return digest.hexdigest()
