"""EAGLE-3 as a flat configuration of a Llama model, the layout of SGLang, SpecForge and ModelOpt, which vLLM
reads too."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from transformers import LlamaConfig

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.draft_head import DraftHead
from outpace.models.heads.eagle3 import parts
from outpace.models.heads.eagle3.head import Eagle3Head
from outpace.models.heads.eagle3.parts import EAGLE3, IDS, Eagle3Options, Variant
from outpace.models.heads.formats.decoder_layer import write_layer
from outpace.models.heads.formats.draft_vocabulary import draft_vocabulary
from outpace.models.heads.formats.files import Config, HeadFileError, Tensors

ARCHITECTURE = "LlamaForCausalLMEagle3"
NESTED = "eagle_config"


def recognises(config: Config, names: Collection[str]) -> bool:
    """Whether a configuration is of this layout. The first heads of EAGLE-3 have EAGLE's architecture and
    differ by their draft vocabulary."""
    if "ptd_token_id" in config or "draft_length" in config:  # a head of P-EAGLE or DART
        return False
    named = any(architecture.endswith("Eagle3") for architecture in config.get("architectures") or ())
    return "speculators_model_type" not in config and (named or "draft_vocab_size" in config)


def read(
    config: Config,
    tensors: Tensors,
    target: TargetWithLayers,
    variant: Variant = EAGLE3,
) -> tuple[DraftHead, Tensors]:
    """A head with weights still to be set, and the tensors to set them to."""
    nested = config.get(NESTED) or {}
    taps = _taps(config, nested, target.num_layers)
    # ModelOpt nests some options together with the layer numbers
    flags = {**{name: value for name, value in nested.items() if name != IDS}, **config}
    # absent: false, as in vLLM for this layout; SGLang never takes the normed state as residual
    options = Eagle3Options.read(flags, tensors, norm_before_residual=False)
    return parts.build(config, config, tensors, target, taps, options, variant)


def _taps(config: Mapping[str, Any], nested: Mapping[str, Any], num_layers: int) -> list[int]:
    # vLLM counts from the embedding and reads the outer key, SGLang counts layers and reads the nested one.
    # If there is only the nested key, one of vLLM's runners reads it as vLLM's numbers, which is wrong
    outer, inner = config.get(IDS), nested.get(IDS)
    of_vllm = None if outer is None else parts.taps_of_vllm(outer)
    of_sglang = None if inner is None else [int(layer) for layer in inner]
    if of_vllm is not None and of_sglang is not None and sorted(of_vllm) != sorted(of_sglang):
        raise HeadFileError(
            f"its config.json names the outputs of layers {sorted(of_vllm)} in {IDS} and of "
            f"{sorted(of_sglang)} in {NESTED}, whose numbers are smaller by 1: remove the wrong key"
        )
    if of_vllm is None:
        of_vllm = parts.taps_of_vllm(parts.default_ids(num_layers))
        return of_vllm if of_sglang is None else of_sglang
    return of_vllm


def write(head: DraftHead, target: TargetWithLayers, name: str) -> tuple[Config, Tensors]:
    """The configuration and tensors of a head, for vLLM and SGLang alike, without the embedding if it is the
    target's. HeadFileError for a head that SGLang would run in another way."""
    assert isinstance(head, Eagle3Head) and isinstance(head.config, LlamaConfig)
    if parts.layer_of(head).norm_before_residual:
        raise HeadFileError(
            "SGLang ignores norm_before_residual: train the head with head.norm_before_residual=false, or "
            "write the layout speculators, which vLLM reads"
        )
    if parts.layer_of(head).qk_norm:
        raise HeadFileError(
            "the raw layout has Llama layers, without norms of queries and keys: write the layout "
            "speculators, which vLLM reads"
        )
    config = {
        "architectures": [ARCHITECTURE],
        **write_layer(head.config, target.vocab),
        "num_aux_hidden_states": len(head.taps),
        **parts.describe(head),
        NESTED: {IDS: list(head.taps), "use_aux_hidden_state": True},
    }
    weights = parts.weights(head)
    tensors = {name.replace("layers.0.", "midlayer.", 1): tensor for name, tensor in weights.items()}
    if "embed_tokens." not in head.from_target:
        tensors["embed_tokens.weight"] = next(head.embed_tokens.parameters())
    if head.draft_ids is not None:  # vLLM refuses d2t and t2d if the draft vocabulary is the whole one
        tensors |= draft_vocabulary(head.draft_ids, target.vocab)
    return config, tensors
