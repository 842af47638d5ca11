"""The states of a model's recurrent layers: short convolutions, linear attention, state space models.

Such a layer keeps, in place of keys and values of every token, a state of fixed size that each token changes.
It cannot be taken back to an earlier token. So the states before each forward are kept, together with the
inputs that the recurrent layers received in it. If only the first tokens of that forward are committed, these
layers alone are run again, over the inputs of those tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache, LinearAttentionCacheLayerMixin, LinearAttentionLayer

LayerStates = dict[
    int, LinearAttentionLayer
]  # layer -> its states, in the object that transformers keeps them in


@dataclass(frozen=True, eq=False)
class LayerCall:
    """The arguments of a recurrent layer in a forward over `num_tokens` tokens, without the KV cache."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    num_tokens: int

    @staticmethod
    def of(args: tuple[Any, ...], kwargs: Mapping[str, Any], num_tokens: int) -> LayerCall:
        """These arguments. The cache is left out, since it refers to the memory of other layers."""

        def without(value: Any) -> Any:
            return _CACHE if isinstance(value, Cache) else value

        kept = {name: without(value) for name, value in kwargs.items()}
        return LayerCall(tuple([without(value) for value in args]), kept, num_tokens)

    def repeat(self, layer: Callable[..., Any], num_tokens: int, cache: Cache) -> None:
        """Call the layer for the first `num_tokens` of the tokens, with this cache."""

        def first(value: Any) -> Any:
            if value is _CACHE:
                return cache
            if isinstance(value, tuple):
                return tuple([first(each) for each in value])
            per_token = isinstance(value, Tensor) and value.ndim > 1 and value.shape[1] == self.num_tokens
            return value[:, :num_tokens] if per_token else value

        layer(*map(first, self.args), **{name: first(value) for name, value in self.kwargs.items()})


_CACHE = object()  # stands for the cache among the arguments of a LayerCall


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
