"""The states of a model's recurrent layers: short convolutions, linear attention, state space models.

Such a layer keeps, in place of keys and values of every token, a state of fixed size that each token changes.
A state cannot be taken back to an earlier token. So the states before each forward are copied, and the inputs
of the recurrent layers in that forward are recorded. If only the first tokens of the forward are committed,
the recurrent layers alone are run again for these tokens, from the copy.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import LinearAttentionCacheLayerMixin, LinearAttentionLayer

from outpace.models.eager.recurrent_layer import LayerCall

# layer -> its states, in the object in which transformers keeps them
LayerStates = dict[int, LinearAttentionLayer]


@dataclass
class States:
    """The states of all recurrent layers after the first `position` tokens of a text."""

    position: int
    layers: LayerStates
    # layer -> its call in the last forward that began with these states; empty for a forward of one token
    calls: dict[int, LayerCall] = field(default_factory=dict)

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
    return {index: _copied(layer) for index, layer in layers.items()}


def _copied(layer: LinearAttentionLayer) -> LinearAttentionLayer:
    made = copy.copy(layer)
    for name, value in vars(layer).items():
        if isinstance(value, dict):  # with an entry for each state of the layer
            cloned = {key: old.clone() if isinstance(old, Tensor) else old for key, old in value.items()}
            setattr(made, name, cloned)
    return made
