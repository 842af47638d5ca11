"""Checks the arguments of `generate` and `stream` and loads the models they name."""

from __future__ import annotations

import inspect
import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outpace.api.decoding import Decoding
from outpace.api.methods import choose_method
from outpace.api.model import Model, as_model
from outpace.api.opener import ModelOpener, short_drafts
from outpace.api.prompts import Prediction, Prompt, encode, encode_predictions, prompt_list
from outpace.api.row_output import Piece
from outpace.api.settings import Settings, Words, only_ends, resolve_settings
from outpace.api.speculative_config import parse_speculative_config
from outpace.core.contracts import Parts, Recipe
from outpace.core.noise import derived
from outpace.core.sampling_params import PARAMETERS, whole_number
from outpace.recipes import configure
from outpace.recipes._exact import check_exact

# the sampling parameters among the arguments of `prepare`
SETTINGS = tuple(each.name for each in PARAMETERS if each.argument is not None)
UNLIMITED = 2**31  # maximum number of new tokens where the model has no maximum length


@dataclass
class Call:
    """Checked arguments of `generate` or `stream`.

    Lists have one element per row; a prompt with n samples has n rows.
    """

    model: Model
    prompts: list[list[int]]
    seeds: list[int]
    # maximum number of new tokens per row: the model's maximum length less the prompt
    max_new_tokens: list[int]
    settings: Settings
    recipe: Recipe
    options: Mapping[str, Any]  # keyword arguments of the recipe, with drafts loaded
    predictions: list[list[int]]  # token ids of the predicted output of each row; may be empty
    logprobs: int | None  # number of most probable tokens per Logprob; None: no log probabilities
    batch: int  # largest number of rows decoded together
    on_piece: Callable[[Piece], None] | None
    exact: bool = False  # refuse a method that changes the distribution of the output

    def parts(self) -> Parts:
        """New parts of the method (drafter, verifier, controller). ValueError if it is not EXACT, where that
        is asked for."""
        parts = self.recipe(self.model.target, **self.options)
        return check_exact(self.recipe, parts) if self.exact else parts

    def decode(self, parts: Parts | None = None, *, share_prompt: bool = False) -> Decoding:
        """Start decoding the rows. `parts`: those of an earlier call whose decoding has ended, with what they
        learned; None: new ones. `share_prompt`: all rows are samples of one prompt, which is read once."""
        return Decoding(
            self.parts() if parts is None else parts,
            self.prompts,
            self.seeds,
            self.max_new_tokens,
            self.settings,
            self.model.tokenizer,
            batch=self.batch,
            num_top=self.logprobs,
            predictions=self.predictions,
            on_piece=self.on_piece,
            share_prompt=share_prompt,
        )


def prepare(
    target: Any,
    prompts: Prompt | Sequence[Prompt],
    method: str | Path | Recipe | None = None,
    *,
    # of core/sampling_params.py, by scripts/sampling_parameters.py
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    typical_p: float | None = None,
    max_tokens: int | None = None,
    logit_bias: Mapping[Any, float] | None = None,
    repetition_penalty: float | None = None,
    presence_penalty: float | None = None,
    frequency_penalty: float | None = None,
    no_repeat_ngram_size: int | None = None,
    bad_words: Words | None = None,
    min_tokens: int | None = None,
    # end of these parameters
    grammar: str | None = None,
    json_schema: str | Mapping[str, Any] | None = None,
    stop: str | Sequence[str] | None = None,
    seed: int | Sequence[int] | None = None,
    n: int = 1,
    logprobs: int | None = None,
    prediction: Prediction | Sequence[Prediction | None] | None = None,
    ignore_eos: bool = False,
    defaults: bool = True,
    tokenizer: Any = None,
    batch: int = 8,
    on_piece: Callable[[Piece], None] | None = None,
    exact: bool = False,
    speculative_config: str | Mapping[str, Any] | None = None,
    **options: Any,
) -> Call:
    """Check the arguments of a call, load the models they name, and return them as a `Call`.

    Args:
        target: an `outpace.Model`, a name or folder, or a transformers causal language model.
        prompts: a text, a list of token ids or a list of chat messages, or a list of several of these.
        method: a name of `outpace list`, a recipe, or a recipe file. Default: speculative-sampling if
            a draft is given or the target has a usual draft (as `zoo:target` has); otherwise prompt-lookup.
        ...: the parameters of core/sampling_params.py.
        grammar: EBNF grammar that the new text follows (extra `grammar`).
        json_schema: JSON schema that the new text follows (extra `grammar`).
        stop: stop string or strings; the text ends before the first that occurs. They may be or contain
            special tokens, which are found although the text has none.
        seed: one for all prompts, or one each. Default: random; each result's statistics have its seed.
        n: number of samples per prompt, each with a different seed.
        logprobs: return log probabilities of each new token and of this number of most probable tokens.
        prediction: predicted output as text or token ids, used as draft tokens. One for all, or one each.
        ignore_eos: continue after the end-of-text token.
        defaults: apply the sampling settings of the checkpoint's generation_config.json; what ends a text
            applies in any case.
        tokenizer: in place of the target's own; a target given as a transformers model has none.
        batch: largest number of rows decoded together; one that ends makes room for the next.
        on_piece: called with a `Piece` for each step and row.
        exact: refuse a LOSSY method, whose output does not have the target's distribution.
        speculative_config: vLLM's --speculative-config (JSON or a dict), instead of method and options.
        **options: the method's options (`outpace show METHOD`), such as draft or depth (also
            num_speculative_tokens).

    A sampling parameter that is not given has the checkpoint's value; where it has none, that of the package,
    which is off but for max_tokens (256) and temperature (0). Raises ValueError for invalid values and
    TypeError for values of a wrong type.
    """
    arguments = locals()
    given = {name: arguments[name] for name in SETTINGS}
    if speculative_config is not None:
        if options or method is not None:
            raise ValueError("speculative_config has the method and its options: leave out the others")
        method, options = parse_speculative_config(speculative_config)
    _check_counts(n=n, batch=batch)
    recipe, options = choose_method(method, options, target_name(target))
    model = as_model(target, tokenizer)
    vocab = model.target.vocab
    listed = prompt_list(prompts)
    names = ["the prompt"] if len(listed) == 1 else [f"prompt {i}" for i in range(1, len(listed) + 1)]
    tokens = [
        encode(model.tokenizer, prompt, vocab, name) for prompt, name in zip(listed, names, strict=True)
    ]
    settings = resolve_settings(
        given,
        model.defaults if defaults else only_ends(model.defaults),
        model.tokenizer,
        vocab=vocab,
        stop=stop,
        grammar=grammar,
        json_schema=json_schema,
        ignore_eos=ignore_eos,
    )
    if settings.stop and model.tokenizer is None:
        raise ValueError("stop strings need a tokenizer: pass tokenizer=...")
    settings.check_samples(n)
    if logprobs is not None and not 0 <= whole_number("logprobs", logprobs) <= vocab:
        raise ValueError(f"logprobs is {logprobs}; use a number of tokens from 0 to {vocab}")
    row_seeds = [derived(each, sample) for each in prompt_seeds(seed, len(tokens)) for sample in range(n)]
    predicted = encode_predictions(model.tokenizer, prediction, len(tokens), vocab)
    tokens, predicted = ([each for each in rows for _ in range(n)] for rows in (tokens, predicted))
    max_new_tokens = free_lengths(model, tokens, settings)
    values = configure(recipe, model.target, options, ModelOpener(model), others=_keywords())
    max_new = settings.params.max_tokens
    pairs = zip(tokens, max_new_tokens, strict=True)
    for sentence in short_drafts(values, max(len(prompt) + min(max_new, free) for prompt, free in pairs)):
        warnings.warn(sentence, stacklevel=3)
    return Call(
        model,
        tokens,
        row_seeds,
        max_new_tokens,
        settings,
        recipe,
        values,
        predicted,
        logprobs,
        batch,
        on_piece,
        exact,
    )


def _keywords() -> list[str]:
    """The keywords of a call that are no options of a method."""
    parameters = inspect.signature(prepare).parameters.values()
    return [each.name for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY]


def target_name(target: Any) -> str:
    """The name or folder of the target; empty for a transformers model."""
    if isinstance(target, Model):
        return target.name
    return str(target) if isinstance(target, str | Path) else ""


def prompt_seeds(seed: int | Sequence[int] | None, count: int) -> list[int]:
    """One seed per prompt: random if None, one for all, or the given list.

    The random numbers of a row depend on its seed only, not on the other rows. Raises ValueError for a wrong
    number of seeds.
    """
    if seed is None:
        return [random.getrandbits(32) for _ in range(count)]
    if not isinstance(seed, Sequence):
        return [whole_number("seed", seed)] * count
    if len(seed) != count:
        raise ValueError(f"there are {count} prompts and {len(seed)} seeds: give one seed, or one each")
    return [whole_number("seed", each) for each in seed]


def free_lengths(model: Model, prompts: Sequence[Sequence[int]], settings: Settings) -> list[int]:
    """Maximum number of new tokens per prompt: the model's maximum length, or the checkpoint's max_length
    where the settings have it, less the prompt's length.

    Raises ValueError for a prompt that is as long as one of both.
    """
    limit = UNLIMITED if model.max_length is None else model.max_length
    for index, prompt in enumerate(prompts, 1):
        if len(prompt) >= limit:
            which = "the prompt" if len(prompts) == 1 else f"prompt {index}"
            raise ValueError(
                f"{which} has {len(prompt)} tokens, but {model.name} reads at most {limit}: shorten it"
            )
    return [settings.free_length(len(prompt), limit) for prompt in prompts]


def _check_counts(**counts: Any) -> None:
    for name, value in counts.items():
        if whole_number(name, value) < 1:
            raise ValueError(f"{name} is {value}; use at least 1")
