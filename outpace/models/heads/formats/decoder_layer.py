"""The configuration of a head's decoder layers, in the keys that all layouts share with transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.draft_head import MAX_POSITIONS
from outpace.models.heads.formats.files import Config, HeadFileError

KEYS = (
    "hidden_size intermediate_size num_attention_heads num_key_value_heads head_dim rms_norm_eps "
    "rope_parameters max_position_embeddings hidden_act attention_bias mlp_bias"
).split()
# before version 5, transformers kept the rotary frequencies here; most published heads are older
OLD_ROPE = ("rope_theta", "rope_scaling")


def read_layer(
    config: Mapping[str, Any], vocab: int, target: TargetWithLayers, *, max_layers: int | None = 1
) -> LlamaConfig:
    """The configuration of the decoder layers of a head with `vocab` logits. HeadFileError if the head has
    no layer, more than `max_layers` (None: any number), or was trained for a target of another size."""
    size = next(target.embed.parameters()).shape[1]
    own = config.get("hidden_size")
    if (wanted := config.get("target_hidden_size") or own) != size:
        raise HeadFileError(
            f"it is for a target with hidden states of {wanted} numbers, and this target's have {size}: "
            "give the model it was trained for"
        )
    if own != size:
        raise HeadFileError(
            f"its hidden states have {own} numbers: only heads as wide as the target are supported"
        )
    count = config.get("num_hidden_layers", 1)
    if not isinstance(count, int) or count < 1:
        raise HeadFileError(f"its num_hidden_layers is {count!r}: restore its config.json")
    if max_layers is not None and count > max_layers:
        raise HeadFileError(f"it has {count} decoder layers: only heads with one are supported")
    rope = () if config.get("rope_parameters") else OLD_ROPE
    shape = {name: config[name] for name in (*KEYS, *rope) if config.get(name) is not None}
    if config.get("model_type") == "qwen3":
        shape.setdefault("head_dim", 128)  # as in transformers: it does not follow from the hidden size
    shape.setdefault("max_position_embeddings", target.max_length or MAX_POSITIONS)
    try:
        layer = LlamaConfig(
            **shape,
            vocab_size=vocab,
            num_hidden_layers=count,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        )
    except (StrictDataclassError, KeyError, TypeError, ValueError) as error:
        problem = " ".join(str(error).split())
        raise HeadFileError(
            f"its decoder layer cannot be configured ({problem}): restore its config.json"
        ) from error
    _check_rope(layer)
    return layer


def _check_rope(layer: LlamaConfig) -> None:
    try:
        frequencies: Any = LlamaRotaryEmbedding(layer).inv_freq
        is_right = bool(frequencies.isfinite().all())
    except Exception as error:  # transformers raises errors of many types, such as KeyError
        problem = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise HeadFileError(
            f"its rotary frequencies cannot be computed from rope_parameters {layer.rope_parameters!r} "
            f"({problem:.80}): restore its config.json"
        ) from error
    if not is_right:
        raise HeadFileError(
            f"rope_parameters {layer.rope_parameters!r} give no finite frequencies: restore its config.json"
        )


def write_layer(layer: LlamaConfig, vocab: int, model_type: str = "llama") -> Config:
    """The keys of the decoder layers of a head for a target with `vocab` tokens."""
    written = {name: getattr(layer, name) for name in KEYS if getattr(layer, name, None) is not None}
    rope = written.get("rope_parameters") or {}
    if rope.get("rope_type", "default") == "default" and "rope_theta" in rope:
        written["rope_theta"] = rope["rope_theta"]  # for servers with an older transformers
    return {
        "model_type": model_type,
        **written,
        "vocab_size": vocab,
        "num_hidden_layers": layer.num_hidden_layers,
        "tie_word_embeddings": False,
    }
