"""Times forwards of models by the number of nodes per row."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import TypeVar

import torch

from outpace.core.contracts import Cache, Forest, Prompt, Target, TokenTree, Want
from outpace.cost.cost_curve import CostCurve

SIZES = (1, 2, 4, 8, 16, 32)
IN_A_ROW = 3  # consecutive forwards of one size
Name = TypeVar("Name", bound=Hashable)


@dataclass
class Timings:
    """Seconds of the forwards of one target, by nodes per row."""

    # seconds of forwards that follow one of the same size
    again: dict[int, list[float]] = field(default_factory=dict[int, "list[float]"])
    # seconds of forwards that follow one of another size
    changed: dict[int, list[float]] = field(default_factory=dict[int, "list[float]"])

    @property
    def curve(self) -> CostCurve:
        """Cost curve of the medians of forwards that follow one of the same size, as most do in decoding."""
        return CostCurve({size: median(seconds) for size, seconds in self.again.items()})


def measure_forwards(
    targets: Mapping[Name, Target],
    *,
    length: int = 192,  # committed tokens in the KV cache
    rows: int = 1,
    sizes: Sequence[int] | Mapping[Name, Sequence[int]] = SIZES,  # of all targets, or of each
    repeats: int = 7,  # timed repetitions of all sizes and targets, after an untimed forward each
    most_seconds: float = 20.0,
    clock: Callable[[], float] = perf_counter,
    after: Callable[[], None] = lambda: None,  # called after each target's turn at one size
) -> dict[Name, Timings]:
    """Time forwards over `size` nodes per row for each target. Each size is run a few times in a row, as in
    decoding; the first forward is recorded as `changed`, the others as `again`, because a runtime may have to
    prepare for a new size. Sizes and targets are interleaved, so that other load on the machine affects all
    of them."""
    if length < 2:
        raise ValueError("a cost is measured after at least two tokens")
    own = {name: sizes[name] if isinstance(sizes, Mapping) else sizes for name in targets}
    found = {name: Timings({n: [] for n in own[name]}, {n: [] for n in own[name]}) for name in targets}
    slots = list(range(rows))

    def forward(target: Target, cache: Cache, size: int) -> float:
        tree = _chains(size, rows, target.vocab)
        start = clock()
        scores = target.score(tree, slots, cache, Want())
        if scores.logits is not None and scores.logits.is_cuda:
            torch.cuda.synchronize(scores.logits.device)
        seconds = clock() - start
        cache.commit(tree, [-1] * rows, slots)
        return seconds

    with torch.inference_mode():
        caches = {name: _read(target, length, rows, max(own[name])) for name, target in targets.items()}
        order = [(name, size) for name in targets for size in own[name]]
        for name, size in order:
            forward(targets[name], caches[name], size)
        began = perf_counter()
        for turn in range(repeats):
            if turn and perf_counter() - began > most_seconds:
                break
            for name, size in order[turn % len(order) :] + order[: turn % len(order)]:
                first, *others = (forward(targets[name], caches[name], size) for _ in range(IN_A_ROW))
                found[name].changed[size].append(first)
                found[name].again[size] += others
                after()
    return found


def _read(target: Target, length: int, rows: int, num_nodes: int) -> Cache:
    generator = torch.Generator().manual_seed(0)
    prompts = [Prompt(torch.randint(target.vocab, (length + 1,), generator=generator)) for _ in range(rows)]
    cache = target.open(rows, length + 1 + num_nodes)
    target.prefill(prompts, list(range(rows)), cache, Want())
    return cache


def _chains(size: int, rows: int, vocab: int) -> TokenTree:
    tokens = torch.arange(size * rows) % vocab
    return TokenTree(tokens, Forest.chain((size - 1,) * rows))
