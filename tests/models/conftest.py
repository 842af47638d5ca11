"""Tiny random models of many architectures, in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

COMMON: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MIXED = {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
MLA = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 24,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
    "num_key_value_heads": 4,
}
LINEAR = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}
MAMBA = {
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_n_groups": 1,
    "mamba_d_state": 8,
    "mamba_chunk_size": 4,
}
TINY: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "qwen3_moe": EXPERTS,
    "mistral": {"sliding_window": 6},
    "mixtral": EXPERTS,
    "gemma3_text": MIXED,
    "phi3": {},
    "olmo2": {},
    "smollm3": {"no_rope_layers": [1, 0]},
    "granite": {"attention_multiplier": 0.3, "logits_scaling": 3.0, "residual_multiplier": 0.7},
    "cohere2": {**MIXED, "logit_scale": 0.3},
    "llama4_text": {
        **EXPERTS,
        "attention_chunk_size": 6,
        "layer_types": ["chunked_attention", "full_attention"],
        "no_rope_layers": [1, 0],
        "floor_scale": 5,
        "attn_temperature_tuning": True,
        "intermediate_size_mlp": 48,
    },
    "deepseek_v3": MLA,
    "gpt2": {},
    "gpt_neox": {},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "gemma2": {
        **MIXED,
        "query_pre_attn_scalar": 8,
        "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": 5.0,
    },
    "gpt_oss": {**MIXED, **EXPERTS},
    "gptj": {"rotary_dim": 4},
    "falcon": {"alibi": False},
    "bloom": {},
    "gpt_neo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]], "window_size": 6},
    "bart": {"d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 48},
    "gemma3n_text": {
        **MIXED,
        "num_kv_shared_layers": 1,
        "vocab_size_per_layer_input": 61,
        "hidden_size_per_layer_input": 8,
        "laurel_rank": 4,
        "altup_num_inputs": 2,
        "intermediate_size": [48] * 3,
        "activation_sparsity_pattern": None,
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "full_attention", "full_attention"],
    },
    "gemma4_text": {
        **MIXED,
        "global_head_dim": 12,
        "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 0,
    },
    "stablelm": {},
    "jetmoe": {**EXPERTS, "kv_channels": 8},
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 128, "expansion_ratio": 2},
    "qwen3_5_text": LINEAR,
    "qwen3_next": {**LINEAR, **EXPERTS, "shared_expert_intermediate_size": 24},
    "kimi_linear": {
        **MLA,
        "layer_types": LINEAR["layer_types"],
        "linear_num_heads": 4,
        "linear_head_dim": 8,
        "num_experts": 4,
        "num_experts_per_token": 2,
    },
    "olmo_hybrid": LINEAR,
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "falcon_h1": {**MAMBA, "mamba_d_ssm": 32, "mamba_d_head": 8},
    "granitemoehybrid": {
        **MAMBA,
        "layer_types": ["mamba", "attention"],
        "num_local_experts": 0,
        "shared_intermediate_size": 48,
    },
    "bamba": {**MAMBA, "attn_layer_indices": [1]},
    "nemotron_h": {
        "layers_block_type": ["mamba", "attention"],
        "mamba_num_heads": 4,
        "mamba_head_dim": 8,
        "n_groups": 1,
        "ssm_state_size": 8,
        "chunk_size": 4,
    },
    "zamba2": {
        "mamba_d_state": 8,
        "n_mamba_heads": 4,
        "mamba_headdim": 16,
        "mamba_ngroups": 1,
        "chunk_size": 4,
        "layers_block_type": ["mamba", "hybrid"],
        "num_mem_blocks": 1,
        "adapter_rank": 8,
    },
    # convolutions before keys and values
    "zaya": {"num_experts": 4, "moe_intermediate_size": 24, "router_hidden_size": 16},
    "mamba": {"state_size": 4},
    "jamba": {"attn_layer_offset": 1, "attn_layer_period": 2, "mamba_d_state": 4},
    "mamba2": {"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 1, "chunk_size": 4},
}
SHARED_KEYS = {  # of gemma4_text: its last two layers read the keys and values of the first two
    "num_hidden_layers": 4,
    "layer_types": MIXED["layer_types"] * 2,
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 61,
}
UNKNOWN_OPTIONS = {  # names these configurations do not know
    "mpt": tuple(COMMON)[1:8],
    "falcon": ("head_dim",),
}


def build(name: str, **options: Any) -> PreTrainedModel:
    """A model whose output depends strongly on everything it reads."""
    settings = TINY.get(name, {})
    common = {key: value for key, value in COMMON.items() if key not in UNKNOWN_OPTIONS.get(name, ())}
    config = AutoConfig.for_model(name, **{**common, **settings, **options})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).to(torch.float64).eval()
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # the grouped product knows no float64
    with torch.no_grad():
        for label, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 1.5 / parameter.shape[-1] ** 0.5)
            elif "bias" in label or "sinks" in label:
                parameter.normal_(0, 0.3)
    return model


class Reference:
    """The untouched model: a fresh forward without a cache for every path."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = copy.deepcopy(model)
        # transformers 5.17 offers sdpa for gemma 2, and then forgets its soft cap
        capped = getattr(self.model.config, "attn_logit_softcapping", None)
        self.model.config._attn_implementation = (
            "sdpa" if self.model._supports_sdpa and not capped else "eager"
        )

    @torch.no_grad()
    def __call__(self, tokens: Tensor, **options: Any) -> Any:
        return self.model(tokens[None], use_cache=False, **options)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Waking a second thread costs more than these tensors."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def tiny() -> Callable[..., PreTrainedModel]:
    """Builds a tiny model by name."""
    return build


@pytest.fixture
def reference() -> type[Reference]:
    """Makes the untouched twin of a model."""
    return Reference


@pytest.fixture
def float64_throughout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modelling code computes norms, rotations, routers and some attention in float32 whatever the model's
    dtype, which would hide what is compared here: lift those casts, for the model under test and the
    reference alike."""
    softmax, double = nn.functional.softmax, torch.Tensor.double

    def kept(convert: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def wide(tensor: Tensor, *args: Any, **options: Any) -> Tensor:
            narrow = (
                not args and not options or torch.float32 in args or options.get("dtype") == torch.float32
            )
            if narrow and tensor.dtype == torch.float64:
                return tensor
            converted = convert(tensor, *args, **options)
            # positions, which older modelling code multiplies as floats with what is float64 here
            return double(converted) if narrow and not tensor.is_floating_point() else converted

        return wide

    for name in ("to", "type", "float"):
        monkeypatch.setattr(torch.Tensor, name, kept(getattr(torch.Tensor, name)))
    monkeypatch.setattr(nn.functional, "softmax", lambda x, dim=-1, dtype=None, **_: softmax(x, dim=dim))
