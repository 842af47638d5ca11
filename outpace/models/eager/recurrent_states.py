"""The states of a model's recurrent layers: short convolutions, linear attention, state space models.

Such a layer keeps, in place of keys and values of every token, a state of fixed size that each token changes.
A state cannot be taken back to an earlier token. So the states before each forward are copied, and the inputs
of the recurrent layers in that forward are recorded. If only its first tokens, or a path of its tree, are
committed, the recurrent layers alone are run again for these tokens, from the copy.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import LinearAttentionCacheLayerMixin, LinearAttentionLayer

# layer -> its states, in the object in which transformers keeps them
LayerStates = dict[int, LinearAttentionLayer]


@dataclass
class States:
    """The states of all recurrent layers after the first `position` tokens of a text."""

    position: int
    layers: LayerStates

    @property
    def num_bytes(self) -> int:
        """Memory of the states."""
        return sum(
            tensor.nbytes
            for layer in self.layers.values()
            for states in (layer.conv_states, layer.recurrent_states)
            for tensor in states.values()
            if tensor is not None
        )


def fresh_states(model: PreTrainedModel) -> LayerStates:
    """Empty states of each recurrent layer of a model; {} if it has no such layer, or keeps states outside of
    transformers' cache."""
    try:
        layers = DynamicCache(config=model.config.get_text_config(decoder=True)).layers
    except (KeyError, AttributeError, TypeError, ValueError):  # configurations that this cache does not know
        return {}
    return {
        index: LinearAttentionLayer(number_of_states=layer.number_of_states)
        for index, layer in enumerate(layers)
        if isinstance(layer, LinearAttentionCacheLayerMixin)
    }


def copied(layers: LayerStates) -> LayerStates:
    """Copies of the states, for a forward that changes them in place."""
    return {index: _made([layer], lambda tensors: tensors[0].clone()) for index, layer in layers.items()}


def chosen(states: LinearAttentionLayer, texts: Tensor) -> LinearAttentionLayer:  # (m,) int64
    """Copies of the states of these texts, of several whose states one layer holds."""
    return _made([states], lambda tensors: tensors[0].index_select(0, texts.to(tensors[0].device)))


def joined(parts: Sequence[LinearAttentionLayer]) -> LinearAttentionLayer:
    """The states of the texts of all parts."""
    return parts[0] if len(parts) == 1 else _made(parts, torch.cat)


def _made(
    layers: Sequence[LinearAttentionLayer], combine: Callable[[list[Tensor]], Tensor]
) -> LinearAttentionLayer:
    made = copy.copy(layers[0])
    for name, value in vars(made).items():
        if isinstance(value, dict):  # with an entry for each state of the layer
            entries = {key: [vars(layer)[name][key] for layer in layers] for key in value}
            combined = {
                key: combine(of_layers) if isinstance(of_layers[0], Tensor) else of_layers[0]
                for key, of_layers in entries.items()
            }
            setattr(made, name, combined)
    return made
