"""Copies between the host and a device that wait for its work no more often than they must."""

from __future__ import annotations

from collections.abc import Sequence

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


def on_device(
    values: Sequence[float] | Sequence[Sequence[float]], dtype: torch.dtype, device: torch.device
) -> Tensor:
    """A tensor of these numbers on the device, without waiting for it."""
    made = torch.tensor(values, dtype=dtype)
    if device.type == "cpu":
        return made
    # a GPU copies by itself only from memory of the host that is never moved
    return (made.pin_memory() if device.type == "cuda" else made).to(device, non_blocking=True)


def indices(values: Sequence[int], device: torch.device) -> Tensor:  # (M,)
    """Indices of a tensor on the device. Given as a list, they would be copied there with waiting."""
    return on_device(values, torch.int64, device)
