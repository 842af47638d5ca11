"""Sizes of small Llama models that tests make."""

from __future__ import annotations

from typing import Any

from transformers import LlamaConfig


def llama_config(vocab_size: int, num_layers: int, **sizes: Any) -> LlamaConfig:
    """A configuration without special tokens; `sizes`: further fields of LlamaConfig."""
    usual: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    return LlamaConfig(vocab_size=vocab_size, num_hidden_layers=num_layers, **(usual | sizes))
