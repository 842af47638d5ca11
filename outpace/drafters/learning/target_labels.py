"""What a drafter learns while requests are decoded: the target's next-token distributions at temperature 1,
without top-p and other sampling parameters."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from outpace.sampling.divergence import forward_kl, jensen_shannon, reverse_kl
from outpace.sampling.topk import at_least_float32

SHARE = 0.9  # of the target's distribution in the mixture of `jsd`

Divergence = Callable[[Tensor, Tensor, Tensor], Tensor]  # as those of sampling.divergence
DivergenceName = Literal["forward_kl", "reverse_kl", "jsd"]
DIVERGENCES: dict[DivergenceName, Divergence] = {
    "forward_kl": forward_kl,
    "reverse_kl": reverse_kl,
    "jsd": partial(jensen_shannon, beta=SHARE),
}


def target_label(logits: Tensor) -> Tensor:  # (..., V) -> (..., V), at least float32
    """The logarithms of the target's probabilities from its logits before sampling parameters: those of top-p
    and top-k leave tokens without probability, and reverse KL infinite. A probability that is 0 all the same
    becomes the smallest number, for the same reason."""
    p = at_least_float32(logits).softmax(-1)
    return p.clamp_min(torch.finfo(p.dtype).tiny).log()
