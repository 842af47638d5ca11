"""A recurrent layer of a model: several rows in one forward, and repeated calls for accepted draft tokens.

Most of the layer's time is spent in its linear layers, whose output at a token depends on that token alone.
Linear layers that read the layer's input are run once for all rows. The outputs of all linear layers are
recorded. A call that is repeated for the accepted draft tokens reuses the recorded outputs and computes only
convolutions and the recurrence, which depend on the state.

Letters: n tokens of one row, N of all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

# outputs of linear layers are recorded for calls of at most MOST_OUTPUTS tokens: a prompt's need much memory
MOST_OUTPUTS = 64
# Most tokens that a CPU repeats one by one. transformers' code of Qwen3.5 takes 3 ms per layer for several
# tokens, which it pads to 64, and 0.3 ms for one (531M parameters, bfloat16, 2 cores).
ONE_BY_ONE = 8


@dataclass(frozen=True, eq=False)
class LayerCall:
    """A call of a recurrent layer for n tokens."""

    args: tuple[Any, ...]  # with `CACHE` in place of the cache, which would keep all layers' memory alive
    kwargs: Mapping[str, Any]
    num_tokens: int
    # outputs of its linear layers (nn.Linear), in the order in which they were run; None: not recorded
    outputs: list[Tensor | None] = field(default_factory=list)

    @staticmethod
    def of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[LayerCall, Cache]:
        """The call with these arguments, and the cache among them."""
        [cache] = [value for value in (*args, *kwargs.values()) if isinstance(value, Cache)]
        args = tuple([CACHE if value is cache else value for value in args])
        kwargs = {name: CACHE if value is cache else value for name, value in kwargs.items()}
        return LayerCall(args, kwargs, _hidden(args, kwargs).shape[1]), cache

    @property
    def hidden(self) -> Tensor:  # (1, n, D)
        """The layer's input."""
        return _hidden(self.args, self.kwargs)

    def part(self, begin: int, end: int) -> LayerCall:
        """The same call for the tokens begin to end - 1 only."""
        cut = partial(_cut, num_tokens=self.num_tokens, begin=begin, end=end)
        kwargs = {name: cut(value) for name, value in self.kwargs.items()}
        return LayerCall(cut(self.args), kwargs, end - begin, [cut(output) for output in self.outputs])

    def run(self, layer: Callable[..., Any], cache: Cache) -> Any:
        """Call the layer, with this cache."""
        args = [cache if value is CACHE else value for value in self.args]
        kwargs = {name: cache if value is CACHE else value for name, value in self.kwargs.items()}
        return layer(*args, **kwargs)


CACHE = object()


def _cut(value: Any, num_tokens: int, begin: int, end: int) -> Any:
    if isinstance(value, tuple):
        return tuple([_cut(item, num_tokens, begin, end) for item in value])
    per_token = isinstance(value, Tensor) and value.ndim > 1 and value.shape[1] == num_tokens
    return value[:, begin:end] if per_token else value


def _hidden(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    values = (*args, *kwargs.values())
    return next(value for value in values if isinstance(value, Tensor) and value.ndim == 3)


@dataclass(frozen=True, eq=False)
class RowReading:
    """The tokens and states of one row for the recurrent layers in a forward."""

    begin: int  # index of its first token among the tokens of all rows
    end: int  # index after its last token
    states: list[Any]  # by layer, as transformers' cache has them, changed in place; None: no states
    calls: dict[int, LayerCall] = field(default_factory=dict)  # layer -> its call for this row


class RecurrentLayer:
    """One recurrent layer of a private copy of a model. Its `forward` and those of its linear layers are
    replaced by methods of this class. Not for several threads at once."""

    def __init__(self, index: int, layer: nn.Module) -> None:
        self._index, self._layer = index, layer
        self.rows: Sequence[RowReading] = ()  # of the forward in progress; (): one row, not recorded
        self._repeated: Iterator[Tensor | None] | None = None  # linear outputs of the call that is repeated
        # in a forward: the call for all rows, the linear outputs of its input, and the row in progress
        self._whole: LayerCall | None = None
        self._shared: dict[nn.Linear, Tensor] = {}
        self._row: RowReading | None = None
        # `forward` is replaced, not the module: other code reads the attributes of these modules
        vars(layer)["forward"] = partial(self._read, layer.forward)
        for module in layer.modules():
            if isinstance(module, nn.Linear):
                vars(module)["forward"] = partial(self._linear, module, module.forward)

    def repeat(self, call: LayerCall, num_tokens: int, cache: Cache) -> None:
        """Repeat a call for the first `num_tokens` of its tokens; changes the layer's states in `cache`."""
        on_cpu = next(self._layer.parameters()).device.type == "cpu"
        step = 1 if on_cpu and num_tokens <= ONE_BY_ONE else num_tokens
        for begin in range(0, num_tokens, step):
            part = call.part(begin, begin + step)
            self._repeated = iter(part.outputs)
            try:
                part.run(self._layer, cache)
            finally:
                self._repeated = None

    def in_parts(self, call: LayerCall, sizes: Sequence[int], cache: Cache) -> list[Tensor]:
        """The layer's outputs for all tokens of a call, read in parts of these sizes."""
        outputs, end = list[Any](), 0
        for size in sizes:
            begin, end = end, end + size
            outputs.append(call.part(begin, end).run(self._layer, cache))
        joined = _joined(outputs, sizes)
        outputs = joined if isinstance(joined, tuple) else (joined,)
        return [output for output in outputs if isinstance(output, Tensor)]

    def _read(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The layer's forward: row by row, each with its own states."""
        if not self.rows:
            return forward(*args, **kwargs)
        self._whole, cache = LayerCall.of(args, kwargs)
        outputs: list[Any] = []
        try:
            for row in self.rows:
                self._row = row
                call = row.calls[self._index] = self._whole.part(row.begin, row.end)
                cache.layers = row.states
                outputs.append(call.run(forward, cache))
        finally:
            self._whole = self._row = None
            self._shared.clear()
        return _joined(outputs, [row.end - row.begin for row in self.rows])

    def _linear(self, linear: nn.Linear, forward: Callable[[Tensor], Tensor], states: Tensor) -> Tensor:
        if self._repeated is not None and (known := next(self._repeated, None)) is not None:
            return known
        row, whole = self._row, self._whole
        if row is None or whole is None:
            return forward(states)
        call = row.calls[self._index]
        if states is call.hidden:
            if linear not in self._shared:
                self._shared[linear] = forward(whole.hidden)
            output = self._shared[linear][:, row.begin : row.end]
        else:
            output = forward(states)
        per_token = output.ndim == 3 and output.shape[1] == call.num_tokens <= MOST_OUTPUTS
        # one row's part is copied: a view would keep the outputs of all rows in memory
        call.outputs.append((output if len(self.rows) == 1 else output.clone()) if per_token else None)
        return output


def _joined(outputs: Sequence[Any], sizes: Sequence[int]) -> Any:
    """Concatenate the outputs for consecutive parts of `sizes[i]` tokens: tensors (1, n, ...), or tuples of
    them. Values that are not per token are taken from the first part."""
    if len(outputs) == 1:
        return outputs[0]
    if isinstance(outputs[0], tuple):
        return tuple([_joined(items, sizes) for items in zip(*outputs, strict=True)])
    shapes = [output.shape[1:2] if isinstance(output, Tensor) else () for output in outputs]
    return torch.cat(list(outputs), 1) if shapes == [(size,) for size in sizes] else outputs[0]
