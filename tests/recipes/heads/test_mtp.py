"""Native heads: the layer for further tokens in a checkpoint of DeepSeek's kind, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM
from transformers.modeling_layers import MtpModel

from outpace.core.sampling_params import SamplingParams
from outpace.models.heads.mtp.head import native_head
from outpace.models.hf.target import HFTarget
from outpace.proof.decode_all import texts
from outpace.proof.models import transformers_models
from outpace.recipes.base.autoregressive import autoregressive
from outpace.recipes.heads.mtp import mtp

LAYERS = 2  # of the model; its layer for further tokens has this number
PROMPTS = ((1, 2, 3, 4, 5), (3, 1, 4))
PARAMS = [SamplingParams(0.0, max_tokens=12)] * 2
SIZES: dict[str, Any] = {
    "vocab_size": 24,
    "hidden_size": 16,
    "intermediate_size": 32,
    "moe_intermediate_size": 8,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 4,
    "max_position_embeddings": 64,
    "num_mtp_layers": 1,
    "initializer_range": 0.3,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}


def checkpoint(folder: Path) -> Path:
    """A random model with the tensors of its layer for further tokens, named as in published checkpoints."""
    torch.manual_seed(0)
    model = DeepseekV3ForCausalLM(DeepseekV3Config(**SIZES))
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    for name, weight in MtpModel(model, 1).state_dict().items():
        if not name.startswith("layers.0."):
            continue
        own = (
            name.removeprefix("layers.0.")
            .removeprefix("mtp_block.")
            .replace("post_norm", "shared_head.norm", 1)
        )
        parts = {own: weight}
        if own.startswith("mlp.experts."):  # all experts in one tensor
            kinds = ("gate_proj", "up_proj") if "gate_up" in own else ("down_proj",)
            parts = {
                f"mlp.experts.{expert}.{kind}.weight": part
                for expert, each in enumerate(weight)
                for kind, part in zip(kinds, each.chunk(len(kinds)), strict=True)
            }
        for own, part in parts.items():
            drawn = torch.randn(part.shape) * 0.3
            tensors[f"model.layers.{LAYERS}.{own}"] = (
                1 + 0.1 * drawn if own.endswith("norm.weight") else drawn
            )
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def opened(folder: Path) -> HFTarget:
    model: Any = DeepseekV3ForCausalLM.from_pretrained(folder).eval()
    # transformers knows the numbers of published models' layers
    model._keys_to_ignore_on_load_unexpected = {rf"model\.layers\.{LAYERS}.*"}
    return HFTarget(model)


def test_the_layer_in_a_checkpoint_is_that_of_transformers_and_texts_are_the_target_s(tmp_path: Path) -> None:
    target = opened(checkpoint(tmp_path))
    model: Any = target.model
    tokens, places = torch.tensor([[1, 2, 3, 4, 5, 6, 7]]), torch.arange(6)[None]
    found: Any = MtpModel.from_pretrained(model)
    with torch.no_grad():
        states = model.model(tokens, use_cache=False).last_hidden_state[:, :-1]
        causal = torch.full((6, 6), float("-inf")).triu(1)[None, None]
        angles = found.rotary_emb(states, position_ids=places)
        embedded = found.embed_tokens(tokens[:, 1:])
        read = {
            "attention_mask": causal,
            "position_ids": places,
            "position_embeddings": angles,
            "cache": None,
        }
        expected = model.lm_head(found.layers[0](embedded, states, **read))
        own = native_head(target)(tokens[:, 1:], places, features=states, use_cache=False).logits
    assert (own - expected).abs().max() < 1e-5
    plain = texts(autoregressive.build(target), PROMPTS, PARAMS)
    for tree in ("chain", "dynamic"):
        assert texts(mtp.build(target, tree=tree, width=2, num_nodes=6), PROMPTS, PARAMS) == plain


def test_a_target_without_such_a_layer_is_refused_with_what_to_do(tmp_path: Path) -> None:
    without: Any = transformers_models(vocab=12).target
    with pytest.raises(ValueError, match=r"has no layers for further tokens .*: use a head that is trained"):
        mtp.build(without)
    folder = checkpoint(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    del tensors[f"model.layers.{LAYERS}.eh_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"cannot be loaded .*eh_proj.*: use its complete checkpoint"):
        mtp.build(opened(folder))
