"""What is proven of a recipe: its options in several settings, on table models and through the transformers target."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch

from outpace.core.contracts import Recipe, Target
from outpace.core.sampling_params import SamplingParams
from outpace.models.table import TableTarget
from outpace.models.vocabulary import END, CrossVocabularyDraft, Vocabulary
from outpace.proof.enumeration import Case, TooMany, enumerate_distributions, largest_error
from outpace.proof.joint import Group, enumerate_joint, largest_joint_error, prove_together
from outpace.proof.mutants.catalogue import variants
from outpace.proof.mutants.joint import joint_variants
from outpace.proof.option_values import choices
from outpace.proof.per_row_drafter import row_by_row
from outpace.proof.reference import table_logits
from outpace.proof.result import Models, Proof, told
from outpace.proof.sampling_cases import crossed, paired
from outpace.proof.with_prediction import predicting

QUICK, EXHAUSTIVE = 3_000, 20_000  # most runs of one proof: about a thousand a second on one core
PROMPTS = ((0, 1, 2, 0, 1), (2, 2), (1,), (1, 0, 2))
PART = 13  # requests with settings that are proven together
# What tokens spell where a draft has a vocabulary of its own: two are shared, one is spelt by two of the draft's, one
# of the draft's by none of the target's, and the end of a text has another number (or is the draft's alone).
OURS, THEIRS = (b"a", b"b", b"ab", None), (b"b", b"a", None, b"bb")


def cross_vocabulary(model: Target, vocab: int) -> CrossVocabularyDraft:
    """This model as one whose tokens are not the target's."""
    ours = Vocabulary.longest_match(OURS[:vocab], {END: 3} if vocab > 3 else {})
    return CrossVocabularyDraft(model, Vocabulary.longest_match(THEIRS, {END: 2}), ours)


def tables(vocab: int = 3) -> Models:
    """Table models: a target that remembers three tokens, and two drafters that remember fewer."""
    target = TableTarget(vocab, seed=1)
    drafts = (TableTarget(vocab, seed=2, order=2), TableTarget(vocab, seed=3, order=1))
    other = cross_vocabulary(TableTarget(len(THEIRS), seed=4, order=2), vocab)
    return Models("table", target, drafts, table_logits(target.logits, target.state), other)


def transformers_models(window: int | None = None, vocab: int = 4) -> Models:
    """Random one- and two-layer transformers models in float64; with `window`, attention that sees so many tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

    from outpace.models.hf.target import HFTarget

    def model(layers: int, seed: int, size: int = vocab) -> Any:
        torch.manual_seed(seed)
        shape: dict[str, Any] = dict(
            vocab_size=size,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=layers,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=64,
            initializer_range=0.6,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
            attn_implementation="sdpa",
        )
        if window is None:
            made = LlamaForCausalLM(LlamaConfig(**shape))
        else:
            made = MistralForCausalLM(MistralConfig(**shape, sliding_window=window))
        return made.double().eval()

    target = model(2, 1)
    untouched = copy.deepcopy(target)

    def logits(texts: list[tuple[int, ...]]) -> torch.Tensor:
        with torch.inference_mode():
            return untouched(torch.tensor(texts), use_cache=False).logits[:, -1]

    name = "transformers, full attention" if window is None else f"transformers, window of {window}"
    other = cross_vocabulary(HFTarget(model(1, 4, len(THEIRS))), vocab)
    return Models(name, HFTarget(target), (HFTarget(model(1, 2)), HFTarget(model(1, 3))), logits, other)


def ragged(tokens: int) -> list[Case]:
    """Requests of different lengths, temperatures, limits and stop tokens, decoded together."""
    return [
        Case((0, 1, 2, 0, 1, 2, 0), SamplingParams(temperature=1.0, max_tokens=tokens)),
        Case((2,), SamplingParams(temperature=0.7, max_tokens=tokens - 1, stop=(1,))),
        Case((1, 1, 0, 1, 1), SamplingParams(temperature=0.0, max_tokens=tokens + 2)),
        Case((0, 2, 2), SamplingParams(temperature=1.0, max_tokens=tokens - 1, stop=(0, 2))),
    ]


def prove(recipe: Recipe, models: Models, *, exhaustive: bool = False) -> Iterator[Proof]:
    """Enumerate the recipe on these models in every setting, in a ragged batch and, for the first setting, alone; the
    first setting also behind a prediction.

    Texts are as long as `QUICK` runs allow (3 tokens, else 2); an exhaustive proof takes larger trees and more runs.
    """
    shapes = [(2,), (1, 2)] if not exhaustive else [(2,), (1, 2), (2, 2), (3, 1), (1, 1)]
    most = EXHAUSTIVE if exhaustive else QUICK
    found = list(choices(recipe, models.drafts, models.cross_vocabulary, shapes))
    for index, options in enumerate(found):
        for batch in (256, 1) if index == 0 or exhaustive else (256,):
            yield _prove(recipe, options, models, ragged, batch, most)
    for options in found if exhaustive else found[:1]:
        yield _prove(recipe, options, models, ragged, 256, most, predicted=True)
    for index, options in enumerate(found):
        # pairs for two shapes only: one level of siblings, and ancestors with siblings
        yield from _prove_settings(recipe, options, models, most, pairs=exhaustive and index < 2)
    for options in found:
        if recipe.build(models.target, **options).drafter.drafts_across_rows:
            yield from prove_together(recipe, options, models, exhaustive=exhaustive)


def _prove_settings(
    recipe: Recipe, options: dict[str, Any], models: Models, most: int, *, pairs: bool
) -> Iterator[Proof]:
    """Sampling settings crossed with one another and, if wanted, each of them and each two of them apart."""
    vocab = models.target.vocab

    def cases(tokens: int) -> list[Case]:
        row_params = list(crossed(vocab, tokens))
        row_params += [replace(params, temperature=0.0) for params in row_params]
        return [Case(PROMPTS[index % len(PROMPTS)], params) for index, params in enumerate(row_params)]

    yield _prove(recipe, options, models, cases, 256, most, "crossed")
    if pairs:
        for start in range(0, len(list(paired(vocab, 2))), PART):

            def part(tokens: int, start: int = start) -> list[Case]:
                row_params = list(paired(vocab, tokens))[start : start + PART]
                return [
                    Case(PROMPTS[index % len(PROMPTS)], params) for index, params in enumerate(row_params)
                ]

            yield _prove(recipe, options, models, part, 256, most, "paired")


def _prove(
    recipe: Recipe,
    options: dict[str, Any],
    models: Models,
    cases_of: Callable[[int], list[Case]],  # length of the longest sampled text -> requests
    batch: int,
    most: int,
    settings: str = "",
    *,
    predicted: bool = False,
) -> Proof:
    began = perf_counter()
    build = row_by_row(lambda: recipe.build(models.target, **options))
    if predicted:
        build = predicting(build, batch)
    for tokens in (3, 2) if batch > 1 else (2,):
        cases = cases_of(tokens)
        try:
            found = enumerate_distributions(build, cases, batch=batch, most=most)
        except TooMany:
            if tokens > 2:
                continue
            raise
        return Proof(
            recipe=recipe.name,
            models=models.name,
            options=told(options),
            temperatures=tuple(sorted({case.sampling.temperature for case in cases})),
            tokens=tokens,
            batch=batch,
            outcomes=sum(len(distribution) for distribution in found.distributions),
            runs=found.runs,
            error=largest_error(found, models.logits, cases),
            seconds=perf_counter() - began,
            settings=settings,
            predicted=predicted,
        )
    raise AssertionError("unreachable: two tokens either fit or raise")


def prove_wrong() -> dict[str, float]:
    """Known-wrong variant -> largest error found; one at or below `BOUND` has slipped through."""
    models = tables()
    assert isinstance(models.target, TableTarget) and isinstance(models.drafts[0], TableTarget)
    cases = [
        Case((0, 1, 2, 0, 1), SamplingParams(temperature=0.7, max_tokens=3)),
        Case((2, 2), SamplingParams(temperature=1.0, max_tokens=2)),
    ]
    errors = {}
    for wrong in variants(models.target, models.drafts[0], models.cross_vocabulary):
        asked = [replace(case, sampling=replace(case.sampling, **wrong.sampling)) for case in cases]
        found = enumerate_distributions(
            wrong.build, asked, noise=wrong.noise, target_probs=wrong.target_probs, replays=0
        )
        errors[wrong.name] = largest_error(found, models.logits, asked)
    together = [Group((1, 1), (SamplingParams(1.0, top_k=2, max_tokens=3),) * 2)]
    for wrong in joint_variants(models.target):
        # one run in a session: these look at the rows beside them
        found = enumerate_joint(wrong.build, together, noise=wrong.noise, batch=1, replays=0)
        errors[wrong.name] = largest_joint_error(found, models.logits, together)
    return errors
