"""Forwards in which tokens may exit before the last layer.

Logits of a token that exited early are computed from its state at the exit. In later layers it costs nothing
and has no keys and values, so later tokens do not attend to it there; cache positions and position ids do not
change.

Letters: N tokens of all rows, k tokens that a layer runs over, L layers, D hidden size, F numbers recorded
for each token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from outpace.models.eager.attention import RowMasks
from outpace.models.eager.forward import Forward
from outpace.models.eager.forward_inputs import ForwardInputs
from outpace.models.eager.skipped_modules import check_attention, num_outputs
from outpace.models.forward.kv_cache import Planes, PlaneShape
from outpace.models.forward.outputs import ForwardOutputs
from outpace.models.forward.request import ForwardRequest
from outpace.models.slim.some_tokens import OnlyStores, SomeTokens, Stored, masks_of
from outpace.models.slim.token_records import TokenRecords, records_of


@dataclass
class Work:
    """What forwards have computed so far, in numbers of tokens."""

    tokens: int = 0  # tokens read
    layer_tokens: int = 0  # summed over the layers: tokens that ran through the layer
    stored_tokens: int = 0  # summed over the layers: tokens of which only keys and values were computed
    head_tokens: int = 0  # tokens to which the LM head was applied to decide about an exit


class PartialRun:
    """The tokens of one forward, and which of them exited."""

    def __init__(self, inputs: ForwardInputs, num_layers: int, records: Sequence[TokenRecords]) -> None:
        """`records`: per row, of this forward's tokens and of all earlier ones."""
        self.inputs, self.records = inputs, records
        self.sizes = [row.end - row.start for row in inputs.rows]
        self.num_tokens = sum(self.sizes)
        device = inputs.cache.device
        # number of first layers that have KV entries of the token
        self.depth = torch.full((self.num_tokens,), num_layers, device=device)
        self.live = torch.ones(self.num_tokens, dtype=torch.bool, device=device)
        self.everyone = torch.arange(self.num_tokens, device=device)
        self.running = self.everyone  # (k,) the tokens that the current layer runs over

    @property
    def all_live(self) -> bool:
        return bool(self.live.all())

    def leave(self, tokens: Tensor, depth: int, *, stored: bool) -> None:  # (k,) indices
        """Let these tokens exit after `depth` layers. `stored`: later layers store KV entries of them."""
        self.live[tokens] = False
        if not stored:
            self.depth[tokens] = depth

    def by_row(self, values: Tensor) -> tuple[Tensor, ...]:  # (N, ...) -> B × (n, ...)
        return values.split(self.sizes)

    def chosen(self, tokens: Tensor) -> list[Tensor]:  # (k,) -> B × (k_b,)
        """Per row the indices of these tokens among the row's own."""
        mask = torch.zeros_like(self.live)
        mask[tokens] = True
        return [part.nonzero()[:, 0] for part in self.by_row(mask)]

    def present(self, layer: int) -> list[Tensor]:
        """Per row, which cache positions have keys and values in this layer."""
        rows = zip(self.records, self.inputs.rows, self.by_row(self.depth), strict=True)
        return [torch.cat((records.depth[: row.start] > layer, own > layer)) for records, row, own in rows]


class PartialForward(Forward):
    """Forwards of a transformers model whose layers run only over tokens that have not exited. Subclasses
    decide after each layer which tokens exit (`after_layer`)."""

    record_size = 0  # F

    def __init__(self, whole: Forward, model: PreTrainedModel) -> None:
        """`whole`: the forwards of the whole model. ValueError for a model whose layers cannot run over a
        part of the tokens."""
        check_attention(whole)
        super().__init__(model)
        layers, name = self.captures.layers, type(model).__name__
        if layers is None:
            raise ValueError(f"{name} has no list of layers, so no token can exit after one of them")
        if whole.dense:
            raise ValueError(
                f"{name} has attention code of its own, which cannot leave out tokens: choose a model whose "
                "attention transformers can replace"
            )
        self.num_layers, self.work = self.captures.num_layers, Work()
        self.layers = list(layers)[: self.num_layers]
        self._num_outputs = num_outputs(self.model, self.layers, self.one_token())
        self.packs, self.dense = whole.packs, whole.dense
        self.device = whole.device
        self._now: PartialRun | None = None
        for index, layer in enumerate(self.layers):
            # no module around the layer, as models read attributes of their layers
            vars(layer)["forward"] = self._over_live_tokens(index, layer.forward)

    def planes_with_records(self, planes: Planes, hidden_dtype: torch.dtype) -> Planes:
        """The planes of keys and values and the planes of `TokenRecords`, which are committed, moved and
        copied together."""
        shape_of = [
            shape for shape, count in zip(planes.shapes, planes.counts, strict=True) for _ in range(count)
        ]
        layers = {layer: (shape_of[key], shape_of[value]) for layer, (key, value) in planes.of_layer.items()}
        device = planes.shapes[0].device
        layers[self.num_layers] = (
            PlaneShape(1, 2, torch.int64, device),  # depth and token id
            PlaneShape(1, self.record_size, hidden_dtype, device),
        )
        return Planes.of(layers)

    def after_layer(self, run: PartialRun, layer: int, before: Tensor, after: Tensor) -> None:
        """Decide which of the tokens `run.running` exit after this layer, given its inputs and outputs
        (k, D)."""
        raise NotImplementedError

    def at_end(self, run: PartialRun, states: Tensor) -> Tensor:  # (N, D) -> (N, D)
        """The states from which the logits of all tokens are computed."""
        return states

    def kept(self, run: PartialRun) -> Tensor | None:  # (N, F)
        """Numbers to record for decisions about later tokens, besides the depth; None: nothing new."""
        return None

    def keeps_entries(self) -> bool:
        """Whether tokens that exited early get keys and values in later layers."""
        return False

    def _run(self, inputs: ForwardInputs, request: ForwardRequest) -> ForwardOutputs:
        if not request.is_plain or any(row.two_way for row in request.rows):
            raise ValueError(
                f"layers of {type(self.model).__name__} that run over some of the tokens read token ids in "
                "causal order: use a method without early exits"
            )
        if request.want.attention:
            raise ValueError("tokens that exit early have no attention weights: use a method that needs none")
        cache = inputs.cache
        records = [records_of(cache, row.slot, row.end, self.num_layers) for row in inputs.rows]
        run = self._now = PartialRun(inputs, self.num_layers, records)
        try:
            outputs = super()._run(inputs, request)
        finally:
            self._now = None
        self.work.tokens += run.num_tokens
        kept = self.kept(run)
        ids = request.tokens.to(run.depth)
        for index, (row, record) in enumerate(zip(inputs.rows, records, strict=True)):
            record.depth[row.start : row.end] = run.by_row(run.depth)[index]
            record.tokens[row.start : row.end] = run.by_row(ids)[index]
            if kept is not None:
                record.kept[row.start : row.end] = run.by_row(kept)[index]
        return outputs

    @property
    def now(self) -> PartialRun | None:
        """The forward in progress."""
        return self._now

    def _over_live_tokens(self, layer: int, original: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*args: Any, **keywords: Any) -> Any:
            run = self._now
            if run is None:
                return original(*args, **keywords)
            states: Tensor = args[0] if args else keywords["hidden_states"]
            output = self._run_layer(run, layer, original, states, args, keywords)
            if layer < self.num_layers - 1:
                return output
            last = self.at_end(run, _states_of(output)[0])[None]
            return (last, *output[1:]) if isinstance(output, tuple) else last

        return forward

    def _run_layer(
        self,
        run: PartialRun,
        layer: int,
        original: Callable[..., Any],
        states: Tensor,  # (1, N, D)
        args: Sequence[Any],
        keywords: dict[str, Any],
    ) -> Any:
        """Run the layer over the live tokens; all other tokens keep their states."""
        is_whole = run.all_live
        live = run.everyone if is_whole else run.live.nonzero()[:, 0]
        if self.keeps_entries() and len(live) < run.num_tokens:
            run.running = (~run.live).nonzero()[:, 0]
            try:
                self._call(run, layer, original, OnlyStores, args, keywords)
            except Stored:
                self.work.stored_tokens += len(run.running)
        if not len(live):
            count = self._num_outputs[layer]
            return states if count is None else (states, *[None] * (count - 1))
        run.running = live
        output = self._call(run, layer, original, None if is_whole else SomeTokens, args, keywords)
        after = _states_of(output)
        whole = after
        if not is_whole:
            whole = states.clone()
            whole[0, live] = after[0]
        self.work.layer_tokens += len(live)
        self.after_layer(run, layer, states[0, live], after[0])
        return (whole, *output[1:]) if isinstance(output, tuple) else whole

    def _call(
        self,
        run: PartialRun,
        layer: int,
        original: Callable[..., Any],
        kind: type[SomeTokens] | None,  # None: over all tokens
        args: Sequence[Any],
        keywords: dict[str, Any],
    ) -> Any:
        """Run the layer over the tokens `run.running`."""
        tokens, whole = run.running, run.inputs
        chosen: list[Any] = [None] * len(whole.rows) if kind is None else run.chosen(tokens)
        inputs = whole if kind is None else kind(whole, tokens, chosen)
        present = run.present(layer)

        def given(value: Any) -> Any:
            if value is whole:
                return inputs
            if isinstance(value, RowMasks):
                return masks_of(value, inputs, chosen, present)
            if isinstance(value, tuple | list):
                return type(value)(given(item) for item in value)
            if kind is None or not isinstance(value, Tensor):
                return value
            # hidden states, position ids, rotary embeddings
            if value.ndim > 1 and value.shape[1] == run.num_tokens:
                return value[:, tokens]
            return value[tokens] if value.ndim == 1 and len(value) == run.num_tokens else value

        return original(*map(given, args), **{name: given(value) for name, value in keywords.items()})

    def share_of_products(self) -> float:
        """Multiplications by weights that the forwards so far have computed, those for decisions included, as
        a share of all layers and one LM head for every token; 0 before the first forward. Attention's own
        products do not count: they are few unless texts are long compared to the hidden size."""
        head = self.model.get_output_embeddings()
        per_head = sum(parameter.numel() for parameter in head.parameters()) if head is not None else 0
        sizes = [sum(parameter.numel() for parameter in layer.parameters()) for layer in self.layers]
        per_layer, work = sum(sizes) / len(sizes), self.work
        # keys and values alone take the query, key and value projections, a quarter of a layer or less
        layers = per_layer * (work.layer_tokens + work.stored_tokens / 4)
        whole = work.tokens * (sum(sizes) + per_head)
        return (layers + per_head * (work.tokens + work.head_tokens)) / whole if whole else 0.0

    def linear_maps(self, first: int) -> Iterator[nn.Module]:
        """The linear maps of the layers from `first` on."""
        from transformers.pytorch_utils import Conv1D

        for layer in self.layers[first:]:
            yield from (module for module in layer.modules() if isinstance(module, nn.Linear | Conv1D))


def _states_of(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output
