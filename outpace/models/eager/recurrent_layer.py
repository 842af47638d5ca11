"""A recurrent layer of a model: several rows and trees in one forward, and repeated calls for accepted draft
tokens.

Most of the layer's time is spent in its linear layers, whose output at a token depends on that token alone.
Linear layers that read the layer's input are run once for all rows. The outputs of all linear layers are
recorded. A call that is repeated for the accepted draft tokens reuses the recorded outputs and computes only
convolutions and the recurrence, which depend on the state.

Letters: n tokens of one row, N of all rows, m nodes of one level of a tree.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, LinearAttentionLayer

from outpace.models.eager.delta_product import DELTA_RULE
from outpace.models.eager.mamba2_product import MAMBA2
from outpace.models.eager.recurrent_states import chosen, joined
from outpace.models.eager.tree_product import NodesOfTree

# outputs of linear layers are recorded for calls of at most MOST_OUTPUTS tokens: a prompt's need much memory
MOST_OUTPUTS = 64
# Most tokens that a CPU repeats one by one. transformers' code of Qwen3.5 takes 3 ms per layer for several
# tokens, which it pads to 64, and 0.3 ms for one (531M parameters, bfloat16, 2 cores).
ONE_BY_ONE = 8


@dataclass(frozen=True, eq=False)
class LayerCall:
    """A call of a recurrent layer for n tokens of a text, or for m texts of one token each."""

    args: tuple[Any, ...]  # with `CACHE` in place of the cache, which would keep all layers' memory alive
    kwargs: Mapping[str, Any]
    num_tokens: int  # n; m for texts of one token
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
    def hidden(self) -> Tensor:  # (1, n, D), or (m, 1, D)
        """The layer's input."""
        return _hidden(self.args, self.kwargs)

    def part(self, tokens: slice | Tensor) -> LayerCall:  # (n',) int64
        """The same call for some of the tokens only."""
        return self._changed(partial(_some, tokens=tokens))

    def side_by_side(self, tokens: Tensor) -> LayerCall:  # (m,) int64
        """A call for these tokens as texts of one token each."""
        return self._changed(partial(_side_by_side, tokens=tokens))

    def _changed(self, change: Callable[[Tensor], Tensor]) -> LayerCall:
        changed = partial(_changed, shape=(1, self.num_tokens), change=change)
        args, kwargs = changed(self.args), {name: changed(value) for name, value in self.kwargs.items()}
        outputs = [changed(output) for output in self.outputs]
        return LayerCall(args, kwargs, _hidden(args, kwargs).shape[:2].numel(), outputs)

    def run(self, layer: Callable[..., Any], cache: Cache) -> Any:
        """Call the layer, with this cache."""
        args = [cache if value is CACHE else value for value in self.args]
        kwargs = {name: cache if value is CACHE else value for name, value in self.kwargs.items()}
        return layer(*args, **kwargs)


CACHE = object()


def _changed(value: Any, shape: tuple[int, ...], change: Callable[[Tensor], Tensor]) -> Any:
    """`value` with its tensors that begin with this shape, which hold something for each token, changed."""
    if isinstance(value, tuple):
        return tuple([_changed(item, shape, change) for item in value])
    return change(value) if isinstance(value, Tensor) and value.shape[:2] == shape else value


def _hidden(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    values = (*args, *kwargs.values())
    return next(value for value in values if isinstance(value, Tensor) and value.ndim == 3)


@dataclass(frozen=True, eq=False)
class Siblings:
    """Nodes of one level of a tree, whose parents are in the level before, or the root."""

    tokens: Tensor  # (m,) int64 indices of the nodes among the row's tokens in the forward that reads them
    parents: Tensor  # (m,) int64 indices among the states of the level before
    # layer -> the call of an earlier forward that has read these nodes; None: this forward reads them
    calls: Mapping[int, LayerCall] | None = None


@dataclass(frozen=True, eq=False)
class TreeReading:
    """How recurrent layers read the tree of one row: tokens up to the root in one call, then each level."""

    trunk: int  # number of tokens up to the root; 0 if an earlier forward has read it
    levels: Sequence[Sequence[Siblings]]
    places: Tensor  # (n,) int64 place of each token of the row in the order of trunk and levels
    # the nodes below the root in that order; None: earlier forwards have read some of them
    nodes: NodesOfTree | None = None
    products: Collection[int] = ()  # the layers that read these nodes in one product


@dataclass(frozen=True, eq=False)
class RowReading:
    """The tokens and states of one row for the recurrent layers in a forward."""

    begin: int  # index of its first token among the tokens of all rows
    end: int  # index after its last token
    # by layer, as transformers' cache has them, changed in place, but not by nodes below a root; None: no
    # states
    states: list[Any]
    tree: TreeReading | None = None  # None: a chain
    calls: dict[int, LayerCall] = field(default_factory=dict)  # layer -> its call for this row


class RecurrentLayer:
    """One recurrent layer of a private copy of a model. Its `forward` and those of its linear layers are
    replaced by methods of this class. Not for several threads at once."""

    def __init__(self, index: int, layer: nn.Module) -> None:
        self._index, self._layer = index, layer
        # how it may read trees at once; None: level by level
        kinds = (MAMBA2, DELTA_RULE)
        self.product = next((product for product in kinds if product.num_projections(layer)), None)
        self.rows: Sequence[RowReading] = ()  # of the forward in progress; (): one row, not recorded
        self._repeated: Iterator[Tensor | None] | None = None  # linear outputs of the call that is repeated
        # in a forward: the call for all rows, the linear outputs of its input, and the call in progress for a
        # part of the tokens, with the function that takes this part of a linear output for all of them
        self._whole: LayerCall | None = None
        self._shared: dict[nn.Linear, Tensor] = {}
        self._part: tuple[LayerCall, Callable[[Tensor], Tensor]] | None = None
        # `forward` is replaced, not the module: other code reads the attributes of these modules
        vars(layer)["forward"] = partial(self._read, layer.forward)
        for module in layer.modules():
            if isinstance(module, nn.Linear):
                vars(module)["forward"] = partial(self._linear, module, module.forward)

    def repeat(
        self, call: LayerCall, begin: int, end: int, cache: Cache, *, in_product: bool = False
    ) -> None:
        """Repeat a call for its tokens begin to end - 1; changes the layer's states in `cache`. `in_product`:
        at once from what the linear layers gave that read the layer's input, if that was recorded."""
        states: Any = cache.layers[self._index]
        if in_product and self.product and begin < end and states.has_previous_state[0]:
            number = self.product.num_projections(self._layer)
            known = [output[:, begin:end] for output in call.outputs[:number] if output is not None]
            if len(known) == number:
                self.product.follow(self._layer, states, known)
                return
        on_cpu = next(self._layer.parameters()).device.type == "cpu"
        step = 1 if on_cpu and end - begin <= ONE_BY_ONE else end - begin
        for first in range(begin, end, step):
            self._repeat(call.part(slice(first, first + step)), self._layer, cache)

    def _repeat(self, call: LayerCall, forward: Callable[..., Any], cache: Cache) -> None:
        self._repeated = iter(call.outputs)
        try:
            call.run(forward, cache)
        finally:
            self._repeated = None

    def in_parts(self, call: LayerCall, sizes: Sequence[int], cache: Cache) -> list[Tensor]:
        """The layer's outputs for all tokens of a call, read in parts of these sizes."""
        outputs, end = list[Any](), 0
        for size in sizes:
            begin, end = end, end + size
            outputs.append(call.part(slice(begin, end)).run(self._layer, cache))
        return _tensors(_joined(outputs, sizes))

    def by_row(self, call: LayerCall, row: RowReading, cache: Cache) -> list[Tensor]:
        """The layer's outputs for all tokens of a call, read as those of this row."""
        self.rows = (row,)
        try:
            return _tensors(call.run(self._layer, cache))
        finally:
            self.rows = ()

    def _read(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The layer's forward: row by row, each with its own states."""
        if not self.rows:
            return forward(*args, **kwargs)
        self._whole, cache = LayerCall.of(args, kwargs)
        try:
            outputs = [self._read_row(forward, row, cache) for row in self.rows]
        finally:
            self._whole = None
            self._shared.clear()
        return _joined(outputs, [row.end - row.begin for row in self.rows])

    def _read_row(self, forward: Callable[..., Any], row: RowReading, cache: Cache) -> Any:
        assert self._whole is not None
        tokens = slice(row.begin, row.end)
        call = self._whole.part(tokens)
        row.calls[self._index] = call
        if row.tree is not None:
            return self._read_tree(forward, row, row.tree, cache)
        cache.layers = row.states
        return self._run(forward, call, partial(_some, tokens=tokens), cache)

    def _read_tree(
        self, forward: Callable[..., Any], row: RowReading, tree: TreeReading, cache: Cache
    ) -> Any:
        """The root and the tokens before it with the row's states, then the nodes below it: in one product,
        or each level with copies of its parents' states."""
        assert self._whole is not None
        whole, call, states = self._whole, row.calls[self._index], row.states[self._index]
        parts, outputs = list[LayerCall](), list[Any]()

        def read(
            part: LayerCall, take: Callable[[Tensor], Tensor], forward: Callable[..., Any] = forward
        ) -> None:
            output = self._run(forward, part, take, cache)
            parts.append(part)
            outputs.append(_changed(output, part.hidden.shape[:2], _in_line))

        if tree.trunk:
            tokens = slice(row.begin, row.begin + tree.trunk)
            cache.layers = row.states
            read(whole.part(tokens), partial(_some, tokens=tokens))
        in_product = tree.nodes is not None and self._index in tree.products
        if tree.nodes is not None and in_product:
            tokens = row.begin + torch.cat([siblings.tokens for level in tree.levels for siblings in level])
            product = partial(self._product, tree.nodes, states)
            read(whole.part(tokens), partial(_some, tokens=tokens), product)
        for level in () if in_product else tree.levels:
            after = list[LinearAttentionLayer]()
            for siblings in level:
                after.append(chosen(states, siblings.parents))
                layers: list[Any] = [None] * self._index
                cache.layers = [*layers, after[-1]]
                if siblings.calls is None:
                    tokens = row.begin + siblings.tokens
                    read(whole.side_by_side(tokens), partial(_side_by_side, tokens=tokens))
                else:
                    earlier = siblings.calls[self._index]
                    self._repeat(earlier.side_by_side(siblings.tokens), forward, cache)
            states = joined(after)
        if call.num_tokens <= MOST_OUTPUTS:
            for together in zip(*(part.outputs for part in parts), strict=False):
                known = [_in_line(output) for output in together if output is not None]
                complete = len(known) == len(parts)
                call.outputs.append(_some(torch.cat(known, 1), tree.places) if complete else None)
        joined_outputs = _joined(outputs, [part.num_tokens for part in parts])
        return _changed(joined_outputs, (1, call.num_tokens), partial(_some, tokens=tree.places))

    def _product(self, tree: NodesOfTree, states: LinearAttentionLayer, *args: Any, **kwargs: Any) -> Tensor:
        assert self.product is not None
        return self.product.outputs(self._layer, tree, states, _hidden(args, kwargs))

    def _run(
        self, forward: Callable[..., Any], call: LayerCall, take: Callable[[Tensor], Tensor], cache: Cache
    ) -> Any:
        """Run a call for a part of the forward's tokens. `take`: from a linear output of all tokens, what
        belongs to this part."""
        self._part = call, take
        try:
            return call.run(forward, cache)
        finally:
            self._part = None

    def _linear(self, linear: nn.Linear, forward: Callable[[Tensor], Tensor], states: Tensor) -> Tensor:
        if self._repeated is not None and (known := next(self._repeated, None)) is not None:
            return known
        if self._part is None or self._whole is None:
            return forward(states)
        call, take = self._part
        if states is call.hidden:
            if linear not in self._shared:
                self._shared[linear] = forward(self._whole.hidden)
            output = take(self._shared[linear])
        else:
            output = forward(states)
        per_token = output.shape[:2] == call.hidden.shape[:2] and call.num_tokens <= MOST_OUTPUTS
        # one row's part is copied: a view would keep the outputs of all rows in memory
        call.outputs.append((output if len(self.rows) == 1 else output.clone()) if per_token else None)
        return output


def _some(value: Tensor, tokens: slice | Tensor) -> Tensor:  # (1, n, ...) -> (1, n', ...)
    return value[:, tokens if isinstance(tokens, slice) else tokens.to(value.device)]


def _side_by_side(value: Tensor, tokens: Tensor) -> Tensor:  # (1, n, ...) -> (m, 1, ...)
    return _some(value, tokens).transpose(0, 1)


def _in_line(value: Tensor) -> Tensor:  # (m, 1, ...) -> (1, m, ...); (1, n, ...) stays as it is
    return value.transpose(0, 1) if value.shape[1] == 1 else value


def _tensors(outputs: Any) -> list[Tensor]:
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return [output for output in outputs if isinstance(output, Tensor)]


def _joined(outputs: Sequence[Any], sizes: Sequence[int]) -> Any:
    """Concatenate the outputs for consecutive parts of `sizes[i]` tokens: tensors (1, n, ...), or tuples of
    them. Values that are not per token are taken from the first part."""
    if len(outputs) == 1:
        return outputs[0]
    if isinstance(outputs[0], tuple):
        return tuple([_joined(items, sizes) for items in zip(*outputs, strict=True)])
    shapes = [output.shape[1:2] if isinstance(output, Tensor) else () for output in outputs]
    return torch.cat(list(outputs), 1) if shapes == [(size,) for size in sizes] else outputs[0]
