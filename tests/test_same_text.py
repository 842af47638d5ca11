"""On the zoo's real models, in float64: what holds token for token, not only in distribution."""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from outpace.controllers.confidence import Confidence
from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Context, Draft, Drafter, Parts, Plan, Recipe, Step
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
from outpace.models.slim.grouped_layers import DeepDraft
from outpace.models.vocabulary import CrossVocabularyDraft, Vocabulary
from outpace.proof.decode_all import texts
from outpace.proof.models import Models, transformers_models
from outpace.proof.per_row_controller import controllers_by_row
from outpace.proof.per_row_drafter import row_by_row
from outpace.recipes import find
from outpace.recipes._option_kinds import kinds_in
from outpace.verifiers.match import Match
from tests.needed_kinds import needed_kind
from tests.tiers import of_families, only, slow, with_parts_of_their_own

TEXTS = (
    "class",
    "for name, value in sorted(table.items()):\n    print(name, value)\n" * 3,
    "def read(path):\n    with open(path) as file:\n        return file.read()\n\n\ndef write(path, text):\n",
)
ROWS, TOKENS = 2, 8  # prompts of one token and of sixty
LONG = 24  # long enough for a drafter to repeat what it has learnt from the tokens before


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


def few() -> tuple[tuple[int, ...], ...]:
    return prompts()[:ROWS]


def sampling(temperature: float, rows: int = ROWS, tokens: int = TOKENS) -> list[SamplingParams]:
    return [SamplingParams(temperature, top_p=0.95, max_tokens=tokens, seed=row) for row in range(rows)]


@cache
def plain(temperature: float, tokens: int = TOKENS) -> list[list[int]]:
    parts = Parts(zoo("target"), NoDraft(), Match(), Fixed(0))
    return texts(parts, few(), sampling(temperature, tokens=tokens))


class Counted:
    """Decodes the first prompts, and counts the tokens that were accepted."""

    def __init__(self, parts: Parts, params: Sequence[SamplingParams]) -> None:
        self.accepted = 0
        self.texts = texts(parts, few(), params, observe=self.add)

    def add(self, step: Step) -> None:
        self.accepted += sum(len(tokens) - 1 for tokens in step.generated if tokens)


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


@pytest.mark.parametrize("temperature", [slow(0.0), 0.7])
@pytest.mark.parametrize("name", DRAFTERS)
def test_matching_gives_plain_text_under_the_same_seed(name: str, temperature: float) -> None:
    drafter, controller = DRAFTERS[name]()
    found = Counted(Parts(zoo("target"), drafter, Match(), controller), sampling(temperature))
    assert found.texts == plain(temperature)
    assert found.accepted


SETTINGS: dict[str, dict[str, Any]] = {
    "min_p": {"min_p": 0.05},
    "typical_p": {"typical_p": 0.8},
    "repetition_penalty": {"repetition_penalty": 1.3},
    "presence_penalty": {"presence_penalty": 1.5},
    "frequency_penalty": {"frequency_penalty": 0.8},
    "logit_bias": {"logit_bias": ((300, 4.0), (301, 3.0), (13, float("-inf")))},
    "bad_words": {"bad_words": ((203,), (325, 331), (12,))},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "min_tokens": {"min_tokens": 6, "stop": (203, 12)},
}
SETTINGS["all"] = {name: value for params in SETTINGS.values() for name, value in params.items()}


def row_params(name: str, temperature: float) -> list[SamplingParams]:
    return [replace(each, **SETTINGS[name]) for each in sampling(temperature)]


# of single settings those that depend on the text before a node
QUICK = [("repetition_penalty", 1.0), ("bad_words", 1.0), ("min_tokens", 1.0), ("all", 1.0), ("all", 0.0)]


@pytest.mark.parametrize(
    ("name", "temperature"), only(QUICK, [*((name, 1.0) for name in SETTINGS), ("all", 0.0)])
)
def test_matching_gives_plain_text_with_every_setting(name: str, temperature: float) -> None:
    nothing = Parts(zoo("target"), NoDraft(), Match(), Fixed(0))
    expected = texts(nothing, few(), row_params(name, temperature))
    for drafter in ("sampled tree", "n-grams") if name == "all" else ("sampled tree",):
        drafting, controller = DRAFTERS[drafter]()
        parts = Parts(zoo("target"), drafting, Match(), controller)
        assert texts(parts, few(), row_params(name, temperature)) == expected
    assert expected != plain(temperature)


@pytest.mark.parametrize("rate", [0.0, 0.6, 1.0])
def test_synthetic_drafts_give_plain_text(rate: float) -> None:
    whole = [[*prompt, *text] for prompt, text in zip(few(), plain(0.7), strict=True)]
    found = Counted(Parts(zoo("target"), Synthetic(whole, rate), Match(), CHAIN), sampling(0.7))
    assert found.texts == plain(0.7)
    assert bool(found.accepted) == (rate > 0)


FIXTURES: list[Models] = []


@cache
def built(name: str) -> Callable[[], Parts]:
    recipe = find()[name]
    models: dict[str, Any] = {"draft": zoo("draft"), "middle": zoo("draft"), "drafts": (zoo("draft"),)}
    if is_cross_vocabulary(recipe):
        models["draft"] = CrossVocabularyDraft(zoo("draft"), words("draft"), words("target"))
    fixtures = replace(
        transformers_models(),
        target=zoo("target"),
        drafts=(zoo("draft"),),
        logits=lambda texts: torch.zeros(len(texts), zoo("target").vocab),  # any tokens of the vocabulary
    )
    FIXTURES.append(fixtures)  # its files are removed with it
    hints = typing.get_type_hints(recipe.build)
    if hints.get("draft") is DeepDraft:  # the zoo's draft models for this target have two layers
        models["draft"] = zoo("target")
    for option in ("head", "arms", "predictor", "judge", "anchors"):
        if kind := needed_kind(hints.get(option)):
            models[option] = kind.fixture(fixtures)
    if "heads" in hints:
        [kind] = kinds_in(hints["heads"])
        assert kind.several is not None
        models["heads"] = kind.several(fixtures)
    options = {key: models[key] for key in recipe.options if key in models} | dict(recipe.exact_with)
    return row_by_row(
        lambda: recipe.build(zoo("target"), **options),
        shared=(zoo("target"), zoo("draft"), models["draft"]),
    )


# without an index, or further samples, or as a target; or nothing is accepted at the exact limit, or from a
# draft model that was not trained to fill masks
NOTHING_DRAFTED = {
    "aurora",  # an untrained head
    "autoregressive",
    "deer",
    "diffuspec",
    "dresd",
    "dultra",
    "ead",
    "medusa-typical",
    "multi-sample",
    "quicksilver",
    "rest",
    "specdiff",
    "specdiff2",
}
EARLY_LAYERS = {"kangaroo"}  # even an untrained adapter passes on what the target's first layers compute
LEARN = {"lookahead", "stand", "token-recycling"}  # they draft only from generated tokens


@pytest.mark.parametrize("name", of_families(sorted(find())))
def test_every_recipe_gives_plain_greedy_text(name: str) -> None:
    hints = typing.get_type_hints(find()[name].build)
    untrained = "heads" in hints or needed_kind(hints.get("head")) is not None
    # no draft of other untrained heads is accepted, and their trees are wide: all their steps are alike
    tokens = TOKENS // 2 if untrained else LONG if name in LEARN else TOKENS
    found = Counted(built(name)(), sampling(0.0, tokens=tokens))
    assert found.texts == plain(0.0, tokens)
    drafts = name in EARLY_LAYERS or not untrained
    assert bool(found.accepted) == (drafts and name not in NOTHING_DRAFTED)


@pytest.mark.slow
@pytest.mark.parametrize("name", with_parts_of_their_own(sorted(find())))
def test_a_row_alone_generates_the_same_as_in_a_ragged_batch(name: str) -> None:
    # a length of drafts that follows other rows, or measured times, changes which random choices are made
    build, rows = controllers_by_row(built(name)), [prompts()[0], prompts()[-1]]
    settings = sampling(0.9, len(rows))
    together = texts(build(), rows, settings)
    for row, prompt in enumerate(rows):
        assert texts(build(), [prompt], settings[row : row + 1]) == [together[row]]
