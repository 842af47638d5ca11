"""EAGLE-3 in the layout of the speculators project, which `vllm serve FOLDER` loads with its target."""

from __future__ import annotations

from collections.abc import Collection

from transformers import LlamaConfig

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.draft_head import DraftHead
from outpace.models.heads.eagle3 import parts
from outpace.models.heads.eagle3.head import Eagle3Head
from outpace.models.heads.eagle3.parts import EAGLE3, IDS, Eagle3Options, Variant
from outpace.models.heads.formats.decoder_layer import write_layer
from outpace.models.heads.formats.draft_vocabulary import draft_vocabulary
from outpace.models.heads.formats.files import Config, Tensors


def recognises(config: Config, names: Collection[str]) -> bool:
    """Whether a configuration is of this layout."""
    return config.get("speculators_model_type") == EAGLE3.type


def read(
    config: Config,
    tensors: Tensors,
    target: TargetWithLayers,
    variant: Variant = EAGLE3,
) -> tuple[DraftHead, Tensors]:
    """A head with weights still to be set, and the tensors to set them to."""
    layer = config.get("transformer_layer_config") or {}
    ids = config.get(IDS)
    taps = parts.taps_of_vllm(parts.default_ids(target.num_layers) if ids is None else ids)
    # absent: true in vLLM, the only server for this layout, although speculators trains with false then
    options = Eagle3Options.read(config, tensors, norm_before_residual=True)
    return parts.build(config, layer, tensors, target, taps, options, variant)


def write(
    head: DraftHead, target: TargetWithLayers, name: str, variant: Variant = EAGLE3
) -> tuple[Config, Tensors]:
    """The configuration and tensors of a head; `name`: where vLLM finds its target."""
    assert isinstance(head, Eagle3Head) and isinstance(head.config, LlamaConfig)
    model = getattr(target, "model", None)
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": 5,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    layer = write_layer(head.config, target.vocab, "qwen3" if parts.layer_of(head).qk_norm else "llama")
    config = {
        "architectures": [variant.architecture],
        "speculators_model_type": variant.type,
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": variant.type,
            "proposal_methods": [proposal],
            "default_proposal_method": "greedy",
            "verifier": {
                "name_or_path": name,
                "architectures": [] if model is None else [type(model).__name__],
            },
        },
        # vLLM takes the width of fc from this key, with 3 layers as the default
        "transformer_layer_config": layer | {"num_aux_hidden_states": len(head.taps)},
        **parts.describe(head),
        "embed_requires_grad": "embed_tokens." not in head.from_target,
    }
    tensors = parts.weights(head) | {"embed_tokens.weight": next(head.embed_tokens.parameters())}
    if head.draft_ids is not None:
        tensors |= draft_vocabulary(head.draft_ids, target.vocab)
    return config, tensors
