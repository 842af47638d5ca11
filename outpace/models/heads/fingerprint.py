"""Recognises the target that a draft head was trained for."""

from __future__ import annotations

import hashlib
import json

import torch
from transformers import PreTrainedModel

from outpace.core.contracts import TargetWithLayers

# sizes and kinds only: other entries of a configuration change with the version of transformers
CONFIG = (
    "model_type vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads "
    "num_key_value_heads"
).split()
SAMPLE = 16  # weights of each parameter
KEY = "outpace_target"  # of the fingerprint in the configuration of a head


def target_fingerprint(target: TargetWithLayers) -> str:
    """SHA-256 of the target's sizes and of a few weights of each parameter, as bfloat16.

    It is the same in float32 and bfloat16. It may differ in float16 if the checkpoint is float32, whose
    weights are then rounded twice, and differs for quantised weights."""
    model = getattr(target, "model", None)  # of transformers; table models have none
    parameters = [
        each
        for module in ([model] if isinstance(model, PreTrainedModel) else [target.embed, target.head])
        for each in module.parameters()
        if each.is_floating_point()
    ]
    sample = torch.cat(
        [each.detach().flatten()[:: max(1, each.numel() // SAMPLE)][:SAMPLE].cpu() for each in parameters]
    )
    config = model.config.get_text_config() if isinstance(model, PreTrainedModel) else target
    sizes = {name: getattr(config, name, None) for name in CONFIG}
    found = hashlib.sha256(json.dumps(sizes).encode())
    found.update(sample.bfloat16().view(torch.int16).numpy().tobytes())
    return found.hexdigest()
