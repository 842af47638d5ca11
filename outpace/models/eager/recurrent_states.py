"""The states of a model's recurrent layers: short convolutions, linear attention, state space models.

Such a layer keeps, in place of keys and values of every token, a state of fixed size that each token changes.
It cannot be taken back to an earlier token. So a copy of the states is kept before each forward, and the
inputs of the recurrent layers in that forward are recorded. If only the first of its tokens are committed,
the recurrent layers are run again for those tokens, from the copy; the rest of the model is not.
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
    # layer -> its call in the last forward that began with these states; empty if it had one token
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
    """Empty states of each recurrent layer of a model; none if it has no such layer, or keeps their states
    elsewhere than in transformers' cache."""
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
    """Copies, for a forward that changes them in place."""
    return {index: _copied(layer) for index, layer in layers.items()}


def _copied(layer: LinearAttentionLayer) -> LinearAttentionLayer:
    made = copy.copy(layer)
    for name, value in vars(layer).items():
        if isinstance(value, dict):  # with an entry for each state of the layer
            cloned = {key: each.clone() if isinstance(each, Tensor) else each for key, each in value.items()}
            setattr(made, name, cloned)
    return made
