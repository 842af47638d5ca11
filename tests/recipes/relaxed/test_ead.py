"""Entropy adaptive decoding: the output is that of two models that write by turns, however it is computed;
mistakes are caught."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from outpace.core.contracts import Parts, Reference, SamplingParams, Target, Want
from outpace.core.row_error import TextTooLong
from outpace.core.tree import Forest, TokenTree
from outpace.drafters.no_draft import NoDraft
from outpace.engine.engine import Engine
from outpace.models.hf.target import HFTarget, load
from outpace.models.names import resolve
from outpace.models.table import TableTarget
from outpace.proof.decode_all import texts
from outpace.proof.enumeration import Case, enumerate_distributions, largest_error
from outpace.proof.models import Models, tables, transformers_models
from outpace.proof.suite import CAUGHT, exact_limit, prove_default
from outpace.proof.with_prediction import predicting
from outpace.recipes import get
from outpace.recipes.relaxed.ead import routed_cache, routed_target
from outpace.recipes.relaxed.ead.recipe import ead
from outpace.recipes.relaxed.ead.routed_cache import ModelCache, RoutedCache
from outpace.recipes.relaxed.ead.routed_target import RoutedTarget
from outpace.recipes.relaxed.ead.routing import Route, Routing, entropy_in_bits
from outpace.sampling.target_probs import LazyTargetProbs
from tests.tiers import only

CASES = [
    Case((0, 1, 2, 0), SamplingParams(0.6, max_tokens=5)),
    Case((2,), SamplingParams(1.0, max_tokens=4, stop=(1,), repetition_penalty=1.5)),
    Case((1, 0, 2), SamplingParams(1.6, max_tokens=3, top_k=2)),
    Case((1, 0), SamplingParams(0.0, max_tokens=6)),
]
OPTIONS = {"tau": 1.0, "window": 3, "min_stay": 2}


@cache
def models(kind: str) -> Models:
    return tables() if kind == "table" else transformers_models()


def build(kind: str = "table", **options: Any) -> Parts:
    of = models(kind)
    return ead.build(of.target, draft=of.drafts[0], **OPTIONS | options)


def error(make: Callable[[], Parts], stated: Parts) -> float:
    assert isinstance(stated.reference, Reference)
    return largest_error(enumerate_distributions(make, CASES), stated.reference, CASES)


@pytest.mark.parametrize("kind", only(["table"], ["table", "transformers"]))
def test_the_output_is_that_of_two_models_by_turns(kind: str) -> None:
    for options in ({}, {"window": 1, "min_stay": 1}, {"tau": 1.2})[: 3 if kind == "table" else 1]:
        parts = build(kind, **options)
        assert error(lambda parts=parts: parts, parts) < 1e-12
        assert isinstance(parts.target, RoutedTarget)
        assert min(each.written for each in parts.target.work) > 0
        # with a predicted output too, which is scored across switches
        assert error(predicting(lambda options=options: build(kind, **options)), parts) < 1e-12


def test_the_output_is_that_of_neither_model_alone() -> None:
    for alone in (-1.0, math.inf):
        assert error(lambda alone=alone: build(tau=alone), build()) > 0.05


def test_the_recipe_is_proven_and_its_exact_limit_is_exact() -> None:
    proof = prove_default(get("ead"), tables(), 200)
    assert proof.verdict == "as stated" and proof.loss is not None and proof.loss > 0.1
    assert exact_limit(get("ead"), tables(), 200).verdict == "exact"


def in_nats(logits: Tensor) -> Tensor:
    """Mistake: the unit of the entropies."""
    return entropy_in_bits(logits) * math.log(2)


def tempered(logits: Tensor) -> Tensor:
    """Mistake: the entropies are of distributions with a temperature."""
    return entropy_in_bits(logits / 0.6)


@pytest.mark.parametrize("mistake", [in_nats, tempered])
def test_a_mistake_in_the_entropies_is_caught(
    mistake: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routed_target, "entropy_in_bits", mistake)
    assert error(lambda: build(), build()) > CAUGHT


class Emptied(Routing):
    """Mistake: the window begins anew at a switch."""

    def after(self, route: Route, entropy: float) -> Route:
        after = super().after(route, entropy)
        return after if after.large == route.large else replace(after, entropies=())


class Impatient(Routing):
    """Mistake: a model stays for one token at least, whatever was asked for."""

    def after(self, route: Route, entropy: float) -> Route:
        return Routing(self.tau, self.window, 1).after(route, entropy)


@pytest.mark.parametrize("mistake", [Emptied, Impatient])
def test_a_mistake_in_the_routing_is_caught(mistake: type[Routing]) -> None:
    of = models("table")
    target = RoutedTarget(of.drafts[0], of.target, mistake(*OPTIONS.values()))
    assert error(lambda: replace(build(), target=target), build()) > CAUGHT


class Stale(ModelCache):
    """Mistake: a model that goes on does not read what the other one has written."""

    def read(self, texts: Mapping[int, Sequence[int]], begins: Mapping[int, int]) -> dict[int, Tensor]:
        self.keep(begins)
        known = {slot: self.cache.lengths[slot] or begin for slot, begin in begins.items()}
        cut = {slot: [*text[: known[slot]], *text[begins[slot] :]] for slot, text in texts.items()}
        return super().read(cut, known)


def test_a_stale_cache_of_the_model_that_was_idle_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routed_cache, "ModelCache", Stale)
    assert error(lambda: build(), build()) > CAUGHT


@cache
def zoo(name: str) -> HFTarget:
    return load(resolve(f"zoo:{name}"), dtype="float64")[0]


TEXTS = ("def add(a, b):\n", "import os\nimport sys\n\n", "class", "Noah has 12 apples and buys")
GREEDY = [SamplingParams(max_tokens=24)] * len(TEXTS)


@cache
def prompts() -> list[list[int]]:
    tokenizer = load(resolve("zoo:target"))[1]
    return [list(tokenizer(text)["input_ids"]) for text in TEXTS]


def on_zoo(tau: float, min_stay: int = 4) -> Parts:
    return ead.build(zoo("target"), draft=zoo("draft"), tau=tau, window=3, min_stay=min_stay)


@pytest.mark.slow
def test_the_two_ends_are_either_model_alone_token_for_token() -> None:
    sampling = [SamplingParams(0.8, max_tokens=16, seed=row) for row in range(len(TEXTS))]
    for tau, name in ((-1.0, "target"), (math.inf, "draft")):
        alone = replace(on_zoo(-1.0), target=zoo(name))
        assert texts(on_zoo(tau), prompts(), sampling) == texts(alone, prompts(), sampling)


@pytest.mark.slow
def test_the_large_models_share_falls_with_tau_and_no_model_stays_too_short() -> None:
    shares = list[float]()
    for tau in (0.2, 2.0, 4.0, 6.0, 8.0):
        parts, min_stay = on_zoo(tau), 4
        engine = Engine.of(parts, [torch.tensor(prompt) for prompt in prompts()], GREEDY)
        written: list[list[bool]] = [[] for _ in prompts()]
        cache = engine.session.cache
        assert isinstance(cache, RoutedCache) and isinstance(parts.target, RoutedTarget)
        for _ in engine.steps():
            for slot in engine.session.rows:
                written[slot].append(cache.routes[slot].large)
        for of_row in written:
            switches = [at for at in range(1, len(of_row)) if of_row[at] != of_row[at - 1]]
            assert all(later - at >= min_stay for at, later in zip(switches, switches[1:], strict=False))
        small, large = (each.written for each in parts.target.work)
        shares.append(large / (small + large))
    assert shares == sorted({*shares}, reverse=True) and shares[0] > 0.8 > 0.1 > shares[-1]


def test_rows_in_different_states_and_texts_that_are_read_again_give_the_same_text() -> None:
    prompts = [(0, 1, 2, 0, 3), (2,), (1, 0, 2), (3, 3, 3, 1, 0, 2, 1)]
    sampling = [SamplingParams(0.7, max_tokens=20, seed=row) for row in range(len(prompts))]
    parts = build("transformers")
    alone = [texts(parts, [prompt], [one])[0] for prompt, one in zip(prompts, sampling, strict=True)]
    assert isinstance(parts.target, RoutedTarget) and min(each.written for each in parts.target.work) > 8
    assert texts(build("transformers"), prompts, sampling) == alone
    assert texts(build("transformers"), prompts, sampling, prompt_tokens=2) == alone
    engine = Engine[int](build("transformers"), target_probs=LazyTargetProbs, prompt_tokens=5)
    states = [
        engine.session.request(engine.add(row, torch.tensor(prompts[row]), sampling[row]))
        for row in range(len(prompts))
    ]
    again = 0
    for number, _ in enumerate(engine.steps()):
        for slot in list(engine.session.rows):
            if number % 6 == 5 and slot % 2 == number % 4 // 2:  # preempted, and back at once
                state = engine.session.request(slot)
                engine.rejoin(engine.cancel(slot), state)
                again += len(state.output()) > 4
    assert [state.output() for state in states] == alone and again > 4


def test_what_it_cannot_do_is_said_in_a_sentence() -> None:
    of = models("table")
    for options, said in (
        ({"tau": math.nan}, "tau is nan: give"),
        ({"window": 0}, "window is 0 and min_stay 2: give"),
        ({"min_stay": 0}, "give at least 1 token each"),
    ):
        with pytest.raises(ValueError, match=said):
            build(**options)
    other: Target = TableTarget(4)
    with pytest.raises(ValueError, match="the small model has 4 tokens and the large one 3"):
        ead.build(of.target, draft=other)
    target, roots = build().target, TokenTree.roots(torch.tensor([1]))
    with pytest.raises(ValueError, match="reads no hidden states"):
        target.score(roots, (0,), target.open(1, 8), Want(hidden=frozenset({0})))
    with pytest.raises(ValueError, match="ead scores chains only"):
        tree = TokenTree(torch.tensor([1, 0, 2]), Forest.of([-1, 0, 0], 1))
        target.score(tree, (0,), target.open(1, 8))
    short = TableTarget(3)
    short.max_length = 4
    parts = ead.build(of.target, draft=short)
    assert parts.target.max_length == 4 and isinstance(parts.drafter, NoDraft)
    with pytest.raises(TextTooLong, match="the draft model reads texts of up to 4 tokens"):
        texts(parts, [(0, 1, 2)], [SamplingParams(max_tokens=3)])
