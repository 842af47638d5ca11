"""transformers' `generate` as contenders: plain, assisted generation and prompt lookup, at the best of
several settings."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from outpace.bench.measure.acceptance_bound import AcceptanceBound
from outpace.bench.measure.best_setting import BestSetting, draft_depths, lookups, setting_name
from outpace.bench.measure.contender import Contender, MethodContender, RunOutcome, precision_of
from outpace.core.sampling_params import SamplingParams

PREFIX = "transformers"
DEFAULTS = "its defaults"


@dataclass
class TransformersContender:
    """`model.generate` with extra arguments. Batches are left-padded; with `single` prompts are decoded one
    at a time."""

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

    def run(self, prompts: Sequence[Tensor], sampling: Sequence[SamplingParams]) -> RunOutcome:
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
        return RunOutcome([_until(row, first.stop) for row in rows], seconds)

    def acceptance_bound(
        self, prompts: Sequence[Tensor], sampling: Sequence[SamplingParams]
    ) -> AcceptanceBound:
        return AcceptanceBound()  # draft tokens of another engine cannot be observed

    def lossless(self, temperature: float) -> bool:
        return True

    def reset(self) -> None:
        pass  # generate keeps no state between calls

    def close(self) -> None:
        pass  # the measurement owns the models


def _until(tokens: list[int], stop: Sequence[int]) -> list[int]:
    """The tokens up to and including the first stop token; later tokens are padding."""
    end = next((index for index, token in enumerate(tokens) if token in stop), len(tokens))
    return tokens[: end + 1]


def without_defaults(model: Any) -> Any:
    """Replace the checkpoint's generation config by one without sampling parameters, so that `generate`
    samples the model's unmodified distribution. Returns the model, changed in place."""
    kept = {name: getattr(model.generation_config, name, None) for name in ("bos_token_id", "pad_token_id")}
    model.generation_config = type(model.generation_config)(**kept)
    return model


def assisted(model: Any, draft: Any, depth: int) -> TransformersContender:
    """A contender with assisted generation at a constant draft length; drafts are not cut short at low draft
    confidence."""
    # shares the weights; a separate generation_config keeps the original's settings unchanged
    helper = copy.copy(draft)
    helper.generation_config = copy.deepcopy(draft.generation_config)
    helper.generation_config.num_assistant_tokens = depth
    helper.generation_config.num_assistant_tokens_schedule = "constant"
    helper.generation_config.assistant_confidence_threshold = 0.0
    arguments = {"assistant_model": helper}
    return TransformersContender(f"{PREFIX} assisted", model, arguments, {"depth": depth}, single=True)


def lookup(model: Any, depth: int, max_ngram: int) -> TransformersContender:
    """A contender with prompt lookup: `depth` draft tokens, n-grams of at most `max_ngram` tokens."""
    arguments = {"prompt_lookup_num_tokens": depth, "max_matching_ngram_size": max_ngram}
    options = {"depth": depth, "max_ngram": max_ngram}
    return TransformersContender(f"{PREFIX} prompt-lookup", model, arguments, options, single=True)


def peers(model: Any, draft: Any | None, methods: Sequence[MethodContender]) -> list[Contender]:
    """Plain generation; assisted generation if speculative-sampling is measured; prompt lookup if
    prompt-lookup is.

    The latter two are tried at transformers' defaults (assisted generation then adapts its draft length) and
    at the constant draft lengths that other peers are tried at.
    """
    without_defaults(model)
    rows: list[Contender] = [TransformersContender(f"{PREFIX} plain", model)]
    ways: dict[str, dict[str, TransformersContender]] = {}
    if draft is not None and (depths := draft_depths(methods)):
        without_defaults(draft)
        defaults = TransformersContender(f"{PREFIX} assisted", model, {"assistant_model": draft}, single=True)
        ways["assisted"] = {DEFAULTS: defaults} | {
            setting_name({"depth": depth}): assisted(model, draft, depth) for depth in depths
        }
    if found := lookups(methods):
        defaults = TransformersContender(
            f"{PREFIX} prompt-lookup", model, {"prompt_lookup_num_tokens": 10}, single=True
        )
        ways["prompt-lookup"] = {DEFAULTS: defaults} | {
            setting_name({"depth": depth, "max_ngram": max_ngram}): lookup(model, depth, max_ngram)
            for depth, max_ngram in found
        }
    for name, settings in ways.items():
        starts = {setting: partial(returned, contender) for setting, contender in settings.items()}
        rows.append(BestSetting(f"{PREFIX} {name}, best of {len(starts)} settings", starts, single=True))
    return rows


def returned(contender: TransformersContender) -> TransformersContender:
    """The contender itself: the start function of a setting whose models are already loaded."""
    return contender
