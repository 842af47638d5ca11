"""How a request's tokens are chosen: what the caller says, and the checkpoint's generation_config.json for the rest.

What that file asks for is honoured or refused, never ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from outpace.core.sampling_params import Grammar, SamplingParams
from outpace.sampling.grammar import follower

MAX_TOKENS = 256
OTHER_LAWS = (  # settings that change the distribution and that nothing here applies; the value that stands for "off"
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
    ("max_time", None),
    ("num_beams", 1),
    ("penalty_alpha", 0.0),
    ("dola_layers", None),
    ("constraints", None),
    ("force_words_ids", None),
)
OTHER_SAMPLING = (("top_h", 0.0), ("epsilon_cutoff", 0.0), ("eta_cutoff", 0.0))


Words = Sequence[str | Sequence[int]]  # text, or token ids


@dataclass(frozen=True)
class Settings:
    """What every row of a call shares."""

    params: SamplingParams
    stop: tuple[str, ...]
    processors: Sequence[Callable[[Any, Any], Any]] = field(
        default=()
    )  # transformers' logits processors, in order
    grammar: Callable[[], Grammar] | None = None  # makes one for each row, which follows the row's text

    def sampling(self, seed: int, room: int) -> SamplingParams:
        """The settings of one row, which has room for so many more tokens."""
        most = min(self.params.max_tokens, room)
        grammar = self.grammar() if self.grammar else None
        least = min(self.params.min_tokens, most)
        return replace(self.params, seed=seed, max_tokens=most, min_tokens=least, grammar=grammar)

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
    vocab: int | None = None,  # tokens the model has; None: not known yet
    max_tokens: int | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    typical_p: float | None = None,
    repetition_penalty: float | None = None,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    logit_bias: Mapping[Any, float] | None = None,
    bad_words: Words | None = None,
    min_tokens: int | None = None,
    grammar: str | None = None,
    json_schema: str | Mapping[str, Any] | None = None,
    stop: str | Sequence[str] | None = None,
    ignore_eos: bool = False,
) -> Settings:
    """The caller's wishes, completed from the checkpoint's defaults."""

    def default(name: str, off: Any) -> Any:
        return _or(getattr(defaults, name, None), off)

    sampled = getattr(defaults, "do_sample", None) is True
    if temperature is None:
        temperature = float(default("temperature", 1.0)) if sampled else 0.0
    if temperature:
        top_k, top_p = _or(top_k, default("top_k", 0)), _or(top_p, default("top_p", 1.0))
        min_p, typical_p = _or(min_p, default("min_p", 0.0)), _or(typical_p, default("typical_p", 1.0))
    most: int = _or(max_tokens, default("max_new_tokens", MAX_TOKENS))
    least: int = min(default("min_new_tokens", 0), most) if min_tokens is None else min_tokens
    suppressed = dict.fromkeys(default("suppress_tokens", None) or (), float("-inf"))
    params = SamplingParams(
        temperature=temperature,
        top_k=_or(top_k, 0),
        top_p=_or(top_p, 1.0),
        max_tokens=most,
        stop=() if ignore_eos else end_tokens(defaults, tokenizer),
        min_p=_or(min_p, 0.0),
        typical_p=_or(typical_p, 1.0),
        repetition_penalty=float(_or(repetition_penalty, default("repetition_penalty", 1.0))),
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        logit_bias=tuple((suppressed | _biases(logit_bias)).items()),
        bad_words=_bad_words(_or(bad_words, default("bad_words_ids", ())), tokenizer),
        min_tokens=least,
    )
    _known("logit_bias", [token for token, _ in params.logit_bias], vocab)
    _known("bad_words", [token for word in params.bad_words for token in word], vocab)
    strings = _strings(stop) + _strings(getattr(defaults, "stop_strings", None))
    each = None
    if grammar is not None or json_schema is not None:
        each = follower(tokenizer, vocab or 0, params.stop, grammar=grammar, json_schema=json_schema)
    return Settings(params, strings, processors(defaults, sampled=temperature > 0), each)


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
    if not defaults.no_repeat_ngram_size:
        return []
    from transformers.generation.logits_process import NoRepeatNGramLogitsProcessor

    return [NoRepeatNGramLogitsProcessor(defaults.no_repeat_ngram_size)]


def _biases(given: Mapping[Any, float] | None) -> dict[int, float]:
    """Token -> bias; JSON writes the token as a string."""
    try:
        return {int(token): float(bias) for token, bias in (given or {}).items()}
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"logit_bias maps token ids to numbers, as in {{42: -5}}, not {given!r}") from error


def _bad_words(given: Words, tokenizer: Any) -> tuple[tuple[int, ...], ...]:
    """The token sequences that spell these words, at the start of a text and after a space."""
    if isinstance(given, str):
        given = [given]
    found: dict[tuple[int, ...], None] = {}
    for word in given:
        if not isinstance(word, str):
            found[tuple(word)] = None
            continue
        if not word.strip():
            raise ValueError("a bad word is empty: it would forbid everything")
        if tokenizer is None:
            raise ValueError("bad words in text need a tokenizer: pass tokenizer=..., or token ids")
        for text in (word, " " + word.lstrip()):
            found[tuple(tokenizer(text, add_special_tokens=False)["input_ids"])] = None
    return tuple(found)


def _known(name: str, tokens: Sequence[int], vocab: int | None) -> None:
    strange = [token for token in tokens if vocab is not None and token >= vocab]
    if strange:
        raise ValueError(
            f"{name} names token {strange[0]}, but the model's tokens are 0 to {(vocab or 1) - 1}"
        )


def _strings(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    words = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if not all(words):
        raise ValueError("a stop string is empty: it would end every text before it begins")
    return words


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value
