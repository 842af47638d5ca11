"""A recurrent layer of a model, whose last call can be repeated for the first of its tokens.

Its linear maps, most of the work, have one output per token. They are recorded, so that a repeated call
computes only what depends on the state: convolutions and the recurrence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers.cache_utils import Cache

# most tokens of a call of which the outputs of linear maps are recorded: those of a prompt need much memory
MOST_OUTPUTS = 64
# On a CPU, transformers' code takes 3 ms per layer for several tokens, which it pads to 64, and 0.3 ms for
# one: so many tokens are repeated one by one.
ONE_BY_ONE = 8


@dataclass(frozen=True, eq=False)
class LayerCall:
    """A call of a recurrent layer: its arguments without the KV cache, and the outputs of its linear maps."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    num_tokens: int
    # in the order in which they were computed; None: not recorded
    outputs: list[Tensor | None] = field(default_factory=list)

    def part(self, begin: int, end: int, cache: Cache) -> LayerCall:
        """The call for the tokens begin to end - 1 only, with this cache."""

        def cut(value: Any) -> Any:
            if value is _CACHE:
                return cache
            if isinstance(value, tuple):
                return tuple([cut(each) for each in value])
            per_token = isinstance(value, Tensor) and value.ndim > 1 and value.shape[1] == self.num_tokens
            return value[:, begin:end] if per_token else value

        kwargs = {name: cut(value) for name, value in self.kwargs.items()}
        return LayerCall(cut(self.args), kwargs, end - begin, [cut(output) for output in self.outputs])


_CACHE = object()  # stands for the cache among the arguments of a LayerCall


class RecurrentLayer:
    """A recurrent layer of a private copy of a model, which is changed. One call runs at a time."""

    def __init__(self, layer: nn.Module) -> None:
        self._layer = layer
        self._records = False  # whether the next call is recorded
        self._call: LayerCall | None = None  # the call that is or was recorded
        self._repeated: Iterator[Tensor | None] | None = None  # linear outputs of the call that is repeated
        layer.register_forward_pre_hook(self._begin, with_kwargs=True)
        for module in layer.modules():
            if isinstance(module, nn.Linear):
                # not a module around it, of which the layer might read the weights
                vars(module)["forward"] = partial(self._linear, module.forward)

    def record(self) -> None:
        """Record the next call."""
        self._records, self._call = True, None

    def recorded(self) -> LayerCall | None:
        """The call since `record`, if there was one; further calls are not recorded."""
        call = self._call
        self._records, self._call = False, None
        return call

    def repeat(self, call: LayerCall, num_tokens: int, cache: Cache) -> None:
        """Repeat a call for the first `num_tokens` of its tokens, with this cache, in which it changes the
        layer's states."""
        on_cpu = next(self._layer.parameters()).device.type == "cpu"
        step = 1 if on_cpu and num_tokens <= ONE_BY_ONE else num_tokens
        for begin in range(0, num_tokens, step):
            part = call.part(begin, begin + step, cache)
            self._repeated = iter(part.outputs)
            try:
                self._layer(*part.args, **part.kwargs)
            finally:
                self._repeated = None

    def _begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._records:
            # the cache is left out: it refers to the memory of all layers
            args = tuple([_CACHE if isinstance(value, Cache) else value for value in args])
            kwargs = {name: _CACHE if isinstance(value, Cache) else value for name, value in kwargs.items()}
            values = (*args, *kwargs.values())
            states = next(value for value in values if isinstance(value, Tensor) and value.ndim == 3)
            self._call = LayerCall(args, kwargs, states.shape[1])

    def _linear(self, forward: Callable[[Tensor], Tensor], states: Tensor) -> Tensor:
        if self._repeated is not None and (known := next(self._repeated, None)) is not None:
            return known
        output = forward(states)
        if self._records and (call := self._call) is not None:
            per_token = output.ndim == 3 and output.shape[1] == call.num_tokens <= MOST_OUTPUTS
            call.outputs.append(output if per_token else None)
        return output
