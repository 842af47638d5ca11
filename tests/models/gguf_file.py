"""A Llama model as a GGUF file, as llama.cpp's converter writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
from transformers import AutoModelForCausalLM, AutoTokenizer

OUTSIDE = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
IN_LAYERS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def write_gguf(folder: str, path: Path, architecture: str = "llama") -> None:
    """Write the checkpoint in `folder`, with its tokenizer, in float32."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
    tokenizer, config = AutoTokenizer.from_pretrained(folder), model.config
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    stored = json.loads((Path(folder) / "tokenizer.json").read_text(encoding="utf-8"))
    special = {token["content"] for token in stored["added_tokens"]}
    vocabulary = tokenizer.get_vocab()
    words = sorted(vocabulary, key=vocabulary.__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(words)
    kinds = gguf.TokenType
    writer.add_token_types([kinds.CONTROL if word in special else kinds.NORMAL for word in words])
    writer.add_token_merges([" ".join(pair) for pair in stored["model"]["merges"]])
    writer.add_eos_token_id(config.eos_token_id)
    for name, parameter in model.named_parameters():
        values = parameter.detach().numpy()
        if name in OUTSIDE:
            writer.add_tensor(OUTSIDE[name], values)
            continue
        layer, _, rest = name.removeprefix("model.layers.").partition(".")
        rest = rest.removesuffix(".weight")
        if rest in ("self_attn.q_proj", "self_attn.k_proj"):  # halves of a head are interleaved
            heads = config.num_attention_heads if "q_proj" in rest else config.num_key_value_heads
            halves = values.reshape(heads, 2, len(values) // heads // 2, -1)
            values = halves.swapaxes(1, 2).reshape(values.shape)
        writer.add_tensor(f"blk.{layer}.{IN_LAYERS[rest]}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
