"""Time from logits to a distribution at a large vocabulary: `python -m benchmarks.sampling`.

Random logits in bfloat16 with twenty probable tokens, so that no model is needed. For each setting outpace
and the processors of transformers take turns on the same logits; the ratio is the median over the rounds.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from statistics import median
from time import perf_counter
from typing import Any

import torch
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from outpace.core.sampling_params import SamplingParams
from outpace.sampling.warp import warp
from outpace.tables import Table, print_tables

SETTINGS = (
    SamplingParams(1.0),
    SamplingParams(1.0, top_k=20),
    SamplingParams(1.0, top_p=0.9),
    SamplingParams(0.7, top_k=20, top_p=0.8),
)
PROBABLE, AHEAD = 20, 14.0  # tokens, and by how much their logits exceed the others'


def processors(sampling: SamplingParams) -> LogitsProcessorList:
    """What transformers applies for these parameters."""
    made = LogitsProcessorList([TemperatureLogitsWarper(sampling.temperature)])
    if sampling.top_k:
        made.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        made.append(TopPLogitsWarper(sampling.top_p))
    return made


def measure(rows: int, vocabulary: int, rounds: int, sampling: SamplingParams) -> tuple[float, float, float]:
    """Milliseconds of outpace and of transformers, medians over rounds, and the median of their ratios."""
    theirs: Any = processors(sampling)  # its type wants a LongTensor, which no tensor is to a type checker
    found = list[tuple[float, float]]()
    ids = torch.zeros(rows, 1, dtype=torch.int64)
    for seed in range(rounds + 1):
        logits = torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)).bfloat16()
        logits[:, :PROBABLE] += AHEAD
        began = perf_counter()
        warp(logits, [sampling] * rows)
        middle = perf_counter()
        theirs(ids, logits.float()).softmax(-1)
        found.append((middle - began, perf_counter() - middle))
    found = found[1:]  # the first round is slower
    ours, other = (1000 * median(each) for each in zip(*found, strict=True))
    return ours, other, median(second / first for first, second in found)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocabulary", type=int, default=151_936, help="tokens (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=20, help="rounds per setting (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default: %(default)s)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    lines = list[tuple[str, ...]]()
    for rows in (1, 6):
        for each in SETTINGS:
            ours, theirs, ratio = measure(rows, options.vocabulary, options.rounds, each)
            setting = f"temperature {each.temperature:g}, top-k {each.top_k}, top-p {each.top_p:g}"
            lines.append((str(rows), setting, f"{ours:.2f}", f"{theirs:.2f}", f"{ratio:.1f}"))
    columns = ("rows", "setting", "outpace ms", "transformers ms", "ratio")
    print_tables([Table(f"{options.vocabulary} tokens, {options.threads} threads", columns, tuple(lines))])


if __name__ == "__main__":
    main()
