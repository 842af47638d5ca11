"""Draft models with fewer or more token ids than the target: the output has the target's distribution over
all of its ids, also those that the draft model lacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest

from outpace.core.contracts import Target
from outpace.models.hf.target import HFTarget
from outpace.proof.models import Models, transformers_models
from outpace.proof.option_values import choices
from outpace.proof.suite import Subject, ragged
from outpace.recipes import find, get
from outpace.recipes._options import hints_of
from tests.tiers import WITHOUT_MODELS, with_parts_of_their_own

QUICK = ("rsd-s",)


def methods() -> Iterator[Any]:
    """(Method, ids of the target, ids of its draft models) of the methods with an option for draft models
    that have the target's tokenizer, of which those that differ in a verification rule or a controller alone
    share one."""
    found = list[str]()
    for name in with_parts_of_their_own(find()):
        recipe = get(name)
        if name in WITHOUT_MODELS and name not in QUICK:
            continue
        if any(
            "Target" in str(hint) for option, hint in hints_of(recipe).items() if option in recipe.options
        ):
            found.append(name)
    for number, name in enumerate(found):
        widths = {"wider draft": (4, 5), "wider target": (5, 4)}
        # how vocabularies are fitted is the same for all methods: one of the widths each, in turn
        for kind in widths if name in QUICK else [list(widths)[number % 2]]:
            mark = () if name in QUICK else pytest.mark.slow
            yield pytest.param(name, *widths[kind], id=f"{name}-{kind}", marks=mark)


@cache
def models(vocab: int, of_drafts: int) -> Models:
    """A target with `vocab` ids, and draft models with `of_drafts`, fitted to it."""
    found, others = transformers_models(vocab=vocab), transformers_models(vocab=of_drafts).drafts
    return replace(found, drafts=tuple(each.fitted(vocab) for each in others if isinstance(each, HFTarget)))


def has_draft(options: Mapping[str, Any]) -> bool:
    values = [
        each for value in options.values() for each in (value if isinstance(value, tuple) else (value,))
    ]
    return any(isinstance(each, Target) for each in values)


@pytest.mark.parametrize(("method", "vocab", "of_drafts"), list(methods()))
def test_the_distribution_is_the_targets(method: str, vocab: int, of_drafts: int) -> None:
    recipe, given = get(method), models(vocab, of_drafts)
    options = next(each for each in choices(recipe, given, ((2, 1),)) if has_draft(each))
    requests = partial(ragged, top_k=2, prompt=(0, vocab - 1, 1, 0, vocab - 1, 1))
    proof = Subject(recipe, options, given).prove(requests, 300)
    assert proof.as_promised, proof
    assert proof.error is not None and proof.error < 1e-12
    assert proof.drafted or not proof.allowed
