"""transformers' own generation as contenders: plain, assisted, prompt lookup; at our settings and at its defaults."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from outpace.bench.measure.acceptance_ceiling import Best
from outpace.bench.measure.contender import Engine, Outcome, precision_of
from outpace.core.sampling_params import SamplingParams

PREFIX = "transformers"


@dataclass
class Generate:
    """`model.generate` with some arguments. One prompt at a time, or left-padded together where it can."""

    name: str
    model: Any
    arguments: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "peer"
    mode: str = ""
    single: bool = False
    clock: Callable[[], float] = perf_counter

    @property
    def precision(self) -> str:
        return precision_of(self.model)

    def run(self, prompts: Sequence[Tensor], sampling: Sequence[SamplingParams]) -> Outcome:
        first = sampling[0]
        device = self.model.device
        longest = max(map(len, prompts))
        ids = torch.zeros(len(prompts), longest, dtype=torch.int64)
        seen = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = prompt
            seen[row, longest - len(prompt) :] = 1
        row_params: dict[str, Any] = {
            "max_new_tokens": first.max_tokens,
            "do_sample": not first.greedy,
            "eos_token_id": list(first.stop) or None,
            "pad_token_id": first.stop[0] if first.stop else 0,
        }
        if first.repetition_penalty != 1:
            row_params["repetition_penalty"] = float(first.repetition_penalty)
        if not first.greedy:
            row_params |= {"temperature": first.temperature, "top_k": first.top_k, "top_p": first.top_p}
            row_params |= {"min_p": first.min_p} if first.min_p else {}
        with torch.random.fork_rng(), torch.inference_mode():
            torch.manual_seed(first.seed)
            began = self.clock()
            out = self.model.generate(
                ids.to(device), attention_mask=seen.to(device), **row_params, **self.arguments
            )
            rows = out[:, longest:].tolist()
            seconds = self.clock() - began
        return Outcome([_until(row, first.stop) for row in rows], seconds)

    def look(self, prompts: Sequence[Tensor], sampling: Sequence[SamplingParams]) -> Best:
        return Best()  # what it drafts is not seen from outside

    def lossless(self, temperature: float) -> bool:
        return True

    def forget(self) -> None:
        pass  # no engine beside ours is given anything to keep


def _until(tokens: list[int], stop: Sequence[int]) -> list[int]:
    """The tokens up to the first stop token, which stays; what follows it is padding."""
    end = next((place for place, token in enumerate(tokens) if token in stop), len(tokens))
    return tokens[: end + 1]


def neutral(model: Any) -> Any:
    """Forget the defaults a checkpoint brings, so that `generate` keeps the model's own distribution and ends where told."""
    kept = {name: getattr(model.generation_config, name, None) for name in ("bos_token_id", "pad_token_id")}
    model.generation_config = type(model.generation_config)(**kept)
    return model


def assisted(model: Any, draft: Any, depth: int) -> Generate:
    """Assisted generation with a constant draft of this length, never cut short."""
    helper = copy.copy(
        draft
    )  # the settings stand on the helper's own configuration: leave the default row's alone
    helper.generation_config = copy.deepcopy(draft.generation_config)
    helper.generation_config.num_assistant_tokens = depth
    helper.generation_config.num_assistant_tokens_schedule = "constant"
    helper.generation_config.assistant_confidence_threshold = 0.0
    name = f"{PREFIX} assisted:depth={depth}"
    return Generate(name, model, {"assistant_model": helper}, {"depth": depth}, single=True)


def lookup(model: Any, depth: int, max_ngram: int) -> Generate:
    """Prompt lookup with this length and largest n-gram."""
    arguments = {"prompt_lookup_num_tokens": depth, "max_matching_ngram_size": max_ngram}
    name = f"{PREFIX} prompt-lookup:depth={depth},max_ngram={max_ngram}"
    return Generate(name, model, arguments, {"depth": depth, "max_ngram": max_ngram}, single=True)


def peers(model: Any, draft: Any | None, engines: Sequence[Engine]) -> list[Generate]:
    """transformers' counterpart of every engine row that has one, and its own defaults."""
    neutral(model)
    found = {f"{PREFIX} plain": Generate(f"{PREFIX} plain", model)}
    for engine in engines:
        depth = engine.options.get("depth")
        peer = None
        if engine.method == "speculative-sampling" and draft is not None:
            peer = assisted(model, neutral(draft), int(depth or 5))
        elif engine.method == "prompt-lookup":
            peer = lookup(model, int(depth or 10), int(engine.options.get("max_ngram", 3)))
        if peer:
            found.setdefault(peer.name, peer)
    if draft is not None:
        name = f"{PREFIX} assisted (its defaults)"
        found[name] = Generate(name, model, {"assistant_model": neutral(draft)}, single=True)
    if any(engine.method == "prompt-lookup" for engine in engines):
        name = f"{PREFIX} prompt-lookup (its defaults)"
        found[name] = Generate(name, model, {"prompt_lookup_num_tokens": 10}, single=True)
    return list(found.values())
