"""Decoding prompts with a method: all at once, batch by batch, or piece by piece."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from outpace.api.model import Model, ModelOpener, drafts_reach, room, wrap
from outpace.api.prompts import Prediction, Prompt, encode, listed, predictions
from outpace.api.run import Piece, Result, Run
from outpace.api.settings import Settings, Words, settle
from outpace.api.speculative_config import translate
from outpace.api.stream import Stream
from outpace.core.contracts import Parts, Recipe
from outpace.core.noise import derived
from outpace.recipes import configure, meant

METHOD = "speculative-sampling"


@dataclass
class Job:
    """A call that has been checked: everything that can be wrong with its arguments has been found by now."""

    model: Model
    prompts: list[list[int]]  # one a row: a prompt of which several samples are wanted stands here as often
    seeds: list[int]
    room: list[int]
    settings: Settings
    recipe: Recipe
    options: Mapping[str, Any]  # the recipe's keyword arguments, other models loaded
    predictions: list[list[int]]  # what each row's answer probably is, if anything is known
    logprobs: int | None = None

    def parts(self) -> Parts:
        """New parts, which have learnt nothing yet."""
        return self.recipe(self.model.target, **self.options)

    def run(self, start: int, end: int, parts: Parts) -> Run:
        """Some of the prompts as one batch."""
        part = slice(start, end)
        return Run(
            parts,
            self.prompts[part],
            self.seeds[part],
            self.room[part],
            self.settings,
            self.model.tokenizer,
            num_top=self.logprobs,
            predictions=self.predictions[part],
        )


def generate(
    target: Any, prompts: Prompt | Sequence[Prompt], method: Any = METHOD, **options: Any
) -> list[Result]:
    """One result a sample, those of the first prompt first. Options are those of `prepare`, all others go to the
    method."""
    return list(generate_each(target, prompts, method, **options))


def generate_each(
    target: Any,
    prompts: Prompt | Sequence[Prompt],
    method: Any = METHOD,
    *,
    batch: int = 8,
    after: Callable[[Piece], None] = lambda piece: None,  # told what each step added to each row
    **options: Any,
) -> Iterator[Result]:
    """The same results, each batch as soon as it is there."""
    if batch < 1:
        raise ValueError(f"batch is {batch}; decode at least one prompt at a time")
    with ExitStack() as stack:
        job = prepare(stack, target, prompts, method, **options)
        parts = job.parts()  # once: what they learn in a batch serves the next
        for start in range(0, len(job.prompts), batch):
            run = job.run(start, start + batch, parts)
            for piece in run:
                after(piece)
            yield from run.results()


def stream(target: Any, prompt: Prompt, method: Any = METHOD, **options: Any) -> Stream:
    """The text of one prompt, piece by piece."""
    with ExitStack() as stack:
        job = prepare(stack, target, prompt, method, **options)
        if len(job.prompts) != 1:
            raise ValueError(
                f"stream takes one prompt and one sample, not {len(job.prompts)}; generate takes several"
            )
        run = job.run(0, 1, job.parts())
        return Stream(run, stack.pop_all())


def prepare(
    stack: ExitStack,
    target: Any,  # what load returned, a name, or a transformers model
    prompts: Prompt | Sequence[Prompt],  # text, token ids or chat messages, one or several
    method: Any = METHOD,  # a name, a recipe, or a recipe file
    *,
    max_tokens: int | None = None,  # None: what the checkpoint says, or 256
    temperature: float | None = None,  # None: what the checkpoint says, or greedy
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    typical_p: float | None = None,
    repetition_penalty: float | None = None,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    logit_bias: Mapping[Any, float] | None = None,  # token id -> what is added to its logit
    bad_words: Words | None = None,  # text, or token ids
    min_tokens: int | None = None,
    grammar: str | None = None,  # EBNF
    json_schema: str | Mapping[str, Any] | None = None,
    stop: str | Sequence[str] | None = None,
    seed: int | Sequence[int] | None = None,  # one for all rows, one each, or None: drawn, and reported
    n: int = 1,  # samples of each prompt, each with a seed of its own
    logprobs: int
    | None = None,  # report those of the tokens generated, and of so many likeliest ones beside each
    prediction: Prediction
    | Sequence[Prediction | None]
    | None = None,  # what answers probably are: drafted first
    ignore_eos: bool = False,
    defaults: bool = True,  # apply the checkpoint's generation_config
    tokenizer: Any = None,  # for a transformers model, which brings none
    speculative_config: str | Mapping[str, Any] | None = None,  # vLLM's, in place of method and options
    **options: Any,
) -> Job:
    """Check a call and load what it needs."""
    if speculative_config is not None:
        if options or method != METHOD:
            raise ValueError(
                "speculative_config already names the method and its options: leave the others out"
            )
        method, options = translate(speculative_config)
    recipe = meant(method)
    model = wrap(target, stack, tokenizer)
    given = listed(prompts)
    where = ["the prompt"] if len(given) == 1 else [f"prompt {index}" for index in range(1, len(given) + 1)]
    tokens = [
        encode(model.tokenizer, prompt, model.target.vocab, name)
        for prompt, name in zip(given, where, strict=True)
    ]
    settings = settle(
        model.defaults if defaults else None,
        model.tokenizer,
        vocab=model.target.vocab,
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        typical_p=typical_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        logit_bias=logit_bias,
        bad_words=bad_words,
        min_tokens=min_tokens,
        grammar=grammar,
        json_schema=json_schema,
        stop=stop,
        ignore_eos=ignore_eos,
    )
    if settings.stop and model.tokenizer is None:
        raise ValueError("stop strings need a tokenizer: pass tokenizer=...")
    params = settings.params
    if n < 1:
        raise ValueError(f"n is {n}; ask for at least one sample of each prompt")
    if n > 1 and params.greedy:
        raise ValueError(
            f"n is {n}, but at temperature 0 all samples are the same: use a temperature above 0"
        )
    if logprobs is not None and not 0 <= logprobs <= model.target.vocab:
        raise ValueError(
            f"logprobs is {logprobs}; ask for those of 0 to {model.target.vocab} likeliest tokens"
        )
    rows = [derived(each, sample) for each in seeds(seed, len(tokens)) for sample in range(n)]
    expected = predictions(model.tokenizer, prediction, len(tokens), model.target.vocab)
    tokens, expected = ([each for each in given for _ in range(n)] for given in (tokens, expected))
    left = room(model, tokens)
    values = configure(recipe, model.target, options, ModelOpener(model, stack))
    drafts_reach(
        values,
        max(len(prompt) + min(params.max_tokens, most) for prompt, most in zip(tokens, left, strict=True)),
    )
    return Job(model, tokens, rows, left, settings, recipe, values, expected, logprobs)


def seeds(seed: int | Sequence[int] | None, count: int) -> list[int]:
    """One seed a row. Rows that share a seed give what each would give alone."""
    if seed is None:
        return [random.getrandbits(32) for _ in range(count)]
    if isinstance(seed, int):
        return [seed] * count
    if len(seed) != count:
        raise ValueError(f"there are {count} prompts and {len(seed)} seeds: give one seed, or one each")
    return list(seed)
