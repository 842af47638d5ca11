"""Sampling settings of a call, with defaults from the checkpoint's generation_config.json.

Settings of that file that change the distribution are applied, or raise a ValueError if not supported.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from operator import index
from types import SimpleNamespace
from typing import Any

from outpace.api.logprobs import token_text
from outpace.api.prompts import check_text
from outpace.api.stop_strings import all_special_tokens, special_tokens
from outpace.core.sampling_params import (
    BY_NAME,
    PARAMETERS,
    TRUNCATIONS,
    Grammar,
    SamplingParams,
    whole_number,
)
from outpace.sampling.grammar import compile_grammar

# names of sampling parameters in generation_config.json; those that transformers lacks have their own
IN_GENERATION_CONFIG = {
    each.name: each.transformers or each.name
    for each in PARAMETERS
    if each.name not in ("stop", "seed", "grammar")
}
# settings of transformers that change the output and are not supported -> their value that has no effect
UNSUPPORTED = {
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "exponential_decay_length_penalty": None,
    "begin_suppress_tokens": None,
    "sequence_bias": None,
    "guidance_scale": 1.0,
    "watermarking_config": None,
    "encoder_repetition_penalty": 1.0,
    "encoder_no_repeat_ngram_size": 0,
    "min_length": 0,
    "max_time": None,
    "num_beams": 1,
    "penalty_alpha": 0.0,
    "dola_layers": None,
    "constraints": None,
    "force_words_ids": None,
}
UNSUPPORTED_IN_SAMPLING = {  # ignored when greedy
    name: off
    for name, off in {"top_h": 0.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0}.items()
    if name not in IN_GENERATION_CONFIG.values()
}
TRUNCATION = {each.name for each in TRUNCATIONS}  # the checkpoint's defaults are dropped when greedy
MAX_TOKENS = SamplingParams().max_tokens  # default of the package

Words = str | Sequence[str | Sequence[int]]  # one word, or a list of words; a word is text or token ids


@dataclass(frozen=True)
class Settings:
    """Sampling settings shared by all rows of a call."""

    params: SamplingParams
    stop: tuple[str, ...] = ()  # stop strings
    special_tokens: Mapping[int, str] = field(default_factory=dict)  # by id, if stop strings name some
    include_stop: bool = False  # the text has the stop string, or the stop token, that ended it
    skip_special_tokens: bool = True  # the text has no special tokens but those of `shown`
    grammar: Callable[[], Grammar] | None = None  # returns a new grammar matcher for one row
    shown: Mapping[int, str] = field(default_factory=dict)  # special tokens by id that the text has
    ends: tuple[int, ...] = ()  # those of `params.stop` that the caller did not name as stop_token_ids
    # most tokens of prompt and new text together: the checkpoint's, where no number of new tokens is set
    max_length: int | None = None

    def free_length(self, num_prompt: int, limit: int) -> int:
        """How many new tokens a prompt of `num_prompt` tokens may get from a model that reads `limit` tokens.
        ValueError for a prompt that is as long as the checkpoint's max_length."""
        if self.max_length is None:
            return limit - num_prompt
        if num_prompt >= self.max_length:
            raise ValueError(
                f"the prompt has {num_prompt} tokens, but the model's generation_config ends texts at "
                f"max_length {self.max_length}, prompt included: set max_tokens, which takes precedence"
            )
        return min(limit, self.max_length) - num_prompt

    def check_samples(self, n: int) -> None:
        """ValueError for several samples of a prompt at temperature 0."""
        if n > 1 and self.params.greedy:
            raise ValueError(
                f"n is {n}, but at temperature 0 all samples are the same: use a temperature above 0"
            )

    def row_params(self, seed: int, max_new_tokens: int) -> SamplingParams:
        """The sampling parameters of one row. `max_new_tokens` is how many tokens the model's maximum length
        leaves; the smaller of it and `max_tokens` applies."""
        max_tokens = min(self.params.max_tokens, max_new_tokens)
        return replace(
            self.params,
            seed=seed,
            max_tokens=max_tokens,
            min_tokens=min(self.params.min_tokens, max_tokens),
            grammar=self.grammar() if self.grammar else None,
        )


def resolve_settings(
    given: Mapping[str, Any],  # fields of SamplingParams by name; None: not given
    defaults: Any = None,  # the checkpoint's transformers GenerationConfig, or None
    tokenizer: Any = None,
    *,
    vocab: int | None = None,  # None: token ids are not checked
    most_tokens: int = MAX_TOKENS,  # max_tokens where neither the caller nor the checkpoint says anything
    stop: str | Sequence[str] | None = None,
    grammar: str | None = None,
    json_schema: str | Mapping[str, Any] | None = None,
    ignore_eos: bool = False,
    shown: Collection[str] = (),  # special tokens that the text has all the same
    stop_token_ids: Sequence[int] = (),  # end the text too, also with ignore_eos
    include_stop_str_in_output: bool = False,  # the text has the stop string or token that ended it
    skip_special_tokens: bool = True,  # the text has no special tokens but those of `shown`
) -> Settings:
    """Settings of a call: given values, else the checkpoint's defaults, else those of SamplingParams.

    Raises ValueError for an invalid value, or for a default of the checkpoint that is not supported.
    """
    given = {name: value for name, value in given.items() if value is not None}
    found = _defaults(defaults) | given
    max_length = None if "max_tokens" in found else getattr(defaults, "max_length", None)
    found.setdefault("max_tokens", max_length or most_tokens)
    if "temperature" not in given and getattr(defaults, "do_sample", None) is not True:
        found["temperature"] = 0.0
    if not found["temperature"]:
        found = {name: value for name, value in found.items() if name not in TRUNCATION or name in given}
    if "min_tokens" not in given and isinstance(max_tokens := found["max_tokens"], Integral):
        found["min_tokens"] = min(found.get("min_tokens", 0), int(max_tokens))
    suppressed = dict.fromkeys(getattr(defaults, "suppress_tokens", None) or (), float("-inf"))
    found["logit_bias"] = tuple((suppressed | _biases(given.get("logit_bias"))).items())
    found["bad_words"] = _bad_words(found.get("bad_words", ()), tokenizer)
    strings = _strings(stop) + _strings(getattr(defaults, "stop_strings", None))
    _check_tokens("stop_token_ids", stop_token_ids, vocab)
    named = [*(() if ignore_eos else end_tokens(defaults, tokenizer)), *_special_tokens(strings, tokenizer)]
    ends = tuple(token for token in dict.fromkeys(named) if vocab is None or token < vocab)
    found["stop"] = tuple(dict.fromkeys((*ends, *stop_token_ids)))
    params = SamplingParams(**found)
    _check_supported(defaults, sampled=params.temperature > 0)
    _check_tokens("logit_bias", [token for token, _ in params.logit_bias], vocab)
    _check_tokens("bad_words", [token for word in params.bad_words for token in word], vocab)
    make_grammar = None
    if grammar is not None or json_schema is not None:
        # without `stop_token_ids`, which may be a part of the text that follows the grammar
        make_grammar = compile_grammar(tokenizer, vocab or 0, ends, grammar=grammar, json_schema=json_schema)
    return Settings(
        params,
        strings,
        special_tokens(strings, tokenizer),
        include_stop_str_in_output,
        skip_special_tokens,
        make_grammar,
        _shown(shown, tokenizer, () if include_stop_str_in_output else found["stop"], skip_special_tokens),
        ends,
        max_length,
    )


def _shown(
    names: Collection[str], tokenizer: Any, without: Sequence[int], skip_special_tokens: bool
) -> dict[int, str]:
    """Id -> text of the special tokens that the text has: those of these names or all, `without` some."""
    if tokenizer is None or (skip_special_tokens and not names):
        return {}
    found = all_special_tokens(tokenizer).items()
    wanted = names if skip_special_tokens else {text for _, text in found}
    return {token: text for token, text in found if text in wanted and token not in without}


def only_ends(defaults: Any) -> Any:
    """What ends a text, of the checkpoint's generation_config, without its sampling settings."""
    kept = ("eos_token_id", "stop_strings")
    return SimpleNamespace(**{name: getattr(defaults, name, None) for name in kept})


def generation_overrides(given: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of SamplingParams from settings by their names in generation_config.json, or by their own.
    ValueError for other names."""
    names = {other: name for name, other in IN_GENERATION_CONFIG.items()}
    names |= {name: name for name in IN_GENERATION_CONFIG}
    if unknown := sorted(given.keys() - names):
        known = ", ".join(sorted(names))
        raise ValueError(f"{unknown[0]} is no sampling default that can be set: use {known}")
    return {names[name]: value for name, value in given.items()}


def end_tokens(defaults: Any, tokenizer: Any) -> tuple[int, ...]:
    """End-of-text token ids: of the generation_config, which may have several, else of the tokenizer."""
    ends = getattr(defaults, "eos_token_id", None)
    if ends is None:
        ends = getattr(tokenizer, "eos_token_id", None)
    if ends is None:
        return ()
    return tuple(int(end) for end in (ends if isinstance(ends, list | tuple) else [ends]))


def _check_supported(defaults: Any, *, sampled: bool) -> None:
    """ValueError for settings of the checkpoint's generation_config that are not supported.

    sampled: whether the temperature is above 0; some settings have no effect in greedy decoding.
    """
    refused = UNSUPPORTED | (UNSUPPORTED_IN_SAMPLING if sampled else {})
    named = [name for name, off in refused.items() if getattr(defaults, name, None) not in (None, off)]
    if named:
        raise ValueError(
            f"the model's generation_config sets {', '.join(named)}, which is not supported here: "
            "ignore its defaults with defaults=False (--no-defaults)"
        )


def _defaults(defaults: Any) -> dict[str, Any]:
    """The fields of SamplingParams set by the checkpoint's generation_config, temperature always included."""
    found = {"temperature": 1.0}  # transformers' default where do_sample is set without a temperature
    for name, in_config in IN_GENERATION_CONFIG.items():
        if (value := getattr(defaults, in_config, None)) is not None:
            found[name] = float(value) if isinstance(BY_NAME[name].default, float) else value
    return found


def _biases(given: Mapping[Any, float] | None) -> dict[int, float]:
    """Token id -> bias; keys may be strings, as in JSON. Raises ValueError for other values."""
    try:
        items = (given or {}).items()
        return {int(key) if isinstance(key, str) else index(key): float(bias) for key, bias in items}
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"logit_bias maps token ids to numbers, as in {{42: -5}}, not {given!r:.60}"
        ) from error


def _bad_words(given: Words, tokenizer: Any) -> tuple[tuple[int, ...], ...]:
    """Token sequences of the bad words; text is encoded twice, with and without a leading space.

    Raises ValueError for an empty word, or for text without a tokenizer.
    """
    found: dict[tuple[int, ...], None] = {}
    words = [given] if isinstance(given, str) else given
    if not isinstance(words, Collection) or not all(isinstance(word, Collection) for word in words):
        raise ValueError(f"bad_words is {given!r:.60}; use a list of texts or of lists of token ids")
    for word in words:
        if not isinstance(word, str):
            found[tuple(whole_number("a token of bad_words", token) for token in word)] = None
            continue
        if not word.strip():
            raise ValueError("a bad word is empty: it would forbid everything")
        check_text(word, "a bad word")
        if tokenizer is None:
            raise ValueError("bad words in text need a tokenizer: pass tokenizer=..., or token ids")
        for text in (word, " " + word.lstrip()):
            found[tuple(tokenizer(text, add_special_tokens=False)["input_ids"])] = None
    return tuple(found)


def _check_tokens(name: str, tokens: Sequence[int], vocab: int | None) -> None:
    unknown = [token for token in tokens if token < 0 or (vocab is not None and token >= vocab)]
    if unknown:
        raise ValueError(
            f"{name} names token {unknown[0]}, but the model's tokens are 0 to {(vocab or 1) - 1}"
        )


def _strings(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) else stop or ()
    if not isinstance(strings, Sequence) or not all(isinstance(each, str) for each in strings):
        raise ValueError(f"stop is {stop!r}; use a string, or a list of strings")
    if not all(strings):
        raise ValueError("a stop string is empty: it would end every text before it begins")
    for each in strings:
        check_text(each, "a stop string")
    return tuple(strings)


def _special_tokens(strings: Sequence[str], tokenizer: Any) -> list[int]:
    """Stop strings that are special tokens: the text has none of them, so they are found by id."""
    if tokenizer is None:
        return []
    found: list[int] = []
    for word in strings:
        tokens = tokenizer(word, add_special_tokens=False)["input_ids"]
        is_one = tokenizer.convert_ids_to_tokens(tokens) == [word]
        if is_one and not token_text(tokenizer, tokens[0], skip_special_tokens=True):
            found += tokens
    return found
