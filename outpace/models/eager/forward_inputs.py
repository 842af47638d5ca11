"""The inputs of one forward over several rows: cache positions, position ids and attention masks.

`ForwardInputs` is passed to the model as its KV cache. transformers passes it on to the mask function (as
`kv_offset`), and the masks created there reach the attention function, so no global state is needed.

Letters: B rows, N tokens of all rows, n tokens of one row, T cache positions of one row, H heads, D head
size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers.masking_utils import causal_mask_function

from outpace.models.eager.eight_bits import rounded
from outpace.models.eager.own_inputs import OwnInputs, Rule
from outpace.models.forward.kv_cache import MAX_SLICED_MASK, EagerCache
from outpace.models.forward.row_inputs import RowInputs


@dataclass(eq=False, slots=True)
class RowMask:
    """The attention mask of one row in the layers of one type."""

    low: int  # first cache position that any of the tokens attends to
    mask: Tensor | None  # (n, end - low) bool; None: the mask is causal or hides no key
    is_causal: bool = False  # the mask is causal over the whole row, from cache position 0, and not stored
    is_chain: bool = False  # every token attends to itself and to all cache positions before it
    _folded: Tensor | None = None  # the last result of `folded`

    def on(self, device: torch.device) -> Tensor | None:  # (n, end - low)
        """The mask on this device, a layer's; kept there for the next layer."""
        if self.mask is not None and self.mask.device != device:
            self.mask, self._folded = self.mask.to(device), None
        return self.mask

    def folded(self, groups: int, device: torch.device) -> Tensor | None:  # (groups * n, end - low)
        """The mask repeated for the `groups` query heads of one key head; computed once for all layers."""
        mask = self.on(device)
        if mask is None or groups == 1:
            return mask
        if self._folded is None or len(self._folded) != groups * len(mask):
            self._folded = mask.repeat(groups, 1)
        return self._folded

    def additive(self, row: RowInputs, dtype: torch.dtype, device: Any) -> Tensor:  # (1, 1, n, end)
        """The mask as values to add to the attention scores of the row's tokens: 0 or the dtype's minimum."""
        mask = self.on(device)
        if mask is None:
            count = torch.arange(row.end, device=device)
            mask = count <= count[row.start :, None]
        values = torch.zeros(mask.shape, dtype=dtype, device=device)
        values.masked_fill_(~mask, torch.finfo(dtype).min)
        return pad(values, (self.low, 0), value=torch.finfo(dtype).min)[None, None]


@dataclass(eq=False)
class RowMasks:
    """The attention masks of all rows in the layers of one type; the attention function receives this object
    as its mask."""

    inputs: ForwardInputs
    rows: list[RowMask]
    _padded: Tensor | None = None  # the last result of `padded`

    @cached_property
    def sizes(self) -> list[int]:  # (B,)
        """Number of tokens of each row."""
        return [row.end - row.start for row in self.inputs.rows]

    @cached_property
    def lengths(self) -> list[int]:  # (B,)
        """Number of cache positions of each row that any of its tokens attends to."""
        return [row.end - mask.low for row, mask in zip(self.inputs.rows, self.rows, strict=True)]

    def padded(self, groups: int, device: torch.device) -> Tensor:  # (B, 1, groups * n, T)
        """The masks of all rows, padded to the most tokens and cache positions of any and repeated for the
        `groups` query heads of one key head; computed once for all layers. Padding tokens attend to the first
        key. Not for rows whose causal mask is not stored."""
        sizes, lengths = self.sizes, self.lengths
        if self._padded is None or self._padded.shape[2] != groups * max(sizes):
            made = torch.zeros(len(sizes), max(sizes), max(lengths), dtype=torch.bool, device=device)
            made[:, :, 0] = True
            for each, row, num, length in zip(made, self.rows, sizes, lengths, strict=True):
                assert not row.is_causal
                mask = row.on(device)
                each[:num, :length] = True if mask is None else mask
            self._padded = made.repeat(1, groups, 1)[:, None]
        return self._padded


class ForwardInputs(OwnInputs):
    """The KV cache object of one forward: writes new keys and values to the rows' slots of a cache."""

    def __init__(
        self,
        cache: EagerCache,
        rows: list[RowInputs],
        *,
        attention: frozenset[int] = frozenset(),  # layers whose attention weights are captured
        dense: bool = False,  # the model's own attention code adds a dense mask
    ) -> None:
        # transformers' Cache.__init__ requires layer objects, so it is not called
        self.cache, self.rows, self.attention, self.dense = cache, rows, attention, dense
        self.weights: dict[int, list[Tensor]] = {}  # layer -> per row (heads, n, T), captured in the forward
        self._planes_of = cache.planes.of_layer
        self._one = len(rows) == 1
        # per row and plane: a view of all keys and values (`_reads`), and of those that this forward writes
        # (`_writes`); empty until the first layer runs
        self._reads: list[Sequence[Tensor]] = []
        self._writes: list[Sequence[Tensor]] = []

    def _bind(self) -> None:
        views = self.cache.views
        self._reads = [views(row.slot, 0, row.end) for row in self.rows]
        self._writes = [views(row.slot, row.start, row.end) for row in self.rows]
        self._sizes = [row.end - row.start for row in self.rows]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Any, Any]:
        """Store a layer's keys and values (1, H, N, D); return those at all cache positions of the row so far
        (1, H, T, D), or, for several rows, tuples with one such tensor per row."""
        key, value = self._planes_of[layer_idx]
        if not self._reads:
            self._bind()
        if self.cache.in_8_bits:
            key_states, value_states = rounded(key_states), rounded(value_states)
        if self._one:
            self._writes[0][key].copy_(key_states)
            self._writes[0][value].copy_(value_states)
            return self._reads[0][key], self._reads[0][value]
        for plane, states in ((key, key_states), (value, value_states)):
            rows = [writes[plane] for writes in self._writes]
            # one call for all rows: on a GPU one kernel
            torch.ops.aten._foreach_copy_(rows, states.split(self._sizes, 2))
        return tuple(reads[key] for reads in self._reads), tuple(reads[value] for reads in self._reads)

    def get_seq_length(self, layer_idx: int | None = None) -> Any:
        """Cache position of the first token. With `layer_idx`: the offset (a number, or one per token) that
        the layer adds to 0, 1, 2, ... to compute position ids."""
        if layer_idx is None or (self._one and self.rows[0].depths is None):
            return self.rows[0].start
        positions = self.positions()
        return positions - torch.arange(len(positions), device=positions.device)

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, Any]:
        """(number of keys, this object). transformers passes the second value, in its API an integer offset,
        unchanged to the function that creates the masks; that function reads the rows from this object."""
        return self.rows[0].end if self._one else query_length, self

    def positions(self) -> Tensor:  # (N,)
        """Position id of every token, row by row."""
        if self._one:
            return self.query_positions(self.rows[0])
        return torch.cat([self.query_positions(row) for row in self.rows])

    def position_ids(self) -> Tensor:  # (N,), or (A, N) by axis
        """Position id of every token as the model gets it: with its row's `shift`, or from `positions`."""
        by_row = [
            row.positions.to(self.cache.count)
            if row.positions is not None
            else self.query_positions(row)[None] + row.shift
            for row in self.rows
        ]
        axes = max(len(ids) for ids in by_row)
        together = torch.cat([ids.expand(axes, -1) for ids in by_row], 1)
        return together if axes > 1 else together[0]

    def attention_mask(self, rule: Rule, reach: int | None, dtype: torch.dtype, device: Any) -> Any:
        rows = self.masks(rule, reach, device)
        if not self.dense:
            return RowMasks(self, rows)
        return rows[0].additive(self.rows[0], dtype, device)

    def masks(self, rule: Rule, reach: int | None, device: torch.device) -> list[RowMask]:
        """The attention mask of each row for one layer type: the model's mask rule at the tokens' position
        ids, restricted to each node's ancestors. `reach`: length of the sliding window or chunk; None:
        unknown or unlimited."""
        masks = []
        for row in self.rows:
            if rule is causal_mask_function or (reach is not None and row.top < reach):
                masks.append(self._causal(row))
                continue
            lowest = row.start if row.depths is None else min(row.start, row.base)
            low = 0 if reach is None else max(0, lowest - reach + 1)
            queries = self.query_positions(row)[:, None]
            keys = self._key_positions(row)[None, low:]
            sees = keys <= queries if row.visible is None else self._sees(row, row.visible)[:, low:]
            if row.two_way:  # mask rules are causal: a later node is treated as if at the query's position
                keys = torch.minimum(keys, queries)
            first = torch.zeros((), dtype=torch.int64, device=device)
            masks.append(RowMask(low, sees & rule(first, first, queries, keys)))
        return masks

    def query_positions(self, row: RowInputs) -> Tensor:  # (n,)
        count = self.cache.count
        if row.depths is None:
            return count[row.start : row.end]
        if row.start >= row.base:
            return row.depths[row.start - row.base :].to(count.device, non_blocking=True) + row.base
        depths = row.depths.to(count.device, non_blocking=True)
        return torch.cat((count[row.start : row.base], depths + row.base))

    def _key_positions(self, row: RowInputs) -> Tensor:  # (end,)
        count = self.cache.count
        if row.depths is None:
            return count[: row.end]
        return torch.cat((count[: row.base], row.depths.to(count.device, non_blocking=True) + row.base))

    def _sees(self, row: RowInputs, visible: Tensor) -> Tensor:  # (n, end)
        unread = visible[max(0, row.start - row.base) :]
        mask = pad(unread.to(self.cache.count.device, non_blocking=True), (row.base, 0), value=True)
        if row.start >= row.base:
            return mask
        count = self.cache.count
        return torch.cat((count[: row.end] <= count[row.start : row.base, None], mask))

    def _causal(self, row: RowInputs) -> RowMask:
        if row.visible is not None:
            return RowMask(0, self._sees(row, row.visible))
        if row.end - row.start == 1:
            return RowMask(0, None, is_chain=True)
        if row.start == 0 and row.end > MAX_SLICED_MASK:
            return RowMask(0, None, is_causal=True, is_chain=True)
        return RowMask(0, self.cache.causal_mask(row.start, row.end), is_chain=True)
