"""The draft model of a training run: a given one, or a new one that is made for the target."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from outpace.api.model import Model, load
from outpace.api.opener import check_same_tokens
from outpace.models.adapter import has_adapter, save_adapter
from outpace.models.hf.reshaped import mlp_size, reshaped
from outpace.models.permissions import share_weights
from outpace.training.config import ConfigError, TrainConfig
from outpace.training.method import STORED


def draft_model(
    model: Model, config: TrainConfig, draft: str | None, *, num_added: int = 0
) -> PreTrainedModel:
    """The draft model to train, in float32; without a name, a new one that is smaller than the target. One
    that is given has the target's token ids, or `num_added` more."""
    if draft is None:
        return smaller(model.target.model, config)
    loaded = load(draft, dtype="float32", device=str(model.target.device))
    check_same_tokens(model, loaded)
    if loaded.target.vocab not in (model.target.vocab, model.target.vocab + num_added):
        raise ConfigError(
            f"{draft} has {loaded.target.vocab} token ids and the target {model.target.vocab}, which "
            f"training cannot pair: save the draft after model.resize_token_embeddings({model.target.vocab})"
        )
    return loaded.target.model


def smaller(model: PreTrainedModel, config: TrainConfig) -> PreTrainedModel:
    """A model of the same architecture with fewer and narrower layers and random weights. ConfigError for an
    architecture of which no such model can be made."""
    try:
        return _smaller(model, config)
    except Exception as error:  # transformers raises errors of many types for numbers that do not fit
        problem = " ".join(str(error).split())[:160]
        raise ConfigError(
            f"no smaller model can be made of {type(model).__name__} ({problem}): give a draft model with "
            "the target's tokenizer (--draft)"
        ) from error


def _smaller(model: PreTrainedModel, config: TrainConfig) -> PreTrainedModel:
    settings, own = config.distillation, model.config.get_text_config()
    heads = max(1, round(own.num_attention_heads * settings.size))
    width = heads * (getattr(own, "head_dim", None) or own.hidden_size // own.num_attention_heads)
    inner = max(16, 16 * round(mlp_size(own) * settings.size / 16))
    made = reshaped(own, num_layers=settings.num_layers, width=width, num_heads=heads, inner_size=inner)
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        draft = AutoModelForCausalLM.from_config(made, dtype=torch.float32)
    return draft.to(model.device).eval()


def save_model(trained: PreTrainedModel, folder: Path, model: Model) -> None:
    """Write a whole model, or the low-rank changes to one, with the target's tokenizer."""
    nn.Module.to(trained, STORED)
    if has_adapter(trained):
        save_adapter(trained, folder)
    else:
        trained.save_pretrained(folder)
    share_weights(folder)
    if model.tokenizer is not None:
        model.tokenizer.save_pretrained(folder)
