"""Contenders of a benchmark: methods and peer engines that generate from prompts and report the seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, Protocol

import torch
from torch import Tensor

from outpace.bench.measure.acceptance_bound import AcceptanceBound, acceptance_bound
from outpace.bench.measure.metrics import Counts, StepRecord, reads_prompts
from outpace.core.contracts import Guarantee, Parts, Target
from outpace.core.sampling_params import SamplingParams
from outpace.engine.engine import Engine
from outpace.models import native_dtypes

COMPILED, EAGER = "compiled", "eager"  # modes: how forwards run


class PeerFailed(RuntimeError):
    """Another engine failed and is not used again; the others go on."""


class PeerRefused(ValueError):
    """A run that another engine does not support; it can make other runs."""


@dataclass(frozen=True)
class RunOutcome:
    """The new tokens and the seconds of one run."""

    outputs: list[list[int]]  # new tokens per prompt
    seconds: float  # seconds of prefill and decoding
    # seconds of the steps that read prompts, and number of tokens generated in them; None: not reported
    prompt_seconds: float | None = None
    early_tokens: int | None = None
    counts: Counts | None = None  # acceptance counts; None: a peer engine, which reports none


class Contender(Protocol):
    """A method or a peer engine with its models."""

    name: str  # unique name, used in tables
    kind: str  # "outpace" or "peer"
    single: bool  # decodes one prompt at a time, not a batch

    @property
    def options(self) -> Mapping[str, Any]: ...

    @property
    def precision(self) -> str:
        """Data type of the computation, such as bf16; "" if it is not reported."""
        ...

    @property
    def mode(self) -> str:
        """COMPILED or EAGER forwards; "" if it is not reported."""
        ...

    def run(self, prompts: Sequence[Tensor], sampling: Sequence[SamplingParams]) -> RunOutcome: ...

    def acceptance_bound(
        self, prompts: Sequence[Tensor], sampling: Sequence[SamplingParams]
    ) -> AcceptanceBound:
        """Acceptance of first draft tokens and its upper bound, from untimed decoding; empty if draft tokens
        are not visible or not sampled."""
        ...

    def lossless(self, temperature: float) -> bool:
        """Whether the output is guaranteed to have the target's distribution at this temperature."""
        ...

    def reset(self) -> None:
        """Drop the state learnt from earlier prompts."""
        ...


@dataclass
class MethodContender:
    """A recipe run by the engine. State that its parts learn from a prompt is used for later prompts, until
    `reset` builds new parts."""

    name: str
    method: str
    parts: Parts
    options: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "outpace"
    single: bool = False
    clock: Callable[[], float] = perf_counter
    build: Callable[[], Parts] | None = None  # builds new parts; None: the parts learn nothing
    max_length: int | None = None  # tokens of prompt and output that its draft models read; None: no limit

    @property
    def precision(self) -> str:
        compiled = getattr(self.parts.target, "compiled", None)
        name = precision_of(getattr(self.parts.target, "model", None), getattr(compiled, "precision", None))
        compressed = getattr(self.parts.target, "compressed_weights", None)
        kv_cache = getattr(self.parts.target, "kv_cache", None)
        parts = [
            name,
            f"{compressed.format} weights" if compressed else "",
            kv_cache and f"{kv_cache} KV cache",
        ]
        return ", ".join(part for part in parts if part)

    @property
    def mode(self) -> str:
        return mode_of(self.parts.target)

    def run(self, prompts: Sequence[Tensor], sampling: Sequence[SamplingParams]) -> RunOutcome:
        records: list[StepRecord] = []
        last = began = self.clock()
        engine = Engine.of(self.parts, prompts, sampling)
        reading, early = 0.0, 0
        for step in engine.steps():
            if reads_prompts(step):
                now = self.clock()
                reading, early = reading + now - last, early + sum(map(len, step.generated))
            if any(step.generated):
                records.append(StepRecord.of(step))
            last = self.clock()
        seconds = last - began
        outputs = [engine.output(slot) for slot in range(len(prompts))]
        return RunOutcome(outputs, seconds, reading, early, Counts.of(records).within(seconds - reading))

    def acceptance_bound(
        self, prompts: Sequence[Tensor], sampling: Sequence[SamplingParams]
    ) -> AcceptanceBound:
        return acceptance_bound(self.parts, prompts, sampling)

    def lossless(self, temperature: float) -> bool:
        guarantee = self.parts.guarantee
        return guarantee is Guarantee.EXACT or (guarantee is Guarantee.GREEDY and temperature == 0)

    def reset(self) -> None:
        if self.build:
            self.parts = self.build()


def mode_of(target: Target) -> str:
    """COMPILED if the target's forwards are compiled, else EAGER."""
    return COMPILED if getattr(target, "compiled", None) else EAGER


def shortened(sampling: SamplingParams, max_tokens: int) -> SamplingParams:
    """A copy of the parameters with at most this many new tokens."""
    return replace(sampling, max_tokens=min(max_tokens, sampling.max_tokens))


def precision_of(model: Any, computed: torch.dtype | None = None) -> str:
    """Data type of a transformers model as text, such as "bf16"; "bf16, not native" on a CPU that emulates
    it; "bf16, computed in f32" if compiled forwards compute in another one, `computed`; "" if unknown."""
    dtype, device = getattr(model, "dtype", None), getattr(model, "device", None)
    if not isinstance(dtype, torch.dtype):
        return ""
    name = _short(dtype)
    if computed is not None:
        return name if computed == dtype else f"{name}, computed in {_short(computed)}"
    on_cpu = getattr(device, "type", "") == "cpu"
    return f"{name}, not native" if on_cpu and not native_dtypes.is_native(dtype) else name


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.").replace("bfloat", "bf").replace("float", "f")
