"""A cache that goes back holds what a cache holds that never read the tokens taken back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from outpace.core.tree import Forest, TokenTree
from outpace.models.eager.recurrent_cache import RecurrentCache
from outpace.models.hf.target import HFTarget
from outpace.models.table import TableTarget
from tests.tiers import slow


def read(target: Any, cache: Any, text: list[int], slot: int = 1) -> Tensor:  # -> (V,)
    """Logits after a text, of which the cache may hold a beginning; its entries are kept but for the last."""
    begin = cache.lengths[slot]
    tree = TokenTree(torch.tensor(text[-1:]), Forest.chain((0,)))
    logits = target.score(tree, (slot,), cache, gap=[torch.tensor(text[begin:-1], dtype=torch.int64)]).logits
    cache.commit(tree, [-1], (slot,))
    assert logits is not None
    return logits[0]


def draft(target: Any, cache: Any, tokens: list[int], kept: int, slot: int = 1) -> None:
    """Read a chain and keep its first tokens."""
    tree = TokenTree(torch.tensor(tokens), Forest.chain((len(tokens) - 1,)))
    target.score(tree, (slot,), cache)
    cache.commit(tree, [kept - 1], (slot,))


@pytest.mark.parametrize("name", ["table", "llama", "qwen3_5_text", slow("compiled")])
def test_a_text_with_other_tokens_in_their_place_is_read_as_by_a_new_cache(name: str, tiny: Any) -> None:
    if name == "table":
        target: Any = TableTarget(61, order=1)
    elif name == "compiled":
        target = HFTarget(tiny("llama").float(), compile=True)
    else:
        target = HFTarget(tiny(name))
    bound = 1e-4 if name in ("compiled", "qwen3_5_text") else 1e-9  # both in float32
    text = list(range(3, 23))
    cache = target.open(2, 64)
    read(target, cache, text[:12])
    draft(target, cache, text[11:16], 3)  # entries of 14 tokens
    read(target, cache, text)  # and of 19
    for length in (17, 14, 12, 5, 0):
        cache.rewind([1], [length])
        assert cache.lengths[1] == length or isinstance(cache, RecurrentCache) and cache.lengths[1] < length
        other = [*text[:length], *(40 + length + index for index in range(4))]
        fresh = read(target, target.open(2, 64), other)
        assert (read(target, cache, other) - fresh).abs().max() < bound
        text = other
