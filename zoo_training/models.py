"""Configurations of the zoo's models (transformers' Llama), their initialization, and depth doubling."""

from dataclasses import dataclass

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from zoo_training.tokenizer import BYTES, VOCABULARY


@dataclass(frozen=True)
class Shape:
    """Hidden size, MLP size, and numbers of layers, attention heads and KV heads of a Llama model."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    key_value_heads: int
    head_size: int


SHAPES = {
    "target": Shape(384, 1024, 8, 6, 2, 64),
    "draft": Shape(
        160, 352, 2, 5, 5, 32
    ),  # two layers, the minimum for induction: a previous-token head and an induction head
    "draft-undistilled": Shape(160, 352, 2, 5, 5, 32),
    "draft-2k": Shape(160, 352, 2, 5, 5, 32),
    "draft-bytes": Shape(
        128, 416, 4, 4, 4, 32
    ),  # deeper: it must compose words from bytes, which larger vocabularies have as tokens
}
VOCABULARIES = {
    "target": VOCABULARY,
    "draft": VOCABULARY,
    "draft-undistilled": VOCABULARY,
    "draft-2k": 2048,
    "draft-bytes": BYTES,
}


def make_config(name: str, vocabulary: int, end: int, pad: int) -> LlamaConfig:
    """The configuration of a zoo model over a tokenizer's vocabulary; `end` and `pad` are token ids."""
    shape = SHAPES[name]
    return LlamaConfig(
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_value_heads,
        head_dim=shape.head_size,
        vocab_size=vocabulary,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=pad,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        rms_norm_eps=1e-6,
    )


def make_model(config: LlamaConfig, seed: int, num_layers: int | None = None) -> LlamaForCausalLM:
    """A new float32 model with random weights, except that output projections of attention and MLP are zero:
    each layer starts as the identity. num_layers: default that of the config."""
    fields = config.to_dict()
    fields["num_hidden_layers"] = num_layers or config.num_hidden_layers
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**fields)).float()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "o_proj" in name or "down_proj" in name:
                weight.zero_()
    return model


def deepen(shallow: LlamaForCausalLM, config: LlamaConfig) -> LlamaForCausalLM:
    """A model with twice the layers and the same logits, so that a run can train half the depth first.

    Each layer is followed by a copy whose output projections are zero.
    """
    deep = make_model(config, seed=0)
    state = shallow.state_dict()
    grown: dict[str, torch.Tensor] = {}
    for name, weight in state.items():
        parts = name.split(".")
        if "layers" not in parts:
            grown[name] = weight
            continue
        position = parts.index("layers") + 1
        layer = int(parts[position])
        writes = "o_proj" in parts or "down_proj" in parts
        for copy in range(2):
            parts[position] = str(2 * layer + copy)
            grown[".".join(parts)] = torch.zeros_like(weight) if writes and copy else weight.clone()
    deep.load_state_dict(grown)
    return deep


def num_parameters(model: torch.nn.Module) -> int:
    """Number of parameters; the tied embedding is counted once."""
    return sum(weight.numel() for weight in model.parameters())
