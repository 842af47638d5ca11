"""The layout of EAGLE, EAGLE-2 and HASS: a flat configuration of a Llama model with one or more layers.

The file contains a copy of the target's embedding, because EAGLE's official code cannot load a head without
it. It does not contain the LM head, which is the target's. vLLM reads this layout too, for heads whose
`fc` has no bias. SGLang has another name for the architecture, and its `fc` always has a bias.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from transformers import LlamaConfig

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.draft_head import DraftHead
from outpace.models.heads.eagle.head import EagleHead
from outpace.models.heads.formats.decoder_layer import read_layer, write_layer
from outpace.models.heads.formats.files import WEIGHTS, Config, HeadFileError, Tensors


def recognises(config: Config, names: Collection[str]) -> bool:
    """Whether a folder with these tensors, which no other layout recognises, holds a head of this layout: its
    layers have no prefix, unlike those of whole models, and come after a layer `fc`."""
    return "speculators_model_type" not in config and any(
        name.startswith(("fc.", "layers.")) for name in names
    )


def read(config: Config, tensors: Tensors, target: TargetWithLayers) -> tuple[DraftHead, Tensors]:
    """A head with weights still to be set, and the tensors to set them to."""
    if "fc.weight" not in tensors:
        raise HeadFileError(
            f"{WEIGHTS} lacks fc.weight, which every head of EAGLE has: restore that file, or use the method "
            "that the head was trained for"
        )
    # older configurations of vLLM
    nested = config.get("model") if config.get("model_type") == "eagle" else None
    layer = read_layer(nested or config, target.vocab, target, max_layers=None)
    # Without the key, EAGLE's code assumes a bias of fc and vLLM's assumes none: the tensors decide
    bias = bool(config.get("bias", "fc.bias" in tensors))
    given = {name: tensor for name, tensor in tensors.items() if not name.startswith("lm_head.")}
    return EagleHead(layer, target.embed, target.head, bias=bias), given


def write(head: DraftHead, target: TargetWithLayers, name: str) -> tuple[Config, Tensors]:
    """The configuration and tensors of a head."""
    assert isinstance(head, EagleHead) and isinstance(head.config, LlamaConfig)
    config = {"architectures": ["LlamaForCausalLM"], **write_layer(head.config, target.vocab)}
    config["bias"] = head.fc.bias is not None
    parameters = head.named_parameters(remove_duplicate=False)
    return config, {key: parameter for key, parameter in parameters if not key.startswith("lm_head.")}


def write_for_sglang(head: DraftHead, target: TargetWithLayers, name: str) -> tuple[Config, Tensors]:
    """The configuration and tensors of a head as SGLang reads them: without a bias in the file, it would run
    with the bias with which torch begins."""
    config, tensors = write(head, target, name)
    weight = tensors["fc.weight"]
    bias = {"fc.bias": torch.zeros(len(weight), dtype=weight.dtype)}
    return config | {"architectures": ["LlamaForCausalLMEagle"], "bias": True}, bias | tensors


def refused_by_vllm(head: EagleHead) -> str | None:
    """Why vLLM does not run a head; None if it does."""
    if head.fc.bias is None:
        return None
    return "its fc has a bias, which vLLM's lacks: export it for sglang or transformers"
