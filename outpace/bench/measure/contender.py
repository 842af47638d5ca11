"""What takes part in a measurement: something that continues prompts and says how long it took."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, Protocol

import torch
from torch import Tensor

from outpace.bench.measure.acceptance_ceiling import Best, look
from outpace.bench.measure.metrics import Counts, Record
from outpace.core.contracts import Guarantee, Parts, Target
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.models.checkpoint import has_native_bfloat16
from outpace.sampling.target_probs import LazyTargetProbs

COMPILED, EAGER = "compiled", "eager"  # how forwards run


@dataclass(frozen=True)
class Outcome:
    """What one run gave."""

    outputs: list[list[int]]  # new tokens per prompt
    seconds: float  # prompts read and tokens made
    prompt_seconds: float | None = None  # of them, reading the prompts
    counts: Counts | None = None  # None: a peer that does not say


class Contender(Protocol):
    """A method, or a peer, bound to its models."""

    name: str  # what the table calls it; no two are the same
    kind: str  # "outpace" or "peer"
    options: Mapping[str, Any]
    single: bool  # takes one prompt at a time

    @property
    def precision(self) -> str:
        """What it really computes in; empty: it does not say."""
        ...

    @property
    def mode(self) -> str:
        """Whether its forwards run compiled or eager; empty: it does not say."""
        ...

    def run(self, prompts: Sequence[Tensor], sampling: Sequence[SamplingParams]) -> Outcome: ...

    def look(self, prompts: Sequence[Tensor], sampling: Sequence[SamplingParams]) -> Best:
        """How often a drafted token is kept, and could be; nothing is timed. Empty: it does not say."""
        ...

    def lossless(self, temperature: float) -> bool:
        """Whether it promises the target's own distribution at this temperature."""
        ...

    def forget(self) -> None:
        """Begin anew: what was learnt of earlier prompts serves none of the next."""
        ...


@dataclass
class Engine:
    """A recipe's parts in the engine: what they learn on a prompt serves the next, until they are made again."""

    name: str
    method: str
    parts: Parts
    options: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "outpace"
    single: bool = False
    clock: Callable[[], float] = perf_counter
    make: Callable[[], Parts] | None = None  # the same parts, knowing nothing; None: they learn nothing

    @property
    def precision(self) -> str:
        return precision_of(getattr(self.parts.target, "model", None))

    @property
    def mode(self) -> str:
        return mode_of(self.parts.target)

    def run(self, prompts: Sequence[Tensor], sampling: Sequence[SamplingParams]) -> Outcome:
        records: list[Record] = []
        began = self.clock()
        session = Session(self.parts, prompts, sampling, LazyTargetProbs)
        steps = session.steps()
        read = began
        if any(len(prompt) > 1 for prompt in prompts):
            next(steps)
            read = self.clock()
        for step in steps:
            records.append(Record.of(step))
        ended = self.clock()
        outputs = [
            session.history[slot, start:end].tolist()
            for slot, (start, end) in enumerate(zip(session.prompt_lengths, session.lengths, strict=True))
        ]
        return Outcome(outputs, ended - began, read - began, Counts.of(records).within(ended - read))

    def look(self, prompts: Sequence[Tensor], sampling: Sequence[SamplingParams]) -> Best:
        return look(self.parts, prompts, sampling)

    def lossless(self, temperature: float) -> bool:
        guarantee = self.parts.verifier.guarantee
        return guarantee is Guarantee.EXACT or (guarantee is Guarantee.GREEDY and temperature == 0)

    def forget(self) -> None:
        if self.make:
            self.parts = self.make()


def mode_of(target: Target) -> str:
    """How this target's forwards run."""
    return COMPILED if getattr(target, "compiled", None) else EAGER


def shortened(sampling: SamplingParams, most: int) -> SamplingParams:
    """The same wishes for at most so many tokens."""
    return replace(sampling, max_tokens=min(most, sampling.max_tokens))


def precision_of(model: Any) -> str:
    """The numbers a transformers model computes with, and whether its CPU has them."""
    dtype, device = getattr(model, "dtype", None), getattr(model, "device", None)
    if not isinstance(dtype, torch.dtype):
        return ""
    name = str(dtype).removeprefix("torch.").replace("bfloat", "bf").replace("float", "f")
    slow = dtype is torch.bfloat16 and getattr(device, "type", "") == "cpu" and not has_native_bfloat16()
    return f"{name}, not native" if slow else name
