"""Checks for models that are not supported; each error message gives the reason and the fix."""

from __future__ import annotations

from collections.abc import Sequence, Set

from transformers import PreTrainedModel
from transformers.configuration_utils import PreTrainedConfig as Config

from outpace.models.cache_argument import cache_argument

ATTENTION = {"full_attention", "sliding_attention", "chunked_attention", "attention"}
STATE_INPUTS = ("cache_params", "state", "mems")  # forward arguments of models with a recurrent state
# model types whose custom attention code is known to use position ids; other models with custom attention
# code score chains only
FOLLOW_POSITIONS = ("gptj", "falcon", "codegen", "gpt_neox_japanese")
RECURRENT = ("mamba", "linear", "recurrent", "conv", "rwkv", "lstm", "ssm")


def refuse(model: PreTrainedModel, parameters: Set[str], *, recurrent: bool) -> None:
    """Raise ValueError for models whose layers keep anything else than a key and a value per token, or
    recurrent states in transformers' cache. `parameters`: names of the parameters of the model's forward.
    `recurrent`: the model has layers with such states."""
    config, name = model.config.get_text_config(), type(model).__name__
    if model.config.is_encoder_decoder:
        raise ValueError(
            f"{name} is an encoder-decoder model: encoder-decoder models are not supported, choose "
            "a decoder-only language model"
        )
    kinds = set(_layer_kinds(config))
    has_states = any(word in kind for kind in kinds for word in RECURRENT)
    has_states = has_states or not parameters.isdisjoint(STATE_INPUTS)
    # models of these types may have attention in every layer, as Granite 4 Micro
    has_states = has_states or (getattr(model, "_is_stateful", False) and not kinds)
    if has_states and not recurrent:
        raise own_states(model)
    if config.model_type == "falcon" and config.alibi and config._attn_implementation == "sdpa":
        raise ValueError(
            f"{name} with ALiBi adds its biases twice under transformers' sdpa attention: "
            "load it with attn_implementation='eager'"
        )
    if cache_argument(parameters) is None:
        raise ValueError(f"{name} takes no key-value cache: choose a model that does")
    if not recurrent and (unknown := sorted(kinds - ATTENTION)):
        raise ValueError(
            f"{name} has {', '.join(unknown)} layers, whose cache is not supported yet: "
            "choose a model with full, sliding or chunked attention"
        )


def own_states(model: PreTrainedModel) -> ValueError:
    """The error for a model that keeps recurrent states outside of transformers' cache."""
    return ValueError(
        f"{type(model).__name__} keeps a recurrent state in a form of its own, which cannot be taken back to "
        "an earlier token: choose a model whose recurrent layers use transformers' cache, or one without them"
    )


def _layer_kinds(config: Config) -> Sequence[str]:
    kinds = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or ()
    return [kind for kind in kinds if isinstance(kind, str)]


def rope_limit(config: Config) -> int | None:
    """Number of tokens up to which rotary frequencies are the same in every forward; None: no limit.

    Dynamic NTK and LongRoPE choose the frequencies of a whole forward by its largest position. Beyond the
    limit a row's output would depend on the other rows of the batch and on the division of its prompt into
    chunks."""
    parameters = getattr(config, "rope_parameters", None) or {}
    kinds = (
        parameters.values() if all(isinstance(value, dict) for value in parameters.values()) else [parameters]
    )
    limits: list[int] = []
    for kind in kinds:
        if kind.get("rope_type") == "longrope":
            limits.append(int(kind["original_max_position_embeddings"]))
        elif "dynamic" in kind.get("rope_type", ""):
            limits.append(int(config.max_position_embeddings))
    return min(limits, default=None)


def attends_by_cache_slot(model: PreTrainedModel, parameters: Set[str], *, dense: bool) -> bool:
    """Whether attention may depend on cache positions instead of position ids, as the biases of ALiBi do; the
    two are equal in chains but not in trees. `dense`: the model has custom attention code."""
    config = model.config.get_text_config()
    own = dense and not getattr(model, "_supports_attention_backend", False)
    return (
        "position_ids" not in parameters
        or bool(getattr(config, "alibi", False))
        or (own and config.model_type not in FOLLOW_POSITIONS)
    )
