"""One forward over some rows: where their tokens go in the cache, what each may see, and what was tapped on
the way.

A `Reading` is what the model receives as its cache. transformers hands it on to the mask function (as the
offset of the keys), and the masks made from it reach the attention function, so the tree needs no ambient
state.

Letters: N tokens of all rows, n of one row, T places seen by one row, H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers.cache_utils import Cache
from transformers.masking_utils import causal_mask_function

from outpace.models.hf.kv_cache import STRIP, SlotCache


@dataclass(eq=False, slots=True)
class RowInputs:
    """What one row reads: n tokens into places start to end of a slot."""

    slot: int
    start: int
    end: int
    base: int  # places before it are seen by every draft node: committed tokens and the gap
    depths: Tensor | None = None  # (end - base,) of all nodes of the row's tree so far; None: a chain
    visible: Tensor | None = None  # (end - base, end - base) which nodes each node sees; None: a chain
    top: int = 0  # the highest position read


@dataclass(eq=False, slots=True)
class RowMask:
    """What the tokens of one row see in the layers of one kind."""

    low: int  # the first place any of them sees
    mask: Tensor | None  # (n, end - low) bool; None: all, or the causal triangle
    is_causal: bool = False  # the causal triangle of a long row read from its first place on
    is_chain: bool = False  # every token sees all places before it
    _folded: Tensor | None = None

    def on(self, device: torch.device) -> Tensor | None:  # (n, end - low)
        """The mask where a layer computes."""
        if self.mask is not None and self.mask.device != device:
            self.mask, self._folded = self.mask.to(device), None
        return self.mask

    def folded(self, groups: int, device: torch.device) -> Tensor | None:  # (groups * n, end - low)
        """The same for the heads of a group one after the other; made once for all layers."""
        mask = self.on(device)
        if mask is None or groups == 1:
            return mask
        if self._folded is None or len(self._folded) != groups * len(mask):
            self._folded = mask.repeat(groups, 1)
        return self._folded


@dataclass(frozen=True, eq=False, slots=True)
class Masks:
    """What every row sees in the layers of one kind: the mask the attention function receives."""

    reading: ForwardInputs
    rows: list[RowMask]


class ForwardInputs(Cache):
    """The cache as one forward sees it."""

    # what transformers looks at to tell layer kinds apart: none of ours is special
    layers: list[Any] = []
    is_sliding: list[bool] = []
    is_linear: list[bool] = []
    is_dummy: list[bool] = []

    def __init__(
        self,
        cache: SlotCache,
        rows: list[RowInputs],
        *,
        attention: frozenset[int] = frozenset(),  # layers whose attention weights are wanted
        dense: bool = False,  # the model computes its attention itself: hand it a mask it can add
    ) -> None:
        # the parent's __init__ demands layer objects
        self.cache, self.rows, self.attention, self.dense = cache, rows, attention, dense
        self.weights: dict[int, list[Tensor]] = {}  # layer -> per row (heads, n, T), collected on the way
        self._places = cache.planes.places
        self._one = len(rows) == 1
        self._reads: list[Sequence[Tensor]] = []  # per row, once the first layer stores something

    def _bind(self) -> None:
        cache = self.cache
        self._reads = [cache.views(row.slot, 0, row.end) for row in self.rows]
        if self._one:
            row = self.rows[0]
            self._writes = cache.views(row.slot, row.start, row.end)
        else:
            places = [(row.slot, place) for row in self.rows for place in range(row.start, row.end)]
            self._slots, self._to = torch.tensor(places, device=cache.device).unbind(1)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Any, Any]:
        """Store keys and values (1, H, N, D); what the row has so far (1, H, T, D), or a tuple of that per
        row."""
        key, value = self._places[layer_idx]
        if not self._reads:
            self._bind()
        if self._one:
            self._writes[key].copy_(key_states)
            self._writes[value].copy_(value_states)
            return self._reads[0][key], self._reads[0][value]
        # one scatter for all rows: several times faster than a copy for each
        slots, places = self._slots.to(key_states.device), self._to.to(key_states.device)
        self.cache.flat[key][slots, :, places] = key_states[0].transpose(0, 1)
        self.cache.flat[value][slots, :, places] = value_states[0].transpose(0, 1)
        return tuple(reads[key] for reads in self._reads), tuple(reads[value] for reads in self._reads)

    def get_seq_length(self, layer_idx: int | None = None) -> Any:
        """The place of the first token; for a layer that asks, what it has to add to 0, 1, 2, ... to get
        positions."""
        if layer_idx is None or (self._one and self.rows[0].depths is None):
            return self.rows[0].start
        positions = self.positions()
        return positions - self.cache.count[: len(positions)]

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, Any]:
        """Keys seen, and in place of their offset this object: it reaches the mask function unchanged."""
        return self.rows[0].end if self._one else query_length, self

    def positions(self) -> Tensor:  # (N,)
        """Position of every token read: one more than the last it sees."""
        if self._one:
            return self.query_positions(self.rows[0])
        return torch.cat([self.query_positions(row) for row in self.rows])

    def masks(self, rule: Callable[..., Tensor], reach: int | None, device: torch.device) -> list[RowMask]:
        """The model's own rule at the tokens' positions, within what the tree lets each see.

        `reach` is how far a windowed or chunked rule looks back; None: unknown or everything."""
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
            first = torch.zeros((), dtype=torch.int64, device=device)
            masks.append(RowMask(low, sees & rule(first, first, queries, keys)))
        return masks

    def query_positions(self, row: RowInputs) -> Tensor:  # (n,)
        count = self.cache.count
        if row.depths is None:
            return count[row.start : row.end]
        if row.start >= row.base:
            return row.depths[row.start - row.base :].to(count.device) + row.base
        return torch.cat((count[row.start : row.base], row.depths.to(count.device) + row.base))

    def _key_positions(self, row: RowInputs) -> Tensor:  # (end,)
        count = self.cache.count
        if row.depths is None:
            return count[: row.end]
        return torch.cat((count[: row.base], row.depths.to(count.device) + row.base))

    def _sees(self, row: RowInputs, visible: Tensor) -> Tensor:  # (n, end)
        unread = visible[max(0, row.start - row.base) :]
        mask = pad(unread.to(self.cache.count.device), (row.base, 0), value=True)
        if row.start >= row.base:
            return mask
        count = self.cache.count
        return torch.cat((count[: row.end] <= count[row.start : row.base, None], mask))

    def _causal(self, row: RowInputs) -> RowMask:
        if row.visible is not None:
            return RowMask(0, self._sees(row, row.visible))
        if row.end - row.start == 1:
            return RowMask(0, None, is_chain=True)
        if row.start == 0 and row.end > STRIP:
            return RowMask(0, None, is_causal=True, is_chain=True)
        return RowMask(0, self.cache.triangle(row.start, row.end), is_chain=True)
