"""A copy of a model that shares only its weights, so that decoding never changes the user's model.

The copy has separate modules, hooks, configs, training mode and non-persistent buffers (rotary frequencies,
which some models rewrite in their forward). Parameters and persistent buffers are the same tensors: the copy
needs no memory for weights, and an optimizer's in-place updates apply to it too.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from types import MethodType
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.configuration_utils import PreTrainedConfig


def private_copy(
    model: PreTrainedModel, attention: Mapping[str, str] | None = None, otherwise: str | None = None
) -> PreTrainedModel:
    """A copy of the model in evaluation mode. In each of its configs, attention implementation `name` is
    replaced by `attention[name]`, or by `otherwise` if `attention` lacks that key; without `attention` it
    stays."""
    copies = {id(module): object.__new__(type(module)) for module in model.modules()}
    rebind = _Rebinding(copies)
    for module in model.modules():
        state = vars(copies[id(module)])
        state.update({name: rebind(value) for name, value in vars(module).items()})
        state["training"] = False
        state.pop("_compiled_call_impl", None)  # compiled code that runs the original modules
        if hasattr(state.get("forward"), "_torchdynamo_orig_callable"):
            del state["forward"]
        for name in module._non_persistent_buffers_set:
            buffer = module._buffers[name]
            state["_buffers"][name] = buffer.clone() if isinstance(buffer, Tensor) else buffer
    for config in rebind.configs():
        if attention is not None and hasattr(config, "_attn_implementation_internal"):
            name = config._attn_implementation_internal
            config._attn_implementation_internal = attention.get(name, otherwise)
    made = copies[id(model)]
    assert isinstance(made, PreTrainedModel)
    return made


class _Rebinding:
    """Replaces references to a model's modules and configs by references to their copies."""

    def __init__(self, copies: dict[int, nn.Module]) -> None:
        self._copies = copies
        self._configs: dict[int, Any] = {}  # memo of deepcopy: configs that share an object share its copy

    def __call__(self, value: Any) -> Any:
        if isinstance(value, nn.Module):
            return self._copies.get(id(value), value)
        if isinstance(value, PreTrainedConfig):
            return copy.deepcopy(value, self._configs)
        if type(value) in (dict, OrderedDict):
            return type(value)((key, self(item)) for key, item in value.items())
        if type(value) in (list, set):
            return type(value)(self(item) for item in value)
        if isinstance(value, MethodType) and id(value.__self__) in self._copies:
            return MethodType(value.__func__, self._copies[id(value.__self__)])
        if isinstance(value, partial):  # accelerate's wrapper of a module's forward
            bound = partial(self(value.func), *map(self, value.args), **value.keywords)
            vars(bound).update({name: self(attribute) for name, attribute in vars(value).items()})
            return bound
        return value

    def configs(self) -> list[Any]:
        return [config for config in self._configs.values() if isinstance(config, PreTrainedConfig)]
