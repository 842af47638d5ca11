"""Sets the number of torch threads while the items of an iterator are computed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import torch

Item = TypeVar("Item")


def with_torch_threads(count: int | None, items: Iterator[Item]) -> Iterator[Item]:
    """Yield the items, each computed with `count` torch threads. The previous number of threads is restored
    before an item is yielded. With None the number is not changed."""
    if count is None:
        yield from items
        return
    while True:
        before = torch.get_num_threads()
        torch.set_num_threads(count)
        try:
            item = next(items)
        except StopIteration:
            return
        finally:
            torch.set_num_threads(before)
        yield item
