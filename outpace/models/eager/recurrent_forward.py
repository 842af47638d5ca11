"""Forwards of models with recurrent layers, such as Qwen3.5, LFM2, Falcon-H1, Granite 4 and Mamba 2.

Letters: V vocabulary size.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, LinearAttentionLayer

from outpace.models.eager.forward import Forward
from outpace.models.eager.forward_inputs import ForwardInputs
from outpace.models.eager.probe import ProbeCache
from outpace.models.eager.recurrent_cache import Record, RecurrentCache
from outpace.models.eager.recurrent_layer import (
    LayerCall,
    RecurrentLayer,
    RowReading,
    Siblings,
    TreeReading,
)
from outpace.models.eager.recurrent_states import LayerStates, States, copied, fresh_states
from outpace.models.eager.recurrent_tree import chain_as_tree, tree_reading
from outpace.models.eager.tree_product import NodesOfTree
from outpace.models.forward.outputs import ForwardOutputs
from outpace.models.forward.request import ForwardRequest
from outpace.models.forward.row_inputs import RowInputs
from outpace.models.unsupported import own_states

# relative differences that `check` attributes to rounding: of one layer's outputs in 16 bits and in more, and
# of logits, where the rounding of many layers adds up, and other experts may be chosen
ROUNDING_16, ROUNDING, ROUNDING_OF_LOGITS = 0.05, 1e-4, 0.5


class RecurrentForward(Forward):
    """`Forward` for a model of which some or all layers are recurrent. Its caches are `RecurrentCache`s."""

    keeps_states = True
    cache_type = RecurrentCache

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        self._fresh = fresh_states(model)
        self._layers: dict[int, RecurrentLayer] = {}
        self.products: Collection[int] = ()  # layers that read trees in one product; `probe` sets it

    def trial_cache(self, *, tuples: bool = False) -> ProbeCache:
        return RecurrentProbe(self._by_layer(copied(self._fresh)), tuples=tuples)

    def _by_layer(self, states: LayerStates) -> list[LinearAttentionLayer | None]:
        """The states as the list that transformers' Cache has; None for layers without states."""
        return [states.get(index) for index in range(max(self._fresh) + 1)]

    @torch.no_grad()
    def probe(self) -> None:
        """As `Forward.probe`; also finds the recurrent layers. ValueError if reading a text in parts changes
        the outputs."""
        modules = self._find_layers()
        self._layers = {index: RecurrentLayer(index, layer) for index, layer in modules.items()}
        super().probe()
        self.packs = self.packs or not self.planes.of_layer  # without attention layers no masks are needed
        self.planes = replace(self.planes, state_bytes=self.check())

    def _find_layers(self) -> dict[int, nn.Module]:
        """Layer -> the innermost module that updates its states."""
        running, updating = list[nn.Module](), dict[int, nn.Module]()

        def enter(module: nn.Module, inputs: Any) -> None:
            running.append(module)

        def leave(module: nn.Module, inputs: Any, output: Any) -> None:
            running.pop()

        cache = RecurrentProbe(
            self._by_layer(copied(self._fresh)), lambda index: updating.setdefault(index, running[-1])
        )
        modules = list(self.model.modules())
        hooks = [module.register_forward_pre_hook(enter) for module in modules]
        hooks += [module.register_forward_hook(leave) for module in modules]
        token = torch.zeros(1, 1, dtype=torch.int64, device=self.device)
        try:
            self.model(**self._arguments(token, token, cache))
        except (AttributeError, TypeError, ValueError) as error:
            raise own_states(self.model) from error
        finally:
            for hook in hooks:
                hook.remove()
        if updating.keys() != self._fresh.keys():
            raise own_states(self.model)
        return updating

    @contextmanager
    def _reading(self, rows: Sequence[RowReading]) -> Iterator[None]:
        """Context manager around a forward over these rows."""
        for layer in self._layers.values():
            layer.rows = rows
        try:
            yield
        finally:
            for layer in self._layers.values():
                layer.rows = ()

    def _run(self, inputs: ForwardInputs, request: ForwardRequest) -> ForwardOutputs:
        cache = inputs.cache
        if any(row.two_way for row in request.rows):
            raise ValueError(
                f"{type(self.model).__name__} has recurrent layers, which read tokens in order: no block of "
                "tokens can see one another"
            )
        assert isinstance(cache, RecurrentCache)
        before, after, readings, end = list[States](), list[States](), list[RowReading](), 0
        for row in inputs.rows:
            begin, end = end, end + row.end - row.start
            read = chain_as_tree(row) if self._chains_as_trees else row
            tree = tree_reading(read, cache.records(row.slot), self.products)
            last = row.end if tree is None else row.base + 1  # states after this many tokens are kept
            before.append(self._states(cache, row.slot, min(row.start, last)))
            after.append(States(last, copied(before[-1].layers)))
            readings.append(RowReading(begin, end, self._by_layer(after[-1].layers), tree))
        with self._reading(readings):
            outputs = super()._run(inputs, request)
        for row, reading, old, new in zip(inputs.rows, readings, before, after, strict=True):
            known = [old, new] if old.position < new.position else [old]
            cache.keep(row.slot, known, Record(row.start, row.end, reading.calls))
        return outputs

    @property
    def _chains_as_trees(self) -> bool:
        """Whether recurrent layers read a drafted chain as they read a tree, in one product per layer: where
        all can, on a CPU. There transformers' own code pads a few tokens to a whole chunk, and a step of a
        model of eight layers of Mamba 2 takes four times as long."""
        return len(self.products) == len(self._layers) and self.device.type == "cpu"

    def _states(self, cache: RecurrentCache, slot: int, position: int) -> States:
        """The states after the first `position` tokens of a slot."""
        last = cache.states_before(slot, position)
        if last is None:
            assert position == 0, f"the states after {position} tokens are not known"
            return States(0, copied(self._fresh))
        if last.position == position:
            return last
        states = States(position, copied(last.layers))
        view = StatesAlone(self._by_layer(states.layers))
        for record in cache.records(slot):
            begin, end = max(record.start, last.position), min(record.end, position)
            for index, layer in self._layers.items():
                part = begin - record.start, end - record.start
                layer.repeat(record.calls[index], *part, view, in_product=index in self.products)
        return states

    def check(self) -> int:
        """Memory of the states of one text, in bytes. ValueError if reading a text in parts, some tokens of
        which are discarded, changes the outputs or states of a recurrent layer, or the logits. Sets
        `scores_trees` to whether siblings have the outputs that they have in chains."""
        cache = RecurrentCache(self.planes, 2, 8, self.device)
        vocab = self.model.config.get_text_config().vocab_size
        text = torch.arange(8) * 7 % vocab
        whole = self._check_read(cache, 0, 0, text)
        for start, end in ((0, 3), (3, 7), (5, 7)):
            self._check_read(cache, 1, start, text[start:end])
        end, [record] = cache.states_before(0, 8), cache.records(0)
        assert end is not None
        rounding = ROUNDING_16 if self.model.dtype.itemsize == 2 else ROUNDING
        last = self._check_read(cache, 1, 7, text[7:])
        if not _alike(whole, last, ROUNDING_OF_LOGITS) or not all(
            _all_alike(
                self._layer_tensors(index, call, (8,)), self._layer_tensors(index, call, (5, 2, 1)), rounding
            )
            for index, call in record.calls.items()
        ):
            raise ValueError(
                f"{type(self.model).__name__} computes something else when a text is read in parts, as "
                "decoding does: choose another model, or a version of transformers in which it does not"
            )
        try:
            self.scores_trees = self._reads_trees(cache, text, record.calls, rounding)
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):
            self.scores_trees = False  # a batch is more than the code of such a layer can read
        self.products = frozenset(
            [index for index, call in record.calls.items() if self._reads_in_product(index, call, rounding)]
        )
        return end.num_bytes

    def _check_read(
        self, cache: RecurrentCache, slot: int, start: int, tokens: Tensor, visible: Tensor | None = None
    ) -> Tensor:  # (V,)
        """The logits of the last token. `visible`: that of a tree whose root is the first token."""
        end = start + len(tokens)
        cache.reserve(slot, end)
        cache.lengths[slot] = start
        depths = None if visible is None else visible.sum(1) - 1
        row = RowInputs(slot, start, end, start, depths, visible, end - 1)
        logits = self.read(ForwardRequest([row], [1], tokens), cache).logits
        assert logits is not None
        return logits[0]

    def _layer_tensors(self, index: int, call: LayerCall, sizes: Sequence[int]) -> list[Tensor]:
        """The outputs of a recurrent layer that reads the tokens of a call in parts of these sizes, and its
        states after them."""
        states = copied(self._fresh)
        outputs = self._layers[index].in_parts(call, sizes, StatesAlone(self._by_layer(states)))
        return [*outputs, *_known(states[index])]

    def _reads_trees(
        self, cache: RecurrentCache, text: Tensor, calls: Mapping[int, LayerCall], rounding: float
    ) -> bool:
        """Whether the layers read a tree as they read its paths: a root with two children, the second
        of which has one too. `calls`: of layers that have read `text` (8,)."""
        path, beside = torch.tensor([0, 2, 3]), torch.tensor([0, 1])
        for index, call in calls.items():
            read = self._small_tree(index, call)
            for tokens in (path, beside):
                states = StatesAlone(self._by_layer(copied(self._fresh)))
                chain = self._layers[index].in_parts(call.part(tokens), [1] * len(tokens), states)
                if not _all_alike(chain, [each[:, tokens.to(each.device)] for each in read], rounding):
                    return False
        visible = torch.ones(4, 4, dtype=torch.bool).tril()
        visible[2:, 1] = False
        self._check_read(cache, 1, 0, text[:4], visible)  # raises an error if the model cannot read a tree
        return True

    def _small_tree(self, index: int, call: LayerCall, *, in_product: bool = False) -> list[Tensor]:
        """The outputs of a recurrent layer for the first four tokens of a call, of which the second and the
        third are children of the first, and the last one is a child of the third."""
        both, one = torch.tensor([1, 2]), torch.tensor([3])
        levels = [[Siblings(both, torch.zeros_like(both))], [Siblings(one, torch.ones_like(one))]]
        products, nodes = ([index], NodesOfTree([-1, -1, 1])) if in_product else ((), None)
        tree = TreeReading(1, levels, torch.arange(4), nodes, products)
        row = RowReading(0, 4, self._by_layer(copied(self._fresh)), tree)
        return self._layers[index].by_row(call.part(slice(4)), row, StatesAlone(row.states))

    def _reads_in_product(self, index: int, call: LayerCall, rounding: float) -> bool:
        """Whether reading in one product gives what reading level by level and token by token gives: the
        layer's outputs for a tree of four nodes, and its states after four tokens."""
        if not self.scores_trees or not self._layers[index].product:
            return False
        try:
            by_level, at_once = (
                [*self._small_tree(index, call, in_product=way), *self._repeated(index, call, in_product=way)]
                for way in (False, True)
            )
        except (AttributeError, RuntimeError, TypeError, ValueError):
            return False
        return _all_alike(by_level, at_once, rounding)

    def _repeated(self, index: int, call: LayerCall, *, in_product: bool) -> list[Tensor]:
        """The states of a recurrent layer after the first four tokens of a call, the last three of which are
        read again together."""
        states = copied(self._fresh)
        view = StatesAlone(self._by_layer(states))
        self._layers[index].repeat(call, 0, 1, view)
        self._layers[index].repeat(call, 1, 4, view, in_product=in_product)
        return _known(states[index])


def _known(states: LinearAttentionLayer) -> list[Tensor]:
    """The tensors of a layer's states."""
    kept = (*states.conv_states.values(), *states.recurrent_states.values())
    return [tensor for tensor in kept if tensor is not None]


def _all_alike(tensors: Sequence[Tensor], others: Sequence[Tensor], rounding: float) -> bool:
    return all(_alike(one, other, rounding) for one, other in zip(tensors, others, strict=True))


def _alike(tensor: Tensor, other: Tensor, rounding: float) -> bool:
    """Whether the relative difference of these tensors is rounding."""
    limits = torch.finfo(tensor.dtype)
    # the smallest numbers of float16 have few bits
    smallest = 8 * limits.tiny * limits.eps * tensor.numel() ** 0.5
    wide = tensor.double()
    return bool((wide - other.double()).norm() <= rounding * wide.norm() + smallest)


class RecurrentProbe(ProbeCache):
    """A `ProbeCache` with states of recurrent layers."""

    def __init__(
        self,
        layers: Sequence[LinearAttentionLayer | None],
        on_update: Callable[[int], object] | None = None,  # called with each layer that updates its states
        *,
        tuples: bool = False,
    ) -> None:
        super().__init__(tuples=tuples)
        self.layers, self._on_update = list(layers), on_update

    def update_conv_state(self, conv_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Tensor:
        if self._on_update is not None:
            self._on_update(layer_idx)
        return super().update_conv_state(conv_states, layer_idx, *args, **kwargs)

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> Tensor:
        if self._on_update is not None:
            self._on_update(layer_idx)
        return super().update_recurrent_state(recurrent_states, layer_idx, *args, **kwargs)


class StatesAlone(Cache):
    """A cache for running recurrent layers without the rest of the model."""

    def __init__(self, layers: Sequence[LinearAttentionLayer | None]) -> None:
        # transformers' Cache.__init__ requires a layer object at every index, so it is not called
        self.layers: list[Any] = list(layers)
