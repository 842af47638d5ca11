"""Modules in place of layers and sub-layers that are skipped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from outpace.models.eager.captures import OutputCapture
from outpace.models.skip_set import SkipSet

if TYPE_CHECKING:
    from outpace.models.eager.forward import Forward

# parts of class names by which the modules of a layer are recognised
ATTENTION = ("attention", "attn")
MLP = ("mlp", "moe", "feedforward", "ffn")


class Skipped(nn.Module):
    """Returns its input, or zeros of its shape, in place of what the original module computed from it."""

    def __init__(self, original: nn.Module, num_outputs: int | None, *, zeros: bool) -> None:
        """`num_outputs`: length of the tuple that the original module returns; None: a tensor. `zeros`: for
        sub-layers, whose outputs are added to the residual stream."""
        super().__init__()
        # attributes that the model's code reads from a layer, such as its type
        for name, value in vars(original).items():
            if isinstance(value, str | int) and not name.startswith("_"):
                setattr(self, name, value)
        self._num_outputs, self._zeros = num_outputs, zeros

    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> Any:
        states = torch.zeros_like(hidden_states) if self._zeros else hidden_states
        return states if self._num_outputs is None else (states, *[None] * (self._num_outputs - 1))


class Switch:
    """Replaces any layers and sub-layers of a model by modules that skip them, and puts them back."""

    @torch.no_grad()
    def __init__(self, model: PreTrainedModel, arguments: dict[str, Any]) -> None:
        """`arguments`: of a forward of the model over one token. ValueError for a model without a list of
        layers."""
        self._name, num_layers = type(model).__name__, model.config.get_text_config().num_hidden_layers
        layers = OutputCapture(model, num_layers).layers
        if layers is None:
            raise ValueError(f"{self._name} has no list of layers: use a draft model of its own")
        # (layer, kind of module; "": the layer itself) -> parent, name in it, module
        self._places: dict[tuple[int, str], tuple[Any, str | int, nn.Module]] = {}
        for index in range(num_layers):
            layer = layers[index]
            self._places[index, ""] = layers, index, layer
            for kinds in (ATTENTION, MLP):
                if (part := _part(layer, kinds)) is not None:
                    self._places[index, kinds[0]] = layer, part, getattr(layer, part)
        modules = [module for _, _, module in self._places.values()]
        counts = dict(zip(self._places, num_outputs(model, modules, arguments), strict=True))
        self._skipped = {
            place: Skipped(self._places[place][2], count, zeros=bool(place[1]))
            for place, count in counts.items()
        }
        self._replaced: list[tuple[int, str]] = []

    def set(self, skip_set: SkipSet) -> None:
        """Skip the sub-layers of a set, whose layers the model has, and put back all others. ValueError if
        these sub-layers of the model cannot be skipped."""
        places = [(index, "") for index in skip_set.layers]
        for (kind, *_), skipped in ((ATTENTION, skip_set.attention), (MLP, skip_set.mlp)):
            places += [(index, kind) for index in skipped - skip_set.layers]
        for place in places:
            if place not in self._places:
                raise ValueError(
                    f"the layers of {self._name} have no module for {place[1]}: skip whole layers, as "
                    "layerskip does"
                )
        for place in self._replaced:
            self._put(place, self._places[place][2])
        for place in places:
            self._put(place, self._skipped[place])
        self._replaced = places

    def _put(self, place: tuple[int, str], module: nn.Module) -> None:
        parent, name, _ = self._places[place]
        if isinstance(name, int):
            parent[name] = module
        else:
            setattr(parent, name, module)


def skip(model: PreTrainedModel, skip_set: SkipSet, arguments: dict[str, Any]) -> None:
    """Skip the sub-layers of a set, whose layers the model has. `arguments`: of a forward of the model over
    one token. ValueError if these sub-layers of the model cannot be skipped."""
    Switch(model, arguments).set(skip_set)


def check_attention(whole: Forward) -> None:
    """ValueError for a model with recurrent layers, whose states need every token. `whole`: the forwards of
    the whole model."""
    if whole.keeps_states:
        raise ValueError(
            f"{type(whole.model).__name__} has recurrent layers, which cannot be skipped: use a method with "
            "a draft model, a draft head or looked-up text"
        )


def check_sharing(whole: Forward, skip_set: SkipSet) -> None:
    """ValueError if a layer that still runs reads the keys and values of a layer that is skipped, as in
    models whose later layers share those of earlier ones. `whole`: the forwards of the whole model."""
    left = set(range(whole.captures.num_layers)) - skip_set.attention
    if left - whole.planes.of_layer.keys() and skip_set.attention & whole.planes.of_layer.keys():
        raise ValueError(
            f"later layers of {type(whole.model).__name__} read the keys and values of earlier ones, which "
            "therefore cannot be skipped: use layerskip, which skips the last layers"
        )


def weights_without(model: PreTrainedModel, skip_set: SkipSet) -> float:
    """Share of the weights of a model's layers and LM head outside of the sub-layers of a set."""
    layers = OutputCapture(model, model.config.get_text_config().num_hidden_layers).layers
    assert layers is not None
    sizes = [_num_weights(layer) for layer in layers]
    head = model.get_output_embeddings()
    whole = sum(sizes) + (0 if head is None else _num_weights(head))
    left = whole - sum(sizes[index] for index in skip_set.layers)
    for kind, skipped in ((ATTENTION, skip_set.attention), (MLP, skip_set.mlp)):
        for index in skipped - skip_set.layers:
            if (part := _part(layers[index], kind)) is not None:
                left -= _num_weights(getattr(layers[index], part))
    return left / whole


def _num_weights(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


@torch.no_grad()
def check_residual(model: PreTrainedModel, arguments: dict[str, Any]) -> None:
    """ValueError unless a layer without attention and MLP returns its input, as skip sets assume. Every
    sub-layer of `model`, a copy, is replaced."""
    num_layers = model.config.get_text_config().num_hidden_layers
    layers = OutputCapture(model, num_layers).layers
    assert layers is not None
    every = frozenset(range(num_layers))
    for skipped in (SkipSet(attention=every), SkipSet(mlp=every)):
        skip(model, skipped, arguments)
    changed = list[int]()

    def compare(index: int) -> Any:
        def hook(module: nn.Module, inputs: Any, given: dict[str, Any], output: Any) -> None:
            states = inputs[0] if inputs else given["hidden_states"]
            if not torch.equal(states, output[0] if isinstance(output, tuple) else output):
                changed.append(index)

        return layers[index].register_forward_hook(hook, with_kwargs=True)

    hooks = [compare(index) for index in range(num_layers)]
    try:
        model(**arguments)
    finally:
        for hook in hooks:
            hook.remove()
    if changed:
        raise ValueError(
            f"layer {changed[0]} of {type(model).__name__} does more than add its attention and its MLP to "
            "the residual stream: skip whole layers, as layerskip does"
        )


def _part(layer: nn.Module, kinds: tuple[str, ...]) -> str | None:
    """Name of the module of a layer whose class name contains one of `kinds`."""
    for name, module in layer.named_children():
        words = type(module).__name__.lower()
        is_norm = "norm" in words
        if not is_norm and any(kind in words for kind in kinds):
            return name
    return None


def num_outputs(
    model: PreTrainedModel, modules: list[nn.Module], arguments: dict[str, Any]
) -> list[int | None]:
    """Per module the length of the tuple that it returns; None: a tensor, or it was not called."""
    lengths: dict[nn.Module, int | None] = {}

    def hook(module: nn.Module, inputs: Any, output: Any) -> None:
        lengths[module] = len(output) if isinstance(output, tuple) else None

    hooks = [module.register_forward_hook(hook) for module in modules]
    try:
        model(**arguments)
    finally:
        for handle in hooks:
            handle.remove()
    return [lengths.get(module) for module in modules]
