"""A small target with eight layers, and heads with random weights, in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from outpace.models.heads.draft_head import DraftHead, head_config
from outpace.models.heads.eagle.head import EagleHead
from outpace.models.heads.eagle3.head import Eagle3Head
from outpace.models.hf.target import HFTarget

PAPERS_TAPS = (1, 3, 4)  # inputs of layers 2, n // 2 and n - 3 of eight


@pytest.fixture
def target(tiny: Callable[..., Any]) -> HFTarget:
    return HFTarget(tiny("llama", num_hidden_layers=8).float())


def disturbed(head: DraftHead, seed: int) -> DraftHead:
    """Random weights of the head's own, norms and biases included."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, each in head.own.items():
            noise = torch.randn(each.shape, generator=generator)
            each.copy_(1 + 0.3 * noise if "norm" in name else noise / each.shape[-1] ** 0.5)
    return head.eval()


@pytest.fixture
def eagle(target: HFTarget) -> Callable[..., EagleHead]:
    def make(*, bias: bool = True) -> EagleHead:
        head = EagleHead(head_config(target, target.vocab), target.embed, target.head, bias=bias)
        disturbed(head, 1)
        return head

    return make


@pytest.fixture
def eagle3(target: HFTarget) -> Callable[..., Eagle3Head]:
    def make(*, taps: Any = None, draft_ids: Any = None, **options: bool) -> Eagle3Head:
        ids = None if draft_ids is None else torch.tensor(draft_ids)
        config = head_config(target, target.vocab if ids is None else len(ids))
        taps = PAPERS_TAPS if taps is None else taps
        head = Eagle3Head(config, target.embed, taps, draft_ids=ids, **options)
        disturbed(head, 2)
        return head

    return make
