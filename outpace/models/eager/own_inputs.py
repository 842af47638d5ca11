"""The KV cache object of a forward, as our attention mask function receives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

Rule = Callable[..., Tensor]  # of transformers: which keys each query of a layer type may attend to


class OwnInputs(Cache):
    """A KV cache object of ours. transformers passes it on to the mask function as the offset of the keys."""

    # attributes by which transformers distinguishes layer types; empty, as all layers are treated alike
    layers: list[Any] = []
    is_sliding: list[bool] = []
    is_linear: list[bool] = []
    is_dummy: list[bool] = []

    def attention_mask(self, rule: Rule, reach: int | None, dtype: torch.dtype, device: Any) -> Any:
        """What the layers of one type get as their attention mask. `reach`: length of the sliding window or
        chunk; None: unknown or unlimited."""
        raise NotImplementedError

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return 0
