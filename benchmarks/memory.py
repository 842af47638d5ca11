"""What a memory budget costs `specmemo`: `python -m benchmarks.memory`.

Budgets are shares of the peak of generation memory without a budget, as torch's allocator reports it, at the
zoo's pair in float32 and long prompts of code. Per budget: the largest peak over the budget, tokens per step,
and speed as a ratio to the same prompt without a budget. Times are of the processor, of one thread, so that
other programs on the machine do not count; reading the prompt is part of them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from time import process_time
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from outpace.bench.measure.bootstrap import median_interval
from outpace.bench.measure.provenance import provenance, threads
from outpace.bench.measure.workload import encode, load_items
from outpace.bench.report.json_file import write_json
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.models.hf.target import HFTarget, load
from outpace.models.names import resolve
from outpace.recipes import get
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.tables import Table, print_tables

SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
UNLIMITED = 1 << 40  # bytes


@dataclass(frozen=True)
class Budget:
    """One row of the results."""

    share: float  # of the peak without a budget
    budget: int  # bytes
    peak: float  # the largest, over the budget
    tokens: float  # per step, of all prompts
    speed: dict[str, float]  # over that without a budget, median and interval over prompts


def prompts(tokenizer: Any, length: int, number: int) -> list[Tensor]:
    """Texts of so many tokens: prompts of code, one after the other."""
    text = torch.cat([encode(tokenizer, item) for item in load_items("code")])
    if len(text) < length * number:
        raise ValueError(f"the prompts of code have {len(text)} tokens: use fewer or shorter prompts")
    return [text[length * index : length * (index + 1)] for index in range(number)]


def decode(pair: Sequence[HFTarget], memory: int, prompt: Tensor, tokens: int) -> tuple[float, int]:
    """Processor seconds and number of steps in which tokens were generated."""
    parts = get("specmemo")(pair[0], draft=pair[1], memory=memory)
    began, steps = process_time(), 0
    session = Session(parts, (), (), LazyTargetProbs)
    session.add(prompt, SamplingParams(max_tokens=tokens))
    for step in session.steps():
        steps += bool(step.generated and step.generated[0])
    return process_time() - began, steps


def peak(pair: Sequence[HFTarget], memory: int, prompt: Tensor, tokens: int) -> tuple[int, int]:
    """The most bytes allocated at one time, and the number of steps."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        _, steps = decode(pair, memory, prompt, tokens)
    inner: Any = profiler.profiler  # its type does not know the numbers of bytes
    found = [each for each in inner.kineto_results.events() if each.name() == "[memory]"]
    found.sort(key=lambda each: each.start_ns())
    return max(accumulate(each.nbytes() for each in found)), steps


def measure(pair: Sequence[HFTarget], texts: Sequence[Tensor], tokens: int, rounds: int) -> list[Budget]:
    free = max(peak(pair, UNLIMITED, text, tokens)[0] for text in texts)
    budgets = {share: int(share * free) for share in SHARES}
    peaks = {share: [peak(pair, budgets[share], text, tokens) for text in texts] for share in SHARES}
    ratios: dict[float, list[list[float]]] = {share: [[] for _ in texts] for share in SHARES}
    for _ in range(rounds):
        for index, text in enumerate(texts):
            plain, _ = decode(pair, UNLIMITED, text, tokens)
            for share in SHARES:
                seconds, _ = decode(pair, budgets[share], text, tokens)
                ratios[share][index].append(plain / seconds)
    return [
        Budget(
            share,
            budgets[share],
            max(found for found, _ in peaks[share]) / budgets[share],
            tokens * len(texts) / sum(steps for _, steps in peaks[share]),
            median_interval(ratios[share]).to_json(),
        )
        for share in SHARES
    ]


def to_table(found: Sequence[Budget]) -> Table:
    rows = [
        (f"{each.share:.0%}", f"{each.peak:.2f}", f"{each.tokens:.2f}", f"{each.speed['median']:.2f}")
        for each in found
    ]
    columns = ("budget", "peak over budget", "tokens per step", "speed over unlimited")
    return Table("specmemo under memory budgets", columns, tuple(rows))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("--prompt-tokens", type=int, default=400, help="default: %(default)s")
    parser.add_argument("--max-tokens", type=int, default=64, help="default: %(default)s")
    parser.add_argument("--num-prompts", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=1, help="of torch (default: %(default)s)")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    with threads(given.threads):
        opened = [load(resolve(name), dtype="float32") for name in ("zoo:target", "zoo:draft")]
        texts = prompts(opened[0][1], given.prompt_tokens, given.num_prompts)
        found = measure([model for model, _ in opened], texts, given.max_tokens, given.rounds)
        print_tables([to_table(found)])
        if given.json:
            settings = {name: value for name, value in vars(given).items() if name != "json"}
            data = {
                "schema": "outpace-memory/1",
                "provenance": provenance(),
                "settings": settings,
                "results": [asdict(each) for each in found],
            }
            write_json(given.json, data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
