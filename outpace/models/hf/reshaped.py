"""Transformers configurations for new draft models: the architecture of a given model, with other numbers of
layers and attention heads and other widths."""

from __future__ import annotations

import copy
from typing import Any


def mlp_size(config: Any) -> int:
    """The inner size of MLPs, the largest if layers differ. Some configurations, such as GPT-2's, have
    another name for it or leave it out, which means four times the hidden size."""
    named = getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None)
    return max(named) if isinstance(named, list | tuple) else named or 4 * config.hidden_size


def reshaped(config: Any, *, num_layers: int, width: int, num_heads: int, inner_size: int) -> Any:
    """A copy of a transformers text configuration with `num_layers` layers, `num_heads` attention heads,
    hidden size `width` and MLP size `inner_size`. It has as many key and value heads as the original, or the
    largest smaller number that divides `num_heads`. ValueError unless the size of a head is a whole, even
    number."""
    if width % num_heads or (width // num_heads) % 2:
        raise ValueError(
            f"a width of {width} cannot be divided among {num_heads} attention heads: use a width that is a "
            f"multiple of {2 * num_heads}"
        )
    made = copy.deepcopy(config)
    given = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    groups = max(num for num in range(1, num_heads + 1) if num_heads % num == 0 and num <= max(1, given))
    made.num_hidden_layers, made.hidden_size, made.intermediate_size = num_layers, width, inner_size
    if getattr(made, "n_inner", None):
        made.n_inner = inner_size
    made.num_attention_heads, made.num_key_value_heads = num_heads, groups
    # some configurations, such as Falcon's, compute it from the other numbers
    if getattr(made, "head_dim", None) and not isinstance(getattr(type(made), "head_dim", None), property):
        made.head_dim = width // num_heads
    if getattr(made, "layer_types", None):
        made.layer_types = made.layer_types[:num_layers]
    return made
