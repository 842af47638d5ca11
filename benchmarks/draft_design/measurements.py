"""Measures what the choice of a draft model depends on: forwards, overhead, and acceptance by position.

Forwards are timed after warm-up, interleaved over all models (`measure_forwards`). Overhead, of which
sampling is the largest part, is what decoding steps take besides: measured with one draft model and taken to
be that of all. Steps of another model and length test the prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from outpace.bench.measure.forward_cost import measure_forwards
from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target
from outpace.core.sampling_params import SamplingParams
from outpace.cost.cost_curve import CostCurve
from outpace.cost.step_time import StepTime
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.no_draft import NoDraft
from outpace.models.hf.reshaped import mlp_size, reshaped
from outpace.models.hf.target import HFTarget
from outpace.plan.steps import decoded_counts, steps_in_turn
from outpace.verifiers.rejection import Rejection


@dataclass(frozen=True)
class Shape:
    """Sizes of a draft model."""

    num_layers: int
    width: int
    num_heads: int

    @property
    def label(self) -> str:
        return f"{self.num_layers} x {self.width}, {self.num_heads} heads"

    @staticmethod
    def of(model: PreTrainedModel) -> Shape:
        config = model.config.get_text_config()
        return Shape(config.num_hidden_layers, config.hidden_size, config.num_attention_heads)


@dataclass(frozen=True)
class Candidate:
    """A draft model whose speed is measured; `trained` tells whether its acceptance is of interest."""

    name: str
    shape: Shape
    model: HFTarget
    trained: bool

    @property
    def parameters(self) -> int:
        return sum(each.numel() for each in self.model.model.parameters())


def random_candidate(base: HFTarget, shape: Shape, *, compile: bool = False) -> Candidate:
    """A draft model of this shape with random weights and the architecture of `base`; the MLPs are as wide in
    proportion. ValueError for a shape that the architecture does not have."""
    own = base.model.config.get_text_config()
    inner = max(16, 16 * round(mlp_size(own) * shape.width / own.hidden_size / 16))
    config = reshaped(
        own, num_layers=shape.num_layers, width=shape.width, num_heads=shape.num_heads, inner_size=inner
    )
    dtype = next(base.model.parameters()).dtype
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = AutoModelForCausalLM.from_config(config, dtype=dtype).to(base.device).eval()
    return Candidate(shape.label, shape, HFTarget(made, compile=compile), trained=False)


def forward_times(
    target: Target,
    candidates: Sequence[Candidate],
    lengths: Sequence[int],
    *,
    rows: int,
    context: int,  # committed tokens of each row
    repeats: int,
    after: Callable[[], None] = lambda: None,
) -> tuple[CostCurve, list[float]]:
    """Seconds of the target's forwards by tokens per row, and of a forward of each candidate over one token
    per row."""
    models: dict[int, Target] = {-1: target} | {i: each.model for i, each in enumerate(candidates)}
    sizes = {-1: sorted({1, *(length + 1 for length in lengths)})} | {i: [1] for i in range(len(candidates))}
    found = measure_forwards(
        models, length=context, rows=rows, sizes=sizes, repeats=repeats, after=after, most_seconds=60.0
    )
    return found[-1].curve, [found[i].curve(1) for i in range(len(candidates))]


def num_timed(num_candidates: int, lengths: Sequence[int], repeats: int) -> int:
    """How often `forward_times` calls `after`, if no time limit ends it."""
    return (num_candidates + len({1, *(length + 1 for length in lengths)})) * repeats


def step_times(
    target: Target,
    drafts: Mapping[str, tuple[Target | None, Sequence[int]]],  # name -> draft model, draft lengths
    prompts: Sequence[Tensor],
    *,
    rows: int,
    sampling: SamplingParams,
    after: Callable[[], None] = lambda: None,
) -> dict[str, dict[int, float]]:
    """Median seconds of decoding steps by name and draft length; without a draft model the length is 0.
    ValueError if answers are too short for whole drafts."""
    methods = {
        name: (_parts(target, draft, lengths[0]), lengths) for name, (draft, lengths) in drafts.items()
    }
    found = steps_in_turn(methods, prompts, rows=rows, sampling=sampling, after=after)
    return {
        name: {n: median([step.seconds for step in found[name] if step.length == n]) for n in lengths}
        for name, (_, lengths) in drafts.items()
    }


def _parts(target: Target, draft: Target | None, length: int) -> Parts:
    return Parts(target, NoDraft() if draft is None else DraftModel(draft), Rejection(), Fixed(length))


@dataclass(frozen=True)
class Decoded:
    """What decoding with a trained draft model showed."""

    acceptance: tuple[float, ...]  # by position: how often accepted if those before it were
    tested: tuple[int, ...]  # draft tokens that this is known from


def acceptance_by_position(
    target: Target,
    draft: Target,
    prompts: Sequence[Tensor],
    length: int,
    sampling: SamplingParams,
    *,
    after: Callable[[], None] = lambda: None,
) -> Decoded:
    """How often each position of drafts of `length` tokens is accepted, decoding each prompt alone. A
    position that was never reached has rate 0."""
    counts = decoded_counts(_parts(target, draft, length), prompts, sampling, after=after)
    tested = tuple(counts.offered_at[position] for position in range(1, length + 1))
    accepted = (counts.accepted_at[position] for position in range(1, length + 1))
    return Decoded(tuple(of / max(1, total) for of, total in zip(accepted, tested, strict=True)), tested)


def context_length(prompts: Sequence[Tensor], max_tokens: int) -> int:
    """Committed tokens of a row in the middle of its answer, on average over the prompts; at least 2."""
    return max(2, round(mean(len(prompt) for prompt in prompts) + max_tokens / 2))


def held_out_length(lengths: Sequence[int]) -> int | None:
    """The length in the middle, which tests the prediction; overhead is fitted to the shortest and the
    longest. None if there is none between them."""
    between = sorted(set(lengths))[1:-1]
    return between[len(between) // 2] if between else None


def with_overhead(bare: StepTime, lengths: Sequence[int], measured: Mapping[int, float]) -> StepTime:
    """The times of steps with the overhead of the shortest and the longest drafts."""
    ends = sorted({min(lengths), max(lengths)})
    return bare.with_overhead([(length, measured[length]) for length in ends])
