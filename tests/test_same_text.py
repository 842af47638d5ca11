"""On the zoo's real models, in float64: what holds token for token, not only in distribution."""

from __future__ import annotations

import typing
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from outpace.controllers.confidence import Confidence
from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Context, Draft, Drafter, Parts, Plan, Recipe
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import Shape
from outpace.drafters.compose.union import UnionDrafter
from outpace.drafters.lookup.ngram import NGram
from outpace.drafters.lookup.prediction import PredictionDrafter
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.no_draft import NoDraft
from outpace.drafters.synthetic import Synthetic
from outpace.models.hf.target import HFTarget, load
from outpace.models.names import resolve
from outpace.models.vocabulary import CrossVocabularyDraft, Vocabulary
from outpace.proof.decode_all import texts
from outpace.proof.models import transformers_models
from outpace.proof.per_row_controller import controllers_by_row
from outpace.proof.per_row_drafter import row_by_row
from outpace.recipes import find
from outpace.recipes._option_kinds import kind_of
from outpace.verifiers.match import Match

TEXTS = (
    "def read(path):\n    with open(path) as file:\n        return file.read()\n\n\ndef write(path, text):\n",
    "class",
    "for name, value in sorted(table.items()):\n    print(name, value)\n" * 3,
)
TOKENS = 24


@cache
def zoo(name: str) -> HFTarget:
    return load(resolve(f"zoo:{name}"), dtype="float64")[0]


@cache
def words(name: str) -> Vocabulary:
    return Vocabulary.of(load(resolve(f"zoo:{name}"), dtype="float64")[1], zoo(name).vocab)


def is_cross_vocabulary(recipe: Recipe) -> bool:
    """Whether the draft of this recipe brings its own vocabulary."""
    return (
        "draft" in recipe.options and typing.get_type_hints(recipe.build).get("draft") is CrossVocabularyDraft
    )


@cache
def prompts() -> tuple[tuple[int, ...], ...]:
    tokenizer = load(resolve("zoo:target"), dtype="float64")[1]
    return tuple(tuple(tokenizer(text)["input_ids"]) for text in TEXTS)


def sampling(temperature: float) -> list[SamplingParams]:
    return [SamplingParams(temperature, top_p=0.95, max_tokens=TOKENS, seed=row) for row in range(len(TEXTS))]


@cache
def plain(temperature: float) -> list[list[int]]:
    return texts(Parts(zoo("target"), NoDraft(), Match(), Fixed(0)), prompts(), sampling(temperature))


class Predicting(PredictionDrafter):
    """Predicts the prompt of each row."""

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        for slot in ctx.slots:
            if slot not in self._cursors:
                self.predict(slot, prompts()[slot])
        return super().propose(ctx, plan)


CHAIN, TREE = Fixed(4), Fixed(Shape.branching((3, 2, 1)))
DRAFTERS: dict[str, Callable[[], tuple[Drafter, Fixed | Confidence]]] = {
    "sampled chain": lambda: (DraftModel(zoo("draft")), CHAIN),
    "greedy chain": lambda: (DraftModel(zoo("draft"), sampled=False), CHAIN),
    "stopped when unsure": lambda: (DraftModel(zoo("draft")), Confidence(6, 0.4)),
    "sampled tree": lambda: (DraftModel(zoo("draft")), TREE),
    "independent draws": lambda: (DraftModel(zoo("draft"), replace=True), TREE),
    "likeliest tree": lambda: (DraftModel(zoo("draft"), sampled=False), TREE),
    "the target itself": lambda: (DraftModel(zoo("target")), CHAIN),
    "n-grams": lambda: (NGram(3, allow_shorter=True), Fixed(8)),
    "a prediction, else n-grams": lambda: (
        Predicting(NGram(3, allow_shorter=True)),
        Fixed(8),
    ),
    "model and n-grams": lambda: (
        UnionDrafter([DraftModel(zoo("draft"), sampled=False), NGram(2, allow_shorter=True)]),
        CHAIN,
    ),
}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", DRAFTERS)
def test_matching_gives_plain_text_under_the_same_seed(name: str, temperature: float) -> None:
    drafter, controller = DRAFTERS[name]()
    parts = Parts(zoo("target"), drafter, Match(), controller)
    assert texts(parts, prompts(), sampling(temperature)) == plain(temperature)


SETTINGS: dict[str, dict[str, Any]] = {
    "min_p": {"min_p": 0.05},
    "typical_p": {"typical_p": 0.8},
    "repetition_penalty": {"repetition_penalty": 1.3},
    "presence_penalty": {"presence_penalty": 1.5},
    "frequency_penalty": {"frequency_penalty": 0.8},
    "logit_bias": {"logit_bias": ((300, 4.0), (301, 3.0), (13, float("-inf")))},
    "bad_words": {"bad_words": ((203,), (325, 331), (12,))},
    "min_tokens": {"min_tokens": 20, "stop": (203, 12)},
}
SETTINGS["all"] = {name: value for params in SETTINGS.values() for name, value in params.items()}


def row_params(name: str, temperature: float) -> list[SamplingParams]:
    return [replace(each, **SETTINGS[name]) for each in sampling(temperature)]


@pytest.mark.parametrize(("name", "temperature"), [*((name, 1.0) for name in SETTINGS), ("all", 0.0)])
def test_matching_gives_plain_text_with_every_setting(name: str, temperature: float) -> None:
    nothing = Parts(zoo("target"), NoDraft(), Match(), Fixed(0))
    expected = texts(nothing, prompts(), row_params(name, temperature))
    for drafter in ("sampled tree", "n-grams") if name == "all" else ("sampled tree",):
        drafting, controller = DRAFTERS[drafter]()
        parts = Parts(zoo("target"), drafting, Match(), controller)
        assert texts(parts, prompts(), row_params(name, temperature)) == expected
    assert expected != plain(temperature)


@pytest.mark.parametrize("rate", [0.0, 0.6, 1.0])
def test_synthetic_drafts_give_plain_text(rate: float) -> None:
    whole = [[*prompt, *text] for prompt, text in zip(prompts(), plain(0.7), strict=True)]
    parts = Parts(zoo("target"), Synthetic(whole, rate), Match(), CHAIN)
    assert texts(parts, prompts(), sampling(0.7)) == plain(0.7)


@cache
def built(name: str) -> Callable[[], Parts]:
    recipe = find()[name]
    models: dict[str, Any] = {"draft": zoo("draft"), "drafts": (zoo("draft"),)}
    if is_cross_vocabulary(recipe):
        models["draft"] = CrossVocabularyDraft(zoo("draft"), words("draft"), words("target"))
    if kind := kind_of(typing.get_type_hints(recipe.build).get("head")):
        models["head"] = kind.fixture(replace(transformers_models(), target=zoo("target")))
    return row_by_row(
        lambda: recipe.build(zoo("target"), **{key: models[key] for key in recipe.options if key in models}),
        shared=(zoo("target"), zoo("draft"), models["draft"]),
    )


@pytest.mark.parametrize("name", sorted(find()))
def test_every_recipe_gives_plain_greedy_text(name: str) -> None:
    assert texts(built(name)(), prompts(), sampling(0.0)) == plain(0.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(find()))
def test_a_row_alone_generates_the_same_as_in_a_ragged_batch(name: str) -> None:
    # a length of drafts that follows other rows, or measured times, changes which random choices are made
    build, settings = controllers_by_row(built(name)), sampling(0.9)
    together = texts(build(), prompts(), settings)
    for row, prompt in enumerate(prompts()):
        assert texts(build(), [prompt], settings[row : row + 1]) == [together[row]]
