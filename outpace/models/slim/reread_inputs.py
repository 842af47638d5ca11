"""Inputs of forwards that read committed tokens again, without some layers, and write nothing.

Letters: N tokens, H key heads, D head size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from outpace.models.eager.eight_bits import rounded
from outpace.models.eager.forward_inputs import ForwardInputs
from outpace.models.forward.kv_cache import EagerCache
from outpace.models.forward.row_inputs import RowInputs


class RereadInputs(ForwardInputs):
    """The KV cache object of a forward over tokens that follow the first `base` committed tokens of a slot.
    They attend to these tokens' entries, computed by the whole model, and to one another's entries, which
    exist in this forward only: nothing is written to the cache."""

    def __init__(
        self, cache: EagerCache, slot: int, base: int, num: int, *, siblings: bool, dense: bool
    ) -> None:
        """`siblings`: all tokens have position `base` and do not see one another; else they are a chain."""
        row = RowInputs(slot, base, base + num, base, top=base if siblings else base + num - 1)
        if siblings:
            row.depths = torch.zeros(num, dtype=torch.int64)
            row.visible = torch.eye(num, dtype=torch.bool)
        super().__init__(cache, [row], dense=dense)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:  # (1, H, N, D) each -> (1, H, base + N, D) each
        """The layer's entries of the committed tokens, followed by the given ones."""
        row = self.rows[0]
        if not self._reads:
            self._reads = [self.cache.views(row.slot, 0, row.base)]
        if self.cache.in_8_bits:
            key_states, value_states = rounded(key_states), rounded(value_states)
        key, value = self._planes_of[layer_idx]
        read = self._reads[0]
        return torch.cat((read[key], key_states), 2), torch.cat((read[value], value_states), 2)
