"""Bringing results of a device to the host."""

from __future__ import annotations

import torch
from torch import Tensor


def on_host(*tensors: Tensor) -> tuple[Tensor, ...]:
    """These tensors on the host. Those of an accelerator are copied together: every copy waits until it has
    done all work launched before."""
    if all(each.is_cpu for each in tensors):
        return tensors
    # as bytes: no dtype holds the numbers of all others exactly
    parts = [each.contiguous().flatten().view(torch.uint8) for each in tensors]
    read = torch.cat(parts).cpu().split([len(part) for part in parts])
    return tuple(
        # copied, as a view needs an address that its dtype can begin at
        [part.clone().view(each.dtype).view(each.shape) for part, each in zip(read, tensors, strict=True)]
    )
