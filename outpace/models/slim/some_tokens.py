"""Inputs of a layer that runs over a part of a forward's tokens.

Letters: N tokens of all rows, n tokens of one row, T cache positions of one row, K heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from outpace.models.eager.attention import RowMasks
from outpace.models.eager.eight_bits import rounded
from outpace.models.eager.forward_inputs import ForwardInputs, RowMask
from outpace.models.forward.row_inputs import RowInputs


class SomeTokens(ForwardInputs):
    """The KV cache object of a layer that runs over a part of a forward's tokens: writes their keys and
    values to their cache positions, which need not be consecutive."""

    def __init__(self, whole: ForwardInputs, tokens: Tensor, chosen: Sequence[Tensor]) -> None:
        """`tokens`: (k,) indices among the forward's tokens; `chosen`: the same per row, as indices among the
        row's tokens. Rows without any are left out."""
        pairs = [(row, own) for row, own in zip(whole.rows, chosen, strict=True) if len(own)]
        # rows of this many tokens: attention divides the queries by their lengths
        rows = [RowInputs(row.slot, row.end - len(own), row.end, row.base) for row, own in pairs]
        super().__init__(whole.cache, rows, attention=whole.attention)
        self._places = [row.start + own for row, own in pairs]
        self._positions, self._start = whole.positions()[tokens], whole.rows[0].start

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Any, Any]:
        """Store a layer's keys and values (1, K, k, D); return those at all cache positions of each row."""
        key, value = self._planes_of[layer_idx]
        if not self._reads:
            self._bind()
        if self.cache.in_8_bits:
            key_states, value_states = rounded(key_states), rounded(value_states)
        for plane, states in ((key, key_states), (value, value_states)):
            rows = zip(self._reads, self._places, states.split(self._sizes, 2), strict=True)
            for reads, places, part in rows:
                reads[plane].index_copy_(2, places.to(part.device), part)
        if self._one:
            return self._reads[0][key], self._reads[0][value]
        return tuple(reads[key] for reads in self._reads), tuple(reads[value] for reads in self._reads)

    def get_seq_length(self, layer_idx: int | None = None) -> Any:
        if layer_idx is None:
            return self._start
        return self._positions - torch.arange(len(self._positions), device=self._positions.device)

    def positions(self) -> Tensor:  # (k,)
        return self._positions


class Stored(Exception):
    """Ends a layer as soon as its keys and values are stored."""


class OnlyStores(SomeTokens):
    """Like `SomeTokens`, for tokens of which a layer is to compute keys and values only: raises Stored in
    place of returning them, which leaves out attention and MLP in any architecture."""

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        super().update(key_states, value_states, layer_idx)
        raise Stored


def masks_of(
    whole: RowMasks,
    inputs: ForwardInputs,  # of the tokens that the layer runs over
    chosen: Sequence[Tensor | None],  # per row the indices of these tokens among its own; None: all
    present: Sequence[Tensor],  # per row (T,) bool, cache positions that have keys and values
) -> RowMasks:
    """The attention masks of some tokens, without the missing entries. A row with all tokens and all entries
    keeps its mask, and so the same attention kernel."""
    rows: list[RowMask] = []
    for mask, row, own, there in zip(whole.rows, whole.inputs.rows, chosen, present, strict=True):
        if own is not None and not len(own):
            continue
        if own is None and bool(there.all()):
            rows.append(mask)
            continue
        device = there.device
        dense = mask.on(device)
        if dense is None:  # causal, or one token that attends to everything
            count = torch.arange(row.end, device=device)
            dense = count[mask.low :] <= count[row.start :, None]
        rows.append(RowMask(mask.low, (dense if own is None else dense[own]) & there[mask.low :]))
    return RowMasks(inputs, rows)
