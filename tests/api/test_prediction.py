"""Predicted outputs are drafted and counted, and do not change the output distribution."""

from __future__ import annotations

import pytest

import outpace
from tests.tiers import slow

SETTINGS = {"max_tokens": 24, "ignore_eos": True}
METHODS = ["autoregressive", "prompt-lookup", "speculative-sampling", "mcsd", "token-recycling", "lookahead"]


def options(method, draft):
    return {"draft": draft} if "draft" in outpace.recipes.get(method).options else {}


@pytest.mark.parametrize(
    "method", [*METHODS[:3], *(pytest.param(each, marks=pytest.mark.slow) for each in METHODS[3:])]
)
def test_a_prediction_changes_the_steps_and_not_the_text(loaded, method):
    target, draft = loaded
    given = {"temperature": 0, **SETTINGS, **options(method, draft)}
    plain = outpace.generate(target, "def add", method, **given)[0]
    statistics = plain.statistics
    assert (statistics.num_accepted_prediction_tokens, statistics.num_rejected_prediction_tokens) == (0, 0)
    right = outpace.generate(target, "def add", method, prediction=plain.tokens, **given)[0]
    assert right.tokens == plain.tokens and right.statistics.num_steps == 3  # of 9, 10 and 5 tokens
    assert right.statistics.num_accepted_prediction_tokens == right.statistics.num_accepted_draft_tokens == 21
    assert right.statistics.num_rejected_prediction_tokens == 0
    assert right.statistics.as_dict()["num_accepted_prediction_tokens"] == 21
    for wrong in ("", "  ", "nothing of the kind", [1] * 5000, plain.tokens[::-1]):
        assert (
            outpace.generate(target, "def add", method, prediction=wrong, **given)[0].tokens == plain.tokens
        )


def test_what_was_drafted_in_vain_is_counted(loaded):
    target, _ = loaded
    plain = outpace.generate(target, "def", "autoregressive", temperature=0, **SETTINGS)[0].tokens
    other = next(token for token in range(2, target.target.vocab) if token not in plain)
    changed = [*plain[:5], other, *plain[6:]]
    statistics = outpace.generate(
        target, "def", "autoregressive", temperature=0, prediction=changed, **SETTINGS
    )[0].statistics
    # the first draft of 8 loses 3
    assert statistics.num_accepted_prediction_tokens == statistics.num_accepted_draft_tokens >= 5
    assert statistics.num_rejected_prediction_tokens >= 3
    assert (
        statistics.num_accepted_prediction_tokens + statistics.num_rejected_prediction_tokens
        == statistics.num_draft_tokens
    )
    ended = outpace.generate(target, "def", "autoregressive", temperature=0, prediction=plain, max_tokens=3)
    statistics = ended[0].statistics
    assert (statistics.num_accepted_prediction_tokens, statistics.num_rejected_prediction_tokens) == (2, 0)


@pytest.mark.parametrize("method", ["prompt-lookup", slow("autoregressive")])
def test_the_same_seed_gives_the_same_text_with_a_prediction(loaded, method):
    target, _ = loaded
    given = {"temperature": 1, "seed": 4, "n": 2, **SETTINGS}
    plain = outpace.generate(target, ["def add", "class"], method, **given)
    texts = [result.tokens for result in plain]
    for prediction in (texts[0], [texts[0], None], [None, texts[2]], [texts[3], "class Stack"]):
        found = outpace.generate(
            target, ["def add", "class"], method, prediction=prediction, batch=3, **given
        )
        assert [result.tokens for result in found] == texts
    # each sample gets its prompt's, and a sample that is right about it needs few steps
    found = outpace.generate(target, ["def add", "class"], method, prediction=[None, texts[2]], **given)
    assert [result.statistics.num_accepted_prediction_tokens > 15 for result in found] == [
        False,
        False,
        True,
        False,
    ]


def test_a_stream_takes_one(loaded):
    target, _ = loaded
    text = outpace.generate(target, "def add", "autoregressive", temperature=0, **SETTINGS)[0].text
    pieces = outpace.stream(target, "def add", "autoregressive", temperature=0, prediction=text, **SETTINGS)
    assert "".join(pieces) == text and pieces.result.statistics.num_accepted_prediction_tokens > 0


def test_a_stop_string_ends_what_is_counted(loaded):
    target, _ = loaded
    plain = outpace.generate(target, "def add", "autoregressive", temperature=0, **SETTINGS)[0]
    given = {"temperature": 0, "stop": plain.text[0], "prediction": plain.tokens, **SETTINGS}
    found = outpace.generate(target, "def add", "autoregressive", **given)[0]
    statistics = found.statistics
    assert found.finish_reason == "stop" and found.tokens == plain.tokens[: len(found.tokens)]
    assert statistics.num_accepted_prediction_tokens == len(found.tokens) < 8
    assert statistics.num_accepted_prediction_tokens + statistics.num_rejected_prediction_tokens == 8


@pytest.mark.parametrize(
    ("prediction", "sentence"),
    [
        (["one", "two", "three"], "there are 2 prompts and 3 predictions: give one prediction, or one each"),
        ([[10**6], None], "a prediction has token 1000000, but the model's tokens are 0 to"),
        ([[0, "a"], None], "a prediction has .a. in it: give text or a list of token ids"),
    ],
)
def test_a_prediction_that_cannot_be_one_is_refused(loaded, prediction, sentence):
    with pytest.raises(ValueError, match=sentence):
        outpace.generate(loaded[0], ["def", "class"], "autoregressive", prediction=prediction)
