"""How a request's tokens are chosen: what the caller says, and the checkpoint's generation_config.json for the rest.

What that file asks for is honoured or refused, never ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from outpace.core.context import Sampling

MAX_TOKENS = 256
OTHER_LAWS = (  # settings that change the law and that nothing here applies; the value that stands for "off"
    ("forced_bos_token_id", None),
    ("forced_eos_token_id", None),
    ("exponential_decay_length_penalty", None),
    ("begin_suppress_tokens", None),
    ("sequence_bias", None),
    ("guidance_scale", 1.0),
    ("watermarking_config", None),
    ("encoder_repetition_penalty", 1.0),
    ("encoder_no_repeat_ngram_size", 0),
    ("min_length", 0),
    ("min_new_tokens", 0),
    ("max_time", None),
    ("num_beams", 1),
    ("penalty_alpha", 0.0),
    ("dola_layers", None),
    ("constraints", None),
    ("force_words_ids", None),
)
OTHER_SAMPLING = (("min_p", 0.0), ("top_h", 0.0), ("typical_p", 1.0), ("epsilon_cutoff", 0.0), ("eta_cutoff", 0.0))


@dataclass(frozen=True)
class Settings:
    """What every row of a call shares."""

    temperature: float
    top_k: int
    top_p: float
    max_tokens: int
    stop_tokens: tuple[int, ...]
    stop: tuple[str, ...]
    processors: Sequence[Callable[[Any, Any], Any]] = field(default=())  # transformers' logits processors, in order

    def sampling(self, seed: int, room: int) -> Sampling:
        """The settings of one row, which has room for so many more tokens."""
        return Sampling(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            max_tokens=min(self.max_tokens, room),
            stop=self.stop_tokens,
            seed=seed,
        )

    @property
    def processor(self) -> Callable[[Tensor, Tensor], Tensor] | None:
        """All processors as one, or None."""
        if not self.processors:
            return None

        def process(history: Tensor, logits: Tensor) -> Tensor:  # (1, T), (1, V) -> (1, V)
            logits = logits.clone()  # processors may write where they read
            for processor in self.processors:
                logits = processor(history, logits)
            return logits

        return process


def settle(
    defaults: Any,  # a transformers GenerationConfig, or None
    tokenizer: Any,
    *,
    max_tokens: int | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    stop: str | Sequence[str] | None = None,
    ignore_eos: bool = False,
) -> Settings:
    """The caller's wishes, completed from the checkpoint's defaults."""
    sampled = getattr(defaults, "do_sample", None) is True
    if temperature is None:
        temperature = float(_or(getattr(defaults, "temperature", None), 1.0)) if sampled else 0.0
    if temperature:
        top_k = top_k if top_k is not None else getattr(defaults, "top_k", None)
        top_p = top_p if top_p is not None else getattr(defaults, "top_p", None)
    if max_tokens is None:
        max_tokens = getattr(defaults, "max_new_tokens", None)
    settings = Settings(
        temperature=temperature,
        top_k=_or(top_k, 0),
        top_p=_or(top_p, 1.0),
        max_tokens=_or(max_tokens, MAX_TOKENS),
        stop_tokens=() if ignore_eos else end_tokens(defaults, tokenizer),
        stop=_strings(stop) + _strings(getattr(defaults, "stop_strings", None)),
        processors=processors(defaults, sampled=temperature > 0),
    )
    settings.sampling(0, settings.max_tokens)  # raises for values that make no sense, before a model runs
    return settings


def end_tokens(defaults: Any, tokenizer: Any) -> tuple[int, ...]:
    """The ids that end a text; a checkpoint may name several."""
    ends = getattr(defaults, "eos_token_id", None)
    if ends is None:
        ends = getattr(tokenizer, "eos_token_id", None)
    if ends is None:
        return ()
    return tuple(int(end) for end in (ends if isinstance(ends, list | tuple) else [ends]))


def processors(defaults: Any, *, sampled: bool) -> list[Callable[[Any, Any], Any]]:
    """The processors that the checkpoint's defaults ask for, or one sentence about those that are not supported."""
    if defaults is None:
        return []
    refused = OTHER_LAWS + (OTHER_SAMPLING if sampled else ())
    if named := [name for name, off in refused if getattr(defaults, name, None) not in (None, off)]:
        raise ValueError(
            f"the model's generation_config sets {', '.join(named)}, which is not supported here: "
            "leave its defaults aside with defaults=False (--no-defaults)"
        )
    from transformers.generation.logits_process import (
        LogitsProcessor,
        NoBadWordsLogitsProcessor,
        NoRepeatNGramLogitsProcessor,
        RepetitionPenaltyLogitsProcessor,
        SuppressTokensLogitsProcessor,
    )

    found: list[LogitsProcessor] = []
    if _or(defaults.repetition_penalty, 1.0) != 1:
        found.append(RepetitionPenaltyLogitsProcessor(float(defaults.repetition_penalty)))
    if defaults.no_repeat_ngram_size:
        found.append(NoRepeatNGramLogitsProcessor(defaults.no_repeat_ngram_size))
    if defaults.bad_words_ids:
        found.append(NoBadWordsLogitsProcessor(defaults.bad_words_ids, defaults.eos_token_id))
    if defaults.suppress_tokens:
        found.append(SuppressTokensLogitsProcessor(defaults.suppress_tokens))
    return list(found)


def _strings(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    words = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if not all(words):
        raise ValueError("a stop string is empty: it would end every text before it begins")
    return words


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value
