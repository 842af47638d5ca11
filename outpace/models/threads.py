"""How many threads torch has while something runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import torch

Item = TypeVar("Item")


def on_threads(count: int, items: Iterator[Item]) -> Iterator[Item]:
    """The same items, each made with so many threads of torch; between two of them torch has what it had."""
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
