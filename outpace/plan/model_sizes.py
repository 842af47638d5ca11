"""The sizes of models and draft heads, from their configurations: no weights are read."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from outpace.cost.model_size import BITS, AttentionLayer, ModelSize
from outpace.models.heads.draft_head import DraftHead
from outpace.models.heads.formats.files import read_files
from outpace.models.heads.kinds import Head, head_kind, head_methods, recognised
from outpace.models.names import resolve

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")  # names in configurations
PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "top_k_experts")
WITHOUT_CACHE = ("linear_attention", "conv", "mamba", "recurrent")  # kinds of layers
WITH_WINDOW = ("sliding_attention", "chunked_attention")


@dataclass(frozen=True)
class Skeleton:
    """A model without weights, as draft heads see their target."""

    model: Any
    config: Any
    vocab: int
    max_length: int | None
    embed: nn.Module
    head: nn.Module
    num_layers: int


def read_config(name: str) -> Any:
    """The transformers configuration of a zoo model, a folder, a config.json, or a model on the hub.
    ValueError if there is none."""
    path = Path(resolve(name))
    if path.suffix == ".json":
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise ValueError(f"{path} is not JSON: give a model's config.json") from error
        if not isinstance(values, dict) or "model_type" not in values:
            raise ValueError(f'{path} has no "model_type": give a model\'s config.json')
        kind = values.pop("model_type")
        try:
            return AutoConfig.for_model(kind, **values)
        except ValueError as error:
            raise ValueError(
                f"{path} is of the model type {kind}, which transformers does not know"
            ) from error
    return AutoConfig.from_pretrained(str(path))


def skeleton(config: Any) -> Skeleton:
    """The model of a configuration, on torch's device without memory."""
    with torch.device("meta"):
        return skeleton_of(AutoModelForCausalLM.from_config(config))


def skeleton_of(model: Any) -> Skeleton:
    """What untrained draft heads need of a transformers model: its configuration, embedding, LM head and
    number of layers. ValueError for a model without an LM head."""
    embed, head = model.get_input_embeddings(), model.get_output_embeddings()
    if embed is None or head is None:
        raise ValueError(
            f"a model of the type {model.config.model_type} has no LM head: plan for a decoder-only "
            "language model"
        )
    text = model.config.get_text_config()
    limit = getattr(text, "max_position_embeddings", None)
    vocab = int(next(head.parameters()).shape[0])
    return Skeleton(model, text, vocab, limit, embed, head, text.num_hidden_layers)


def model_size(of: Skeleton, dtype: str, weights: str | None = None) -> ModelSize:
    """The sizes of a model. ValueError for unknown formats and for attention that is not modelled."""
    matrices, other, experts = 0.0, 0.0, 0.0
    embedding, head = next(of.embed.parameters()), next(of.head.parameters())
    seen = {id(embedding), id(head)}
    for name, parameter in of.model.named_parameters():
        if id(parameter) in seen:
            continue
        if ".experts." in name:
            experts += parameter.numel()
        elif parameter.dim() > 1:
            matrices += parameter.numel()
        else:
            other += parameter.numel()
    if of.model.config.get_text_config().tie_word_embeddings is not True and embedding is not head:
        other += embedding.numel()
    num_experts, per_token = _named(of.config, EXPERTS), _named(of.config, PER_TOKEN)
    if experts and not (num_experts and per_token):
        raise ValueError(
            f"how many experts a token of a {of.config.model_type} uses is not in its configuration: "
            "measure the model here instead (leave out --hardware)"
        )
    return ModelSize(
        num_layers=of.num_layers,
        hidden_size=int(embedding.shape[1]),
        vocab=of.vocab,
        matrices=matrices + head.numel(),
        unmultiplied=other,
        attention=_attention(of.config),
        expert_weights=experts,
        num_experts=num_experts if experts else 0,
        experts_per_token=per_token if experts else 0,
        dtype=_checked(dtype),
        weights=None if weights is None else _checked(weights),
    )


def _named(config: Any, names: tuple[str, ...]) -> int:
    return next((found for name in names if isinstance(found := getattr(config, name, None), int)), 0)


def _checked(name: str) -> str:
    if name not in BITS:
        raise ValueError(f"{name!r} is no format of weights that is planned for: use {', '.join(BITS)}")
    return name


def _attention(config: Any) -> tuple[AttentionLayer, ...]:
    if getattr(config, "kv_lora_rank", None):
        raise ValueError(
            f"the compressed KV cache of a {config.model_type} is not modelled: measure the model here "
            "instead (leave out --hardware)"
        )
    layers: list[AttentionLayer] = []
    window = getattr(config, "sliding_window", None)
    used = window if getattr(config, "use_sliding_window", True) else None
    kinds = (
        getattr(config, "layer_types", None)
        or ["sliding_attention" if used else "full_attention"] * config.num_hidden_layers
    )
    for index, kind in enumerate(kinds):
        if any(word in kind for word in WITHOUT_CACHE):
            continue
        own = config.per_layer_config[index] if getattr(config, "is_heterogeneous", False) else config
        heads = own.num_attention_heads
        layers.append(
            AttentionLayer(
                heads,
                getattr(own, "num_key_value_heads", None) or heads,
                getattr(own, "head_dim", None) or own.hidden_size // heads,
                (window or getattr(config, "attention_chunk_size", None)) if kind in WITH_WINDOW else None,
            )
        )
    return tuple(layers)


@dataclass(frozen=True)
class HeadSize:
    """A draft head: the sizes of a forward over one token, and what all of it takes."""

    forward: ModelSize
    weight_bytes: float  # its own, without those of the target that it uses


def open_head(name: str, target: Any) -> Head:
    """For a `Skeleton` as target, the draft head of a folder or of the package, or one of the paper's sizes
    for the name of a head's method. ValueError for anything else."""
    methods = head_methods()
    if name in methods:
        with torch.device("meta"):
            return head_kind(name).untrained(target, 0)
    folder = Path(resolve(name))
    if not folder.is_dir():
        raise ValueError(f"there is no draft head {name!r}: give a folder, or one of {', '.join(methods)}")
    config, tensors = read_files(folder)
    found = recognised(config, tensors)
    if found is None:
        raise ValueError(
            f"{folder} holds no draft head: give one of `outpace train`, or one of {', '.join(methods)}"
        )
    return found[1].read(config, tensors, target)[0]


def head_size(head: Head, target: Skeleton, like: ModelSize) -> HeadSize:
    """The sizes of a draft head of a target with the sizes `like`; its weights are not compressed."""
    own = [parameter for parameter in head.own.values() if parameter.dim() > 1]
    total = float(sum(parameter.numel() for parameter in own))
    plain = replace(like, weights=None, expert_weights=0.0, num_experts=0, experts_per_token=0)
    bytes_of_all = total * plain.element_bytes
    if isinstance(head, DraftHead):
        lm_head = next(head.lm_head.parameters())
        shared = 0 if any(lm_head is parameter for parameter in own) else lm_head.numel()
        layers = _attention(head.config)
        size = replace(
            plain, num_layers=len(layers), matrices=total + shared, unmultiplied=0.0, attention=layers
        )
        return HeadSize(size, bytes_of_all)
    # one part for each position, of which a token needs its own
    per_token = total / (head.max_depth or 1)
    size = replace(plain, num_layers=1, matrices=per_token, unmultiplied=0.0, attention=())
    return HeadSize(size, bytes_of_all)
