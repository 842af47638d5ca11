"""How many processors there are, and how many threads torch has while something runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TypeVar

import torch

Item = TypeVar("Item")


def num_cpus() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
